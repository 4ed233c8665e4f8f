//! Tests of the order of the stages (rate limits before idempotency), and of requests whose idempotency key the gateway
//! forwards but does not claim.

use std::time::Duration;

use super::{assert_execution, assert_problem, assert_replay_of, numbered_executions};
use crate::support::{Gateway, Upstream};

/// Starts a gateway whose only route has an idempotency rule and a rate limit. `rate` contains the lines of the rate
/// limit.
fn limited(rate: &str, upstream: &Upstream) -> Gateway {
    Gateway::with(&format!(
        "[upstream.api]\nservers = [\"{{upstream}}\"]\n[limit.device]\n{rate}\n\
         [[route]]\nname = \"all\"\npath = \"/\"\nlimits = [\"device\"]\n\
         idempotency = {{ mode = \"optional\" }}\n"
    ))
    .upstream(upstream)
    .start()
}

#[tokio::test]
async fn a_rate_limited_request_claims_nothing() {
    let upstream = numbered_executions();
    let gateway = limited("rate = \"1/s\"\nburst = 0", &upstream);
    let send = |key: usize| gateway.client().post("/").key(&key.to_string()).send();
    let mut key = 0;
    let rejected = loop {
        // The test repeats both requests until the second one is rejected: on a busy machine a token can be refilled
        // between them.
        gateway.client().post("/").send().await;
        key += 1;
        let response = send(key).await;
        if response.status == 429 {
            break response;
        }
    };
    assert_eq!(rejected.problem(), "rate-limited");
    assert_eq!(gateway.counts().completed, key as u64 - 1);
    let executed = upstream.count();
    tokio::time::sleep(Duration::from_secs(rejected.retry_after())).await;
    assert_execution(&send(key).await, executed + 1);
}

#[tokio::test]
async fn a_replay_is_charged_and_states_the_current_tokens() {
    let upstream = numbered_executions();
    let gateway = limited("rate = \"4/h\"", &upstream);
    let send = || gateway.client().post("/").key("k1").send();
    let first = send().await;
    assert_execution(&first, 1);
    assert_eq!(first.remaining_tokens(), 3);
    for tokens in [2, 1, 0] {
        let replay = send().await;
        assert_replay_of(&replay, 1);
        assert_eq!(replay.remaining_tokens(), tokens);
        assert_eq!(
            replay.header("ratelimit-policy"),
            first.header("ratelimit-policy")
        );
    }
    let rejected = send().await;
    assert_eq!(
        (rejected.status, &*rejected.problem()),
        (429, "rate-limited")
    );
    assert!(!rejected.is_replay());
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn rejections_for_a_key_are_charged() {
    let upstream = numbered_executions();
    let gateway = limited("rate = \"3/h\"", &upstream);
    let send =
        |key: &str, body: &'static str| gateway.client().post("/").key(key).body(body).send();
    assert_execution(&send("k1", "").await, 1);
    let reused = send("k1", "other").await;
    assert_problem(&reused, 422, "idempotency-key-reused");
    assert_eq!(reused.remaining_tokens(), 1);
    let invalid = send("no key", "").await;
    assert_problem(&invalid, 400, "idempotency-key-invalid");
    assert_eq!(invalid.remaining_tokens(), 0);
    assert_eq!(send("k1", "").await.status, 429);
}

#[tokio::test]
async fn other_methods_are_forwarded_each_time_whatever_their_key() {
    let upstream = numbered_executions();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let mut sent = 0;
    for method in ["GET", "HEAD", "DELETE", "PUT", "OPTIONS", "POSTS"] {
        for key in ["k1", "k1", "no key", ""] {
            let response = gateway.client().request(method, "/").key(key).send().await;
            sent += 1;
            assert_eq!((response.status, response.is_replay()), (201, false));
            assert_eq!(upstream.count(), sent, "{method} {key}");
            assert_eq!(upstream.last().header("idempotency-key"), key);
        }
    }
    // The requests above created no idempotency records, so this POST request with the same key is executed.
    assert_execution(&gateway.client().post("/").key("k1").send().await, sent + 1);
    let response = gateway.client().request("GET", "/").key("k1").send().await;
    assert_execution(&response, sent + 2);
}

#[tokio::test]
async fn methods_selects_the_methods_whose_keys_count() {
    let upstream = numbered_executions();
    let gateway = Gateway::keyed("methods = [\"PUT\", \"DELETE\"]")
        .upstream(&upstream)
        .start();
    let send = |method: &str, key: &str| gateway.client().request(method, "/").key(key).send();
    assert_execution(&send("PUT", "k1").await, 1);
    assert_replay_of(&send("PUT", "k1").await, 1);
    assert_execution(&send("DELETE", "k2").await, 2);
    assert_replay_of(&send("DELETE", "k2").await, 2);
    assert_execution(&send("POST", "k1").await, 3);
    assert_execution(&send("POST", "k1").await, 4);
}

#[tokio::test]
async fn on_a_route_without_idempotency_keys_are_only_forwarded() {
    for idempotency in ["", "idempotency = { mode = \"off\" }"] {
        let upstream = numbered_executions();
        let gateway = Gateway::with(&format!(
            "[upstream.api]\nservers = [\"{{upstream}}\"]\n[[route]]\nname = \"all\"\npath = \"/\"\n\
             {idempotency}\n"
        ))
        .upstream(&upstream)
        .start();
        for (number, key) in (1..).zip(["k1", "k1", "\"k1\"", "not a key"]) {
            let request = gateway.client().post("/").key(key);
            assert_execution(&request.send().await, number);
            assert_eq!(upstream.last().header("idempotency-key"), key);
        }
        let two = gateway.client().post("/").key("k1").key("k2").send().await;
        assert_execution(&two, 5);
        assert_eq!(upstream.last().header("idempotency-key"), "k1, k2");
    }
}

#[tokio::test]
async fn two_routes_share_the_keys_of_a_caller() {
    let upstream = numbered_executions();
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
    let send = |path: &str| gateway.client().post(path).key("k1").send();
    assert_execution(&send("/pay").await, 1);
    // The client uses one key for two different requests, which is a client error. It must not get the response of the
    // first request.
    assert_problem(&send("/refund").await, 422, "idempotency-key-reused");
    assert_replay_of(&send("/pay").await, 1);
}
