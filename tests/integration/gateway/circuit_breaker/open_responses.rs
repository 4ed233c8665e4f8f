//! Tests of an open circuit: the responses of the gateway, and the effect on requests with an idempotency key.

use std::time::Duration;

use tidegate::idempotency::RecordCounts;

use super::{TWO_FAILURES, assert_rejected, send_failing_requests};
use crate::support::{Gateway, Upstream};

#[tokio::test]
async fn a_request_after_retry_after_succeeds_if_the_server_has_recovered() {
    let (upstream, switch) = Upstream::with_status_switch(502);
    let gateway = Gateway::with_servers(
        1,
        "breaker = { consecutive_failures = 2, open = \"1500ms\" }",
    )
    .upstream(&upstream)
    .start();
    send_failing_requests(&gateway, 2).await;
    switch.set_status(200);
    let rejected = gateway.client().get("/").send().await;
    assert_rejected(&rejected);
    let seconds = rejected.retry_after();
    assert!((1..=2).contains(&seconds), "Retry-After is {seconds} s");
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    assert_eq!(gateway.client().get("/").send().await.status, 200);
    assert_eq!(upstream.count(), 3);
}

#[tokio::test]
async fn the_configured_fallback_replaces_the_problem_document() {
    const FALLBACK: &str = r#"{"later":true}"#;
    let breaker = r#"
        [upstream.api.breaker]
        consecutive_failures = 2
        open = "1m"
        fallback = { body = '{"later":true}', content_type = "application/vnd.later+json" }
    "#;
    let (upstream, _) = Upstream::with_status_switch(502);
    let gateway = Gateway::with_servers(1, breaker)
        .upstream(&upstream)
        .start();
    send_failing_requests(&gateway, 2).await;
    for method in ["GET", "POST", "HEAD"] {
        let request = gateway.client().request(method, "/");
        let response = request.header("Accept", "text/html").send().await;
        assert_eq!(response.status, 503, "{method}");
        assert_eq!(
            response.header("content-type"),
            "application/vnd.later+json"
        );
        assert_eq!(response.header("cache-control"), "no-store");
        assert!(
            (1..=66).contains(&response.retry_after()),
            "unexpected Retry-After in the response to {method}"
        );
        let body = if method == "HEAD" { "" } else { FALLBACK };
        assert_eq!(response.text(), body, "{method}");
        assert_eq!(
            response.header("content-length"),
            FALLBACK.len().to_string()
        );
    }
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn a_fallback_without_content_type_is_plain_text() {
    let breaker = "breaker = { consecutive_failures = 1, fallback = { body = \"Bis später.\" } }";
    let (upstream, _) = Upstream::with_status_switch(502);
    let gateway = Gateway::with_servers(1, breaker)
        .upstream(&upstream)
        .start();
    send_failing_requests(&gateway, 1).await;
    let response = gateway.client().get("/").send().await;
    assert_eq!(response.status, 503);
    assert_eq!(response.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(response.text(), "Bis später.");
}

#[tokio::test]
async fn a_key_rejected_by_an_open_circuit_is_released() {
    let (upstream, switch) = Upstream::with_status_switch(502);
    let gateway = Gateway::with(&format!(
        "[upstream.api]\nservers = [\"{{upstream}}\"]\n{TWO_FAILURES}\n[[route]]\nname = \"all\"\n\
         path = \"/\"\nidempotency = {{ mode = \"optional\" }}\n"
    ))
    .upstream(&upstream)
    .admin()
    .start();
    send_failing_requests(&gateway, 2).await;
    switch.set_status(201);
    let send = async || {
        let request = gateway.client().post("/pay").key("k1").body("amount=1");
        request.send().await
    };
    for _ in 0..2 {
        let rejected = send().await;
        assert_rejected(&rejected);
        assert!(!rejected.is_replay());
        assert_eq!(gateway.counts(), RecordCounts::default());
    }
    let close = format!(
        "/admin/v1/upstreams/api/servers/{}/close",
        upstream.address()
    );
    assert_eq!(gateway.admin().post(&close).send().await.status, 200);
    let first = send().await;
    assert_eq!(first.status, 201, "{}", first.text());
    assert!(!first.is_replay());
    assert!(send().await.is_replay());
    assert_eq!(upstream.count(), 3);
}

#[tokio::test]
async fn a_response_is_forwarded_if_the_circuit_opens_before_a_retry() {
    let (upstream, _) = Upstream::with_status_switch(502);
    let api = "[upstream.api.breaker]\nconsecutive_failures = 1\nopen = \"1m\"\n\
               [upstream.api.retry]\nbase = \"1ms\"\ncap = \"5ms\"\n";
    let gateway = Gateway::with_servers(1, api)
        .upstream(&upstream)
        .admin()
        .start();
    send_failing_requests(&gateway, 1).await;
    assert_rejected(&gateway.client().get("/").send().await);
    assert_eq!(upstream.count(), 1);
    let rejected = "upstream_retries_rejected_total{upstream=\"api\",reason=\"circuit\"}";
    gateway.wait_for_metric(rejected, 1).await;
}
