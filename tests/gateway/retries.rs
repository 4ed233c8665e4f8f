//! Upstream retries: which requests are retried, and which never are.
//!
//! Backoff is a few milliseconds, the budget is large enough for all retries, and no circuit opens, unless a test is
//! about these. The servers fail on purpose and must still get the retries.

mod bodies;
mod conditions;
mod final_responses;
mod keyed;
mod metrics;
mod retry_after;
mod servers;

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::harness::{Gateway, GatewayBuilder, Upstream, full};
use crate::raw_http::{self, UpstreamConnection, ok};

/// Up to five attempts with almost no backoff, and a budget that is never exhausted.
pub(crate) const QUICK: &str = "[upstream.api.retry]\nbase = \"1ms\"\ncap = \"5ms\"\n\
                                budget = { floor = 1000000 }\n";

/// Prepares a gateway in front of these servers, with additional lines in `[upstream.api]`.
pub(crate) fn gateway_to(servers: &[String], api: &str) -> GatewayBuilder {
    gateway_with_rule(servers, api, "mode = \"off\"")
}

/// Prepares the same gateway with a rule for idempotency keys.
fn gateway_with_rule(servers: &[String], api: &str, rule: &str) -> GatewayBuilder {
    Gateway::with(&format!(
        "[upstream.api]\nservers = {servers:?}\n\
         breaker = {{ enabled = false }}\n{api}\n\
         [[route]]\nname = \"all\"\npath = \"/\"\nidempotency = {{ {rule} }}\n"
    ))
}

/// Server that responds with these statuses in sequence, then always with the last one. The body contains the number of
/// the response.
fn with_statuses(statuses: &[u16]) -> Upstream {
    let statuses = statuses.to_vec();
    let responses = AtomicUsize::new(0);
    Upstream::with(move |_| {
        let number = responses.fetch_add(1, Ordering::SeqCst);
        let status = statuses[number.min(statuses.len() - 1)];
        async move {
            let mut reply = full(format!("response {}", number + 1));
            *reply.status_mut() = status.try_into().expect("a status");
            reply
        }
    })
}

/// Server whose first connection runs this script. All other requests get their body back.
fn with_first_connection(
    script: impl Fn(&mut UpstreamConnection) + Send + Sync + 'static,
) -> raw_http::RawUpstream {
    raw_http::RawUpstream::scripted(move |connection| {
        if connection.number == 0 {
            script(connection);
            return;
        }
        while let Some(request) = connection.request() {
            connection.send(ok(&String::from_utf8_lossy(&request.body)));
        }
    })
}

/// What a server does with its connection.
type ConnectionAction = fn(&mut UpstreamConnection);

/// Ways to fail a request that was read, without a response that could be forwarded.
const LOSSES: [(&str, ConnectionAction); 4] = [
    ("closes", |_| {}),
    ("resets", |connection| connection.reset_on_close()),
    ("closes within a head", |connection| {
        connection.send("HTTP/1.1 200 OK\r\nContent-Le");
    }),
    ("does not speak HTTP", |connection| {
        connection.send("220 ready\r\n\r\n");
    }),
];

/// Server that loses the first request in this way.
fn losing(lose: ConnectionAction) -> raw_http::RawUpstream {
    with_first_connection(move |connection| {
        connection.request();
        lose(connection);
    })
}

/// Returns the number of requests with this method that have started to arrive.
fn arrived_count(upstream: &raw_http::RawUpstream, method: &str) -> usize {
    upstream.received().matches(&format!("{method} /")).count()
}
