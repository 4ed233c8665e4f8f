//! Retries after lost connections, with bodies that arrive slowly, and on several servers. `pipeline::tests::retries`
//! has the tables of methods, statuses and delays.
//!
//! In most of these tests, the backoff is a few milliseconds, the retry budget allows all retries, and the circuit
//! breaker is off. If it were on, it would open because of the failing servers, and they would get no retries.

mod bodies;
mod keyed;
mod metrics;
mod servers;

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::raw_http::{self, UpstreamConnection, ok};
use crate::support::{Gateway, GatewayBuilder, Upstream, full};

/// Retry section with up to five attempts, almost no backoff, and a retry budget that is never exhausted.
pub(crate) const QUICK: &str = "[upstream.api.retry]\nbase = \"1ms\"\ncap = \"5ms\"\n\
                                budget = { floor = 1000000 }\n";

/// Builds a gateway in front of these servers. `api` contains additional lines for `[upstream.api]`.
pub(crate) fn gateway_to(servers: &[String], api: &str) -> GatewayBuilder {
    gateway_with_rule(servers, api, "mode = \"off\"")
}

/// Builds a gateway like [`gateway_to`] with `rule` as its idempotency rule.
fn gateway_with_rule(servers: &[String], api: &str, rule: &str) -> GatewayBuilder {
    Gateway::with(&format!(
        "[upstream.api]\nservers = {servers:?}\n\
         breaker = {{ enabled = false }}\n{api}\n\
         [[route]]\nname = \"all\"\npath = \"/\"\nidempotency = {{ {rule} }}\n"
    ))
}

/// Creates a server that responds with these statuses in sequence, then always with the last one. The body contains the
/// number of the response.
fn with_statuses(statuses: &[u16]) -> Upstream {
    let statuses = statuses.to_vec();
    let responses = AtomicUsize::new(0);
    Upstream::with(move |_| {
        let number = responses.fetch_add(1, Ordering::SeqCst);
        let status = statuses[number.min(statuses.len() - 1)];
        async move {
            let mut reply = full(format!("response {}", number + 1));
            *reply.status_mut() = status.try_into().expect("the status code should be valid");
            reply
        }
    })
}

/// Creates a server that runs `script` on its first connection. It responds to each later request with the body of that
/// request.
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

/// Action of a server on one of its connections.
type ConnectionAction = fn(&mut UpstreamConnection);

/// Ways for a server to fail after it has read the request. None of them sends a response that the gateway could
/// forward.
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

/// Creates a server that reads its first request and then fails with the action `lose`.
fn losing(lose: ConnectionAction) -> raw_http::RawUpstream {
    with_first_connection(move |connection| {
        connection.request();
        lose(connection);
    })
}

/// Returns how many requests with this method have started to arrive at `upstream`.
fn arrived_count(upstream: &raw_http::RawUpstream, method: &str) -> usize {
    upstream.received().matches(&format!("{method} /")).count()
}

#[tokio::test]
async fn a_request_whose_connection_is_lost_is_retried_if_that_is_safe() {
    for (description, lose) in LOSSES {
        for (api, method, status, count) in [
            (QUICK, "GET", 200, 2),
            (QUICK, "POST", 502, 1),
            ("", "GET", 502, 1),
        ] {
            let upstream = losing(lose);
            let gateway = gateway_to(&[upstream.url()], api).start();
            let response = gateway.client().request(method, "/").send().await;
            assert_eq!(response.status, status, "{method}, {description}");
            let arrived = arrived_count(&upstream, method);
            assert_eq!(arrived, count, "{method}, {description}");
        }
    }
}
