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

/// The worked example of the documentation.
#[tokio::test]
async fn one_request_per_second_with_a_burst_of_three_is_admitted_as_documented() {
    let chain = Chain::new(&limited("rate = \"1/s\"\nburst = 3"));
    let mut before = 0;
    for (at, is_admitted) in [
        (0, true),
        (300, true),
        (600, true),
        (900, true),
        (1_200, true),
        (1_400, false),
        (1_600, false),
        (1_800, false),
        (2_100, true),
    ] {
        chain.advance(Duration::from_millis(at - before));
        before = at;
        let response = chain.send(get("/")).await;
        assert_eq!(response.status.is_success(), is_admitted, "{at} ms");
    }
}

#[tokio::test]
async fn the_key_of_a_limit_selects_the_bucket() {
    type Rows = &'static [(&'static str, &'static str, u16)];
    let cases: [(&str, Rows); 4] = [
        (
            "\"client\"",
            &[
                ("192.0.2.1", "", 201),
                ("192.0.2.2", "", 201),
                ("192.0.2.1", "", 429),
            ],
        ),
        (
            "\"global\"",
            &[("192.0.2.1", "", 201), ("192.0.2.2", "", 429)],
        ),
        (
            "\"header:X-Api-Key\"",
            &[
                ("192.0.2.1", "x-api-key: a", 201),
                ("192.0.2.2", "x-api-key: a", 429),
                ("192.0.2.1", "x-api-key: b", 201),
                ("192.0.2.1", "", 201),
                ("192.0.2.1", "", 429),
                ("192.0.2.2", "", 201),
            ],
        ),
        (
            "[\"client\", \"header:X-Tenant\"]",
            &[
                ("192.0.2.1", "x-tenant: a", 201),
                ("192.0.2.1", "x-tenant: b", 201),
                ("192.0.2.2", "x-tenant: a", 201),
                ("192.0.2.1", "x-tenant: a", 429),
            ],
        ),
    ];
    for (key, rows) in cases {
        let chain = Chain::new(&limited(&format!("rate = \"1/h\"\nkey = {key}")));
        for (peer, lines, status) in rows {
            let response = chain.send_from(peer, with_lines(get("/"), lines), "").await;
            assert_eq!(response.status, *status, "{key}: {peer} {lines}");
        }
    }
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

fn delaying(limit: &str) -> String {
    limited(&format!("burst = 0\non_exceed = \"delay\"\n{limit}"))
}

/// The virtual clock of a limit advances only if the test says so, and the timers of the requests advance by
/// themselves. The limit thus assigns all slots at the same time.
#[tokio::test(start_paused = true)]
async fn a_delaying_limit_forwards_each_request_when_its_slot_begins() {
    let chain = Chain::new(&delaying("rate = \"2/s\"\nmax_delay = \"1s\""));
    let start = tokio::time::Instant::now();
    for (number, slot) in (1..).zip([0, 500, 1000]) {
        chain.send(get("/")).await.assert_created(number);
        let waited = start.elapsed().as_millis();
        // The timer of the second request starts when the first has its response.
        let earlier: u128 = [0, 0, 500][number - 1];
        assert!(
            (slot + earlier..slot + earlier + 10).contains(&waited),
            "{waited} ms"
        );
    }
    for _ in 0..3 {
        let rejected = chain.send(get("/")).await;
        rejected.assert_problem(429, "rate-limited");
        // The slot is 1.5 s away, and takes 0.5 s to be within `max_delay`.
        assert_eq!(rejected.header("retry-after-ms"), Some("500"));
    }
    assert_eq!(chain.executions(), 3);
    let metrics = &chain.shared.metrics[0];
    assert_eq!(metrics.routes[0].delayed.get(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_slot_of_a_delayed_request_whose_client_disconnects_is_spent() {
    let chain = Chain::new(&delaying("rate = \"1/3s\"\nmax_delay = \"30s\""));
    chain.send(get("/first")).await.assert_created(1);
    let mut leaving = Box::pin(chain.send(get("/leaves")));
    assert!(futures_util::poll!(leaving.as_mut()).is_pending());
    drop(leaving);
    let start = tokio::time::Instant::now();
    chain.send(get("/last")).await.assert_created(2);
    assert_eq!(start.elapsed().as_secs(), 6);
    assert_eq!(chain.received.lock()[1].0.uri, "/last");
}

#[tokio::test(start_paused = true)]
async fn of_two_delaying_limits_the_longer_wait_counts_and_in_shadow_mode_neither() {
    let delaying = |rate: &str, mode: &str| {
        let lines = "on_exceed = \"delay\"\nmax_delay = \"2h\"\nburst = 0";
        format!("rate = \"{rate}\"\nmode = \"{mode}\"\n{lines}")
    };
    for (mode, seconds) in [("enforce", 1), ("shadow", 0)] {
        let (short, long) = (delaying("10/s", mode), delaying("1/s", mode));
        let chain = Chain::new(&limited_by(&[("short", &short), ("long", &long)]));
        let start = tokio::time::Instant::now();
        chain.send(get("/")).await.assert_created(1);
        chain.send(get("/")).await.assert_created(2);
        assert_eq!(start.elapsed().as_secs(), seconds, "{mode}");
    }
}
