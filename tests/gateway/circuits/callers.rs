//! What callers get while a circuit is open, and what that means for their keys.

use std::time::Duration;

use tidegate::idempotency::RecordCounts;

use super::{STRICT, fails, is_refused};
use crate::harness::{Gateway, Upstream};

#[tokio::test]
async fn whoever_waits_as_long_as_told_gets_through_if_the_server_is_back() {
    let (upstream, mood) = Upstream::moody(502);
    let gateway = Gateway::before(
        1,
        "breaker = { consecutive_failures = 2, open = \"1500ms\" }",
    )
    .upstream(&upstream)
    .start();
    fails(&gateway, 2).await;
    mood.becomes(200);
    let refused = gateway.client().get("/").send().await;
    is_refused(&refused);
    let told = refused.retry_after();
    assert!((1..=2).contains(&told), "{told}");
    tokio::time::sleep(Duration::from_secs(told)).await;
    assert_eq!(gateway.client().get("/").send().await.status, 200);
    assert_eq!(upstream.count(), 3);
}

#[tokio::test]
async fn the_words_of_the_configuration_are_said_instead_of_the_gateways_own() {
    const WORDS: &str = r#"{"later":true}"#;
    let breaker = r#"
        [upstream.api.breaker]
        consecutive_failures = 2
        open = "1m"
        fallback = { body = '{"later":true}', content_type = "application/vnd.later+json" }
    "#;
    let (upstream, _) = Upstream::moody(502);
    let gateway = Gateway::before(1, breaker).upstream(&upstream).start();
    fails(&gateway, 2).await;
    for method in ["GET", "POST", "HEAD"] {
        let asking = gateway.client().request(method, "/");
        let answer = asking.header("Accept", "text/html").send().await;
        assert_eq!(answer.status, 503, "{method}");
        assert_eq!(answer.header("content-type"), "application/vnd.later+json");
        assert_eq!(answer.header("cache-control"), "no-store");
        assert!((1..=66).contains(&answer.retry_after()), "{method}");
        let body = if method == "HEAD" { "" } else { WORDS };
        assert_eq!(answer.text(), body, "{method}");
        assert_eq!(answer.header("content-length"), WORDS.len().to_string());
    }
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn words_without_a_type_are_plain_text() {
    let breaker = "breaker = { consecutive_failures = 1, fallback = { body = \"Bis später.\" } }";
    let (upstream, _) = Upstream::moody(502);
    let gateway = Gateway::before(1, breaker).upstream(&upstream).start();
    fails(&gateway, 1).await;
    let answer = gateway.client().get("/").send().await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
    assert_eq!(answer.text(), "Bis später.");
}

#[tokio::test]
async fn a_key_refused_by_an_open_circuit_is_free_and_nothing_is_kept() {
    let (upstream, mood) = Upstream::moody(502);
    let gateway = Gateway::with(&format!(
        "[upstream.api]\nservers = [\"{{upstream}}\"]\n{STRICT}\n[[route]]\nname = \"all\"\n\
         path = \"/\"\nidempotency = {{ mode = \"optional\" }}\n"
    ))
    .upstream(&upstream)
    .admin()
    .start();
    fails(&gateway, 2).await;
    mood.becomes(201);
    let ask = async || {
        let asking = gateway.client().post("/pay").key("k1").body("amount=1");
        asking.send().await
    };
    for _ in 0..2 {
        let refused = ask().await;
        is_refused(&refused);
        assert!(!refused.is_replay());
        assert_eq!(gateway.counts(), RecordCounts::default());
    }
    let close = format!("/upstreams/api/servers/{}/close", upstream.address());
    assert_eq!(gateway.admin().post(&close).send().await.status, 200);
    let first = ask().await;
    assert_eq!(first.status, 201, "{}", first.text());
    assert!(!first.is_replay());
    assert!(ask().await.is_replay());
    assert_eq!(upstream.count(), 3);
}

#[tokio::test]
async fn an_answer_is_passed_on_where_no_circuit_would_let_another_attempt_pass() {
    let (upstream, _) = Upstream::moody(502);
    let api = "[upstream.api.breaker]\nconsecutive_failures = 1\nopen = \"1m\"\n\
               [upstream.api.retry]\nbase = \"1ms\"\ncap = \"5ms\"\n";
    let gateway = Gateway::before(1, api).upstream(&upstream).admin().start();
    fails(&gateway, 1).await;
    is_refused(&gateway.client().get("/").send().await);
    assert_eq!(upstream.count(), 1);
    let refused = "upstream_retries_refused_total{upstream=\"api\",reason=\"circuit\"}";
    gateway.comes_to(refused, 1).await;
}
