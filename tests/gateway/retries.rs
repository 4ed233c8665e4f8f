//! Requests that are sent once more, and those that never are.
//!
//! Waits are a few milliseconds, the budget has room for all of them and no circuit opens, unless a test is
//! about just that: servers here fail on purpose, and are to be asked again all the same.

mod bodies;
mod counts;
mod ends;
mod keyed;
mod servers;
mod told;
mod which;

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::harness::{Gateway, Plan, Upstream, full};
use crate::wire_raw::{self, Conversation, ok};

/// Up to five attempts with hardly a wait in between, and a budget that is never spent.
pub(crate) const QUICK: &str = "[upstream.api.retry]\nbase = \"1ms\"\ncap = \"5ms\"\n\
                                budget = { floor = 1000000 }\n";

/// A gateway to these servers, with these lines under `[upstream.api]`.
pub(crate) fn before(servers: &[String], api: &str) -> Plan {
    ruled_before(servers, api, "mode = \"off\"")
}

/// One whose route has this rule for idempotency keys.
fn ruled_before(servers: &[String], api: &str, rule: &str) -> Plan {
    Gateway::with(&format!(
        "[upstream.api]\nservers = {servers:?}\n\
         breaker = {{ enabled = false }}\n{api}\n\
         [[route]]\nname = \"all\"\npath = \"/\"\nidempotency = {{ {rule} }}\n"
    ))
}

/// A server that answers with these statuses in turn, and with the last of them from then on. Each answer is
/// numbered in its body.
fn in_turn(statuses: &[u16]) -> Upstream {
    let statuses = statuses.to_vec();
    let answers = AtomicUsize::new(0);
    Upstream::with(move |_| {
        let number = answers.fetch_add(1, Ordering::SeqCst);
        let status = statuses[number.min(statuses.len() - 1)];
        async move {
            let mut reply = full(format!("answer {}", number + 1));
            *reply.status_mut() = status.try_into().expect("a status");
            reply
        }
    })
}

/// A server whose first connection follows this script, and which answers all else with the request's body.
fn at_first(script: impl Fn(&mut Conversation) + Send + Sync + 'static) -> wire_raw::Upstream {
    wire_raw::Upstream::scripted(move |conversation| {
        if conversation.number == 0 {
            script(conversation);
            return;
        }
        while let Some(request) = conversation.request() {
            conversation.send(ok(&String::from_utf8_lossy(&request.body)));
        }
    })
}

/// What a server does to its connection.
type Act = fn(&mut Conversation);

/// Ways to fail a request that was read, without an answer that anybody could pass on.
const LOSSES: [(&str, Act); 4] = [
    ("closes", |_| {}),
    ("resets", |conversation| conversation.will_reset()),
    ("breaks off amid a head", |conversation| {
        conversation.send("HTTP/1.1 200 OK\r\nContent-Le");
    }),
    ("does not speak HTTP", |conversation| {
        conversation.send("220 ready\r\n\r\n");
    }),
];

/// A server that loses the first request in this way.
fn losing(lose: Act) -> wire_raw::Upstream {
    at_first(move |conversation| {
        conversation.request();
        lose(conversation);
    })
}

/// How many requests with this method have begun to arrive.
fn arrived(upstream: &wire_raw::Upstream, method: &str) -> usize {
    upstream.received().matches(&format!("{method} /")).count()
}
