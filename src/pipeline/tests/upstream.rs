//! Tests of failures of the upstream stage in the chain, and of what they mean for idempotency keys and limits.

use super::*;

#[tokio::test]
async fn a_connect_failure_gives_502_and_releases_the_key() {
    let chain = Chain::without_upstream(LIMITED_AND_KEYED);
    for remaining in [2, 1] {
        let failed = chain.send(post("a")).await;
        failed.assert_problem(502, "upstream-unavailable");
        assert_eq!(failed.problem()["error"]["type"], "api_error");
        assert!(failed.problem().get("outcome").is_none());
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

#[tokio::test(start_paused = true)]
async fn only_a_request_that_is_safe_to_repeat_is_retried() {
    let config = format!("upstream.api.retry.attempts = 2\n{KEYED}");
    let chain = Chain::with_upstream(&config, |number| async move {
        let mut response = created(number);
        if number % 2 == 1 {
            *response.status_mut() = StatusCode::BAD_GATEWAY;
        }
        response
    });
    chain.send(get("/pay")).await.assert_created(2);
    let unkeyed = chain.send(get("/pay").method(Method::POST)).await;
    assert_eq!(
        (unkeyed.status, &*unkeyed.body),
        (StatusCode::BAD_GATEWAY, &b"3"[..])
    );
}
