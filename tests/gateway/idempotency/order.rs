//! Throttle first, then the key: and what is not a matter of keys passes.

use std::time::Duration;

use super::{is_execution, is_problem, is_replay_of, numbering};
use crate::harness::{Answer, Gateway, Upstream};

/// A gateway whose only route takes keys and is held to this rate.
fn limited(rate: &str, upstream: &Upstream) -> Gateway {
    Gateway::with(&format!(
        "[upstream.api]\nservers = [\"{{upstream}}\"]\n[limit.device]\n{rate}\n\
         [[route]]\nname = \"all\"\npath = \"/\"\nlimits = [\"device\"]\n\
         idempotency = {{ mode = \"optional\" }}\n"
    ))
    .upstream(upstream)
    .start()
}

/// Tokens left, as its one `RateLimit` line says.
fn left(answer: &Answer) -> u32 {
    assert_eq!(answer.headers.get_all("ratelimit").iter().count(), 1);
    let line = answer.header("ratelimit");
    let (_, rest) = line.split_once("r=").expect("tokens left");
    let digits = rest.split(';').next().expect("a number");
    digits.parse().expect("a number")
}

#[tokio::test]
async fn a_throttled_request_claims_nothing() {
    let upstream = numbering();
    let gateway = limited("rate = \"1/s\"\nburst = 0", &upstream);
    let ask = |key: usize| gateway.client().post("/").key(&key.to_string()).send();
    let mut key = 0;
    let refused = loop {
        // On a busy machine a token may have come back between the two.
        gateway.client().post("/").send().await;
        key += 1;
        let answer = ask(key).await;
        if answer.status == 429 {
            break answer;
        }
    };
    assert_eq!(refused.problem(), "rate-limited");
    assert_eq!(gateway.counts().completed, key as u64 - 1);
    let sent = upstream.count();
    tokio::time::sleep(Duration::from_secs(refused.retry_after())).await;
    is_execution(&ask(key).await, sent + 1);
}

#[tokio::test]
async fn a_replay_is_charged_and_says_what_is_left_now() {
    let upstream = numbering();
    let gateway = limited("rate = \"4/h\"", &upstream);
    let ask = || gateway.client().post("/").key("k1").send();
    let first = ask().await;
    is_execution(&first, 1);
    assert_eq!(left(&first), 3);
    for tokens in [2, 1, 0] {
        let replay = ask().await;
        is_replay_of(&replay, 1);
        assert_eq!(left(&replay), tokens);
        assert_eq!(
            replay.header("ratelimit-policy"),
            first.header("ratelimit-policy")
        );
    }
    let refused = ask().await;
    assert_eq!((refused.status, &*refused.problem()), (429, "rate-limited"));
    assert!(!refused.is_replay());
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn refusals_for_a_key_are_charged_too() {
    let upstream = numbering();
    let gateway = limited("rate = \"3/h\"", &upstream);
    let ask = |key: &str, body: &'static str| gateway.client().post("/").key(key).body(body).send();
    is_execution(&ask("k1", "").await, 1);
    let reused = ask("k1", "other").await;
    is_problem(&reused, 422, "idempotency-key-reused");
    assert_eq!(left(&reused), 1);
    let invalid = ask("no key", "").await;
    is_problem(&invalid, 400, "idempotency-key-invalid");
    assert_eq!(left(&invalid), 0);
    assert_eq!(ask("k1", "").await.status, 429);
}

#[tokio::test]
async fn other_methods_pass_each_time_whatever_their_key() {
    let upstream = numbering();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let mut sent = 0;
    for method in ["GET", "HEAD", "DELETE", "PUT", "OPTIONS", "POSTS"] {
        for key in ["k1", "k1", "no key", ""] {
            let answer = gateway.client().request(method, "/").key(key).send().await;
            sent += 1;
            assert_eq!((answer.status, answer.is_replay()), (201, false));
            assert_eq!(upstream.count(), sent, "{method} {key}");
            assert_eq!(upstream.last().header("idempotency-key"), key);
        }
    }
    // They have left nothing behind.
    is_execution(&gateway.client().post("/").key("k1").send().await, sent + 1);
    let answer = gateway.client().request("GET", "/").key("k1").send().await;
    is_execution(&answer, sent + 2);
}

#[tokio::test]
async fn a_route_may_name_the_methods_whose_keys_count() {
    let upstream = numbering();
    let gateway = Gateway::keyed("methods = [\"PUT\", \"DELETE\"]")
        .upstream(&upstream)
        .start();
    let ask = |method: &str, key: &str| gateway.client().request(method, "/").key(key).send();
    is_execution(&ask("PUT", "k1").await, 1);
    is_replay_of(&ask("PUT", "k1").await, 1);
    is_execution(&ask("DELETE", "k2").await, 2);
    is_replay_of(&ask("DELETE", "k2").await, 2);
    is_execution(&ask("POST", "k1").await, 3);
    is_execution(&ask("POST", "k1").await, 4);
}

#[tokio::test]
async fn where_a_route_has_no_say_on_keys_they_are_only_forwarded() {
    for idempotency in ["", "idempotency = { mode = \"off\" }"] {
        let upstream = numbering();
        let gateway = Gateway::with(&format!(
            "[upstream.api]\nservers = [\"{{upstream}}\"]\n[[route]]\nname = \"all\"\npath = \"/\"\n\
             {idempotency}\n"
        ))
        .upstream(&upstream)
        .start();
        for (number, key) in (1..).zip(["k1", "k1", "\"k1\"", "not a key"]) {
            let asking = gateway.client().post("/").key(key);
            is_execution(&asking.send().await, number);
            assert_eq!(upstream.last().header("idempotency-key"), key);
        }
        let two = gateway.client().post("/").key("k1").key("k2").send().await;
        is_execution(&two, 5);
        assert_eq!(upstream.last().header("idempotency-key"), "k1, k2");
    }
}

#[tokio::test]
async fn two_routes_share_the_keys_of_a_caller() {
    let upstream = numbering();
    let gateway = Gateway::with(
        r#"
        [upstream.api]
        servers = ["{upstream}"]
        [[route]]
        name = "pay"
        path = "/pay"
        idempotency = { mode = "optional" }
        [[route]]
        name = "rest"
        path = "/"
        idempotency = { mode = "optional" }
        "#,
    )
    .upstream(&upstream)
    .start();
    let ask = |path: &str| gateway.client().post(path).key("k1").send();
    is_execution(&ask("/pay").await, 1);
    // A key is for one request, so this is a mistake of the client's and never the other's answer.
    is_problem(&ask("/refund").await, 422, "idempotency-key-reused");
    is_replay_of(&ask("/pay").await, 1);
}
