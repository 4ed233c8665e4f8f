//! Tests of failures of the upstream stage in the chain, and of what they mean for idempotency keys and limits.

use super::*;
use crate::metrics::RetryRejection;

/// Route with neither limits nor keys.
const LIMITLESS: &str = "[[route]]\nname = \"all\"\npath = \"/\"\n";

#[tokio::test]
async fn a_connect_failure_gives_502_and_releases_the_key() {
    let chain = Chain::without_upstream(LIMITED_AND_KEYED);
    for remaining in [2, 1] {
        let failed = chain.send(post("a")).await;
        failed.assert_problem(502, "upstream-unavailable");
        assert_eq!(failed.problem()["error"]["type"], "api_error");
        assert!(failed.problem().get("outcome").is_none());
        let text = String::from_utf8_lossy(&failed.body);
        assert!(!text.contains("127.0.0.1"), "the address is shown: {text}");
        // The limit stays charged.
        let expected = format!(r#""device";r={remaining};t=60"#);
        assert_eq!(failed.header("ratelimit"), Some(&*expected));
        let records = chain.records().await;
        assert_eq!((records.in_progress, records.unknown), (0, 0));
    }
}

#[tokio::test]
async fn connect_failures_of_a_sole_server_never_open_its_circuit() {
    let chain = Chain::without_upstream(KEYED);
    for _ in 0..50 {
        let failed = chain.send(get("/pay")).await;
        failed.assert_problem(502, "upstream-unavailable");
    }
}

#[tokio::test]
async fn an_open_circuit_gives_503_and_releases_the_key() {
    let config = format!("upstream.api.breaker.enabled = true\n{KEYED}");
    let chain = Chain::without_upstream(&config);
    for _ in 0..5 {
        chain
            .send(get("/pay"))
            .await
            .assert_problem(502, "upstream-unavailable");
    }
    let rejected = chain.send(post("a")).await;
    rejected.assert_problem(503, "circuit-open");
    assert!(rejected.header("retry-after").is_some());
    assert_eq!(chain.records().await.in_progress, 0);
}

#[tokio::test(start_paused = true)]
async fn a_keyed_request_without_a_response_in_time_has_an_unknown_outcome() {
    let chain = Chain::gated(KEYED, &Arc::new(Notify::new()));
    let start = tokio::time::Instant::now();
    let failed = chain.send(post("a")).await;
    assert_eq!(start.elapsed().as_secs(), 60);
    failed.assert_problem(504, "upstream-timeout");
    assert_eq!(failed.problem()["timeout"], "first-byte");
    assert_eq!(failed.problem()["outcome"], "unknown");
    let held = chain.send(post("a")).await;
    held.assert_problem(409, "idempotency-outcome-unknown");
    assert_eq!(held.header("x-should-retry"), Some("false"));
    assert_eq!((chain.executions(), chain.records().await.unknown), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_unknown_outcome_is_executed_again_with_on_unknown_release() {
    let config = KEYED.replace(" }", ", on_unknown = \"release\" }");
    let chain = Chain::with_upstream(&config, |number| async move {
        if number == 1 {
            future::pending::<()>().await;
        }
        created(number)
    });
    let failed = chain.send(post("a")).await;
    failed.assert_problem(504, "upstream-timeout");
    assert!(failed.problem().get("outcome").is_none());
    chain.send(post("a")).await.assert_created(2);
}

#[tokio::test]
async fn only_the_statuses_in_failures_open_the_circuit() {
    for (failures, opening, others) in [
        (
            "",
            &[502, 503, 504][..],
            &[400, 404, 429, 499, 500, 501, 505, 599][..],
        ),
        ("failures = \"5xx\"", &[500, 502, 503, 599], &[499, 429]),
        ("failures = [500]", &[500], &[502, 503, 504]),
        ("failures = []", &[], &[500, 503]),
    ] {
        for status in opening.iter().chain(others) {
            let breaker = format!("[upstream.api.breaker]\nconsecutive_failures = 2\n{failures}\n");
            let chain = Chain::with_statuses(&format!("{breaker}{LIMITLESS}"), &[*status]);
            for _ in 0..3 {
                chain.send(get("/")).await;
            }
            let expected = if opening.contains(status) { 2 } else { 3 };
            assert_eq!(chain.executions(), expected, "{status} {failures}");
        }
    }
}

#[tokio::test]
async fn a_client_that_waits_as_long_as_an_open_circuit_states_becomes_the_probe() {
    let breaker = "upstream.api.breaker = { consecutive_failures = 2, open = \"5s\" }\n";
    let chain = Chain::with_statuses(&format!("{breaker}{LIMITLESS}"), &[502, 502, 201]);
    for _ in 0..2 {
        assert_eq!(chain.send(get("/")).await.status, 502);
    }
    for _ in 0..20 {
        let rejected = chain.send(get("/")).await;
        rejected.assert_problem(503, "circuit-open");
    }
    let rejected = chain.send(get("/")).await;
    let wait: u64 = rejected.header("retry-after-ms").unwrap().parse().unwrap();
    // The open time varies by 10 %.
    assert!((4_500..=5_500).contains(&wait), "{wait} ms");
    let seconds = wait.div_ceil(1000).to_string();
    assert_eq!(rejected.header("retry-after"), Some(&*seconds));
    chain.advance(Duration::from_millis(wait));
    for number in 3..=5 {
        chain.send(get("/")).await.assert_created(number);
    }
}

#[tokio::test]
async fn the_configured_fallback_replaces_the_problem_document_of_an_open_circuit() {
    for (fallback, content_type, body) in [
        (
            "{ body = '{\"later\":true}', content_type = \"application/vnd.later+json\" }",
            "application/vnd.later+json",
            "{\"later\":true}",
        ),
        (
            "{ body = \"Bis später.\" }",
            "text/plain; charset=utf-8",
            "Bis später.",
        ),
    ] {
        let breaker = format!("{{ consecutive_failures = 1, fallback = {fallback} }}");
        let config = format!("upstream.api.breaker = {breaker}\n{LIMITLESS}");
        let chain = Chain::with_statuses(&config, &[502]);
        assert_eq!(chain.send(get("/")).await.body, "1");
        for method in [Method::GET, Method::POST] {
            let request = get("/").method(method).header("accept", "text/html");
            let response = chain.send(request).await;
            assert_eq!(
                (response.status.as_u16(), &*response.body),
                (503, body.as_bytes())
            );
            assert_eq!(response.header("content-type"), Some(content_type));
            assert_eq!(response.header("cache-control"), Some("no-store"));
            assert!(response.header("retry-after").is_some());
        }
        assert_eq!(chain.executions(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_response_is_forwarded_if_the_circuit_opens_before_its_retry() {
    let config =
        "upstream.api.breaker.consecutive_failures = 1\nupstream.api.retry.base = \"1ms\"\n";
    let chain = Chain::with_statuses(&format!("{config}{LIMITLESS}"), &[502]);
    assert_eq!(chain.send(get("/")).await.body, "1");
    let rejected = chain.send(get("/")).await;
    rejected.assert_problem(503, "circuit-open");
    let metrics = &chain.shared.metrics[0].upstreams[0];
    let by_circuit = metrics.retry_rejections[RetryRejection::Circuit as usize].get();
    assert_eq!((chain.executions(), by_circuit), (1, 1));
}

#[tokio::test]
async fn above_the_concurrency_limit_a_request_gets_503_and_its_key_is_released() {
    let gate = Arc::new(Notify::new());
    let config = format!("upstream.api.concurrency = {{ max = 1 }}\n{KEYED}");
    let chain = Chain::gated(&config, &gate);
    let first = chain.start(get("/pay"), 1).await;
    let rejected = chain.send(post("a")).await;
    rejected.assert_problem(503, "upstream-unavailable");
    assert_eq!(rejected.header("retry-after"), Some("1"));
    assert_eq!(chain.records().await, RecordCounts::default());
    gate.notify_one();
    first.await.unwrap().assert_created(1);
    gate.notify_one();
    chain.send(post("a")).await.assert_created(2);
}

#[tokio::test(start_paused = true)]
async fn timeouts_of_a_route_replace_those_of_its_upstream() {
    let config = r#"
        upstream.api.first_byte_timeout = "1s"
        [[route]]
        name = "poll"
        path = "/poll"
        first_byte_timeout = "10m"
        [[route]]
        name = "quick"
        path = "/quick"
        first_byte_timeout = "300ms"
        [[route]]
        name = "total"
        path = "/total"
        timeout = "300ms"
        [[route]]
        name = "all"
        path = "/"
    "#;
    let chain = Chain::gated(config, &Arc::new(Notify::new()));
    for (path, phase, millis) in [
        ("/poll", "first-byte", 600_000),
        ("/quick", "first-byte", 300),
        ("/total", "total", 300),
        ("/", "first-byte", 1_000),
    ] {
        let start = tokio::time::Instant::now();
        let failed = chain.send(get(path).method(Method::POST)).await;
        failed.assert_problem(504, "upstream-timeout");
        assert_eq!(failed.problem()["timeout"], phase, "{path}");
        assert_eq!(start.elapsed().as_millis(), millis, "{path}");
    }
    // The delay before a retry would end after `timeout`, so no retry follows.
    let retry = "upstream.api.retry = { base = \"5s\", cap = \"5s\", jitter = \"none\" }";
    let failing = Chain::with_statuses(&format!("{retry}\n{config}"), &[503, 200]);
    assert_eq!(failing.send(get("/total")).await.status, 503);
    assert_eq!(failing.send(get("/")).await.status, 200);
}
