//! Tests of the throttle stage in the chain.

use serde_json::json;

use super::*;

#[tokio::test]
async fn a_429_states_the_limit_and_the_exact_wait() {
    let chain = Chain::new(LIMITED);
    for number in 1..=3 {
        chain.send(get("/")).await.assert_created(number);
    }
    chain.advance(Duration::from_millis(29_500));
    let rejected = chain.send(get("/")).await;
    for (name, expected) in [
        ("retry-after", "31"),
        ("retry-after-ms", "30500"),
        ("x-should-retry", "true"),
        ("ratelimit-policy", r#""device";q=3;w=180"#),
        ("ratelimit", r#""device";r=0;t=31"#),
        ("cache-control", "no-store"),
    ] {
        assert_eq!(rejected.header(name), Some(expected), "{name}");
    }
    let title = "Too many requests";
    let detail = "The rate limit 'device' is exceeded. Wait 31 seconds before the next request.";
    assert_eq!(
        rejected.problem(),
        json!({
            "type": "urn:tidegate:problem:rate-limited",
            "title": title,
            "status": 429,
            "detail": detail,
            "retry_after": 31,
            "violated-policies": ["device"],
            "error": {
                "type": "rate_limit_error",
                "code": "rate-limited",
                "message": format!("{title}: {detail}"),
            },
        })
    );
}

#[tokio::test]
async fn a_client_that_waits_as_long_as_a_429_states_is_admitted() {
    let chain = Chain::new(LIMITED);
    for number in 1..=3 {
        chain.send(get("/")).await.assert_created(number);
    }
    chain
        .send(get("/"))
        .await
        .assert_problem(429, "rate-limited");
    chain.advance(Duration::from_millis(59_999));
    let early = chain.send(get("/")).await;
    early.assert_problem(429, "rate-limited");
    assert_eq!(early.header("retry-after-ms"), Some("1"));
    assert_eq!(chain.executions(), 3);
    chain.advance(Duration::from_millis(1));
    chain.send(get("/")).await.assert_created(4);
    chain
        .send(get("/"))
        .await
        .assert_problem(429, "rate-limited");
}

#[tokio::test]
async fn a_request_takes_the_cost_of_its_route() {
    let chain = Chain::new(
        r#"
        [limit.device]
        rate = "1/m"
        burst = 4
        [[route]]
        name = "report"
        path = "/report"
        limits = ["device"]
        cost = 3
        [[route]]
        name = "other"
        path = "/"
        limits = ["device"]
        "#,
    );
    let report = chain.send(get("/report")).await;
    assert_eq!(report.header("ratelimit"), Some(r#""device";r=2;t=60"#));
    // Two tokens are left: too few for the cost of 3, which takes none of them.
    chain
        .send(get("/report"))
        .await
        .assert_problem(429, "rate-limited");
    chain.send(get("/")).await.assert_created(2);
    chain.send(get("/")).await.assert_created(3);
    chain
        .send(get("/"))
        .await
        .assert_problem(429, "rate-limited");
}

#[tokio::test]
async fn an_exempt_client_is_not_charged_and_gets_no_rate_limit_headers() {
    let chain = Chain::new(&format!("client.exempt = [\"192.0.2.1\"]\n{LIMITED}"));
    for number in 1..=5 {
        let response = chain.send(get("/")).await;
        response.assert_created(number);
        assert!(response.header("ratelimit").is_none());
    }
    let other = chain.send_from("192.0.2.2", get("/"), "").await;
    assert_eq!(other.header("ratelimit"), Some(r#""device";r=2;t=60"#));
}

#[tokio::test]
async fn a_shadow_limit_counts_what_it_would_reject_and_rejects_nothing() {
    let chain = Chain::new(
        r#"
        [limit.trial]
        rate = "1/m"
        mode = "shadow"
        [[route]]
        name = "all"
        path = "/"
        limits = ["trial"]
        "#,
    );
    for number in 1..=3 {
        let response = chain.send(get("/")).await;
        response.assert_created(number);
        assert!(response.header("ratelimit").is_none());
    }
    let limit = &chain.shared.metrics[0].limits[0];
    assert_eq!((limit.rejected.get(), limit.shadow_rejected.get()), (0, 2));
}

#[tokio::test]
async fn all_limits_of_a_route_are_charged_or_none_is() {
    let chain = Chain::new(
        r#"
        [limit.fast]
        rate = "5/m"
        [limit.slow]
        rate = "1/h"
        [[route]]
        name = "both"
        path = "/both"
        limits = ["fast", "slow"]
        [[route]]
        name = "fast"
        path = "/fast"
        limits = ["fast"]
        "#,
    );
    chain.send(get("/both")).await.assert_created(1);
    let rejected = chain.send(get("/both")).await;
    rejected.assert_problem(429, "rate-limited");
    assert_eq!(rejected.problem()["violated-policies"], json!(["slow"]));
    assert_eq!(
        rejected.header("ratelimit"),
        Some(r#""slow";r=0;t=3600, "fast";r=4;t=12"#)
    );
    // The rejected request took no token from the limit that admitted it.
    let fast = chain.send(get("/fast")).await;
    assert_eq!(fast.header("ratelimit"), Some(r#""fast";r=3;t=12"#));
}

#[tokio::test(start_paused = true)]
async fn a_delaying_limit_forwards_a_request_when_its_slot_begins() {
    let chain = Chain::new(
        r#"
        [limit.pace]
        rate = "2/s"
        burst = 0
        on_exceed = "delay"
        max_delay = "500ms"
        [[route]]
        name = "all"
        path = "/"
        limits = ["pace"]
        "#,
    );
    let start = tokio::time::Instant::now();
    chain.send(get("/")).await.assert_created(1);
    assert_eq!(start.elapsed(), Duration::ZERO);
    chain.send(get("/")).await.assert_created(2);
    let waited = start.elapsed();
    assert!((500..510).contains(&waited.as_millis()), "{waited:?}");
    // The virtual clock of the limit does not advance, so the next slot is beyond `max_delay`.
    chain
        .send(get("/"))
        .await
        .assert_problem(429, "rate-limited");
    assert_eq!(chain.executions(), 2);
}
