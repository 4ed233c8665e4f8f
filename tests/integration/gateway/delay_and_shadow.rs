//! Tests of rate limits that delay requests, and of rate limits in shadow mode.

use std::time::{Duration, Instant};

use crate::support::{Gateway, Upstream, eventually};

/// Maximum time by which a delayed request can arrive earlier than calculated. Timers can fire this much too early.
/// Late timers cannot make these tests fail.
const TOLERANCE: Duration = Duration::from_millis(20);

#[tokio::test]
async fn a_leaky_bucket_passes_a_burst_and_delays_the_rest() {
    let upstream = Upstream::replying(200);
    let gateway =
        Gateway::limited("rate = \"2/s\"\nburst = 1\non_exceed = \"delay\"\nmax_delay = \"10s\"")
            .upstream(&upstream)
            .admin()
            .start();
    let client = gateway.client();
    let start = Instant::now();
    let pending: Vec<_> = (0..6)
        .map(|_| {
            let request = client.get("/").send();
            tokio::spawn(async move { (request.await.status, start.elapsed()) })
        })
        .collect();
    let mut delays = Vec::new();
    for response in pending {
        let (status, after) = response.await.expect("a response arrives");
        assert_eq!(status, 200);
        delays.push(after);
    }
    delays.sort();
    // Two requests pass immediately, and one more every 500 ms after the first request.
    for (number, after) in delays.iter().enumerate().skip(2) {
        let slot =
            Duration::from_millis(500) * u32::try_from(number - 1).expect("the number is small");
        assert!(
            *after + TOLERANCE >= slot,
            "request {number} was forwarded after {after:?}, before its slot at {slot:?}"
        );
    }
    assert!(gateway.metric("delayed_total{route=\"all\"}").await >= 1.0);
}

#[tokio::test]
async fn a_request_above_max_delay_is_rejected_and_takes_no_slot() {
    let upstream = Upstream::replying(200);
    let gateway =
        Gateway::limited("rate = \"1/20s\"\nburst = 0\non_exceed = \"delay\"\nmax_delay = \"5s\"")
            .upstream(&upstream)
            .start();
    let client = gateway.client();
    assert_eq!(client.get("/").send().await.status, 200);
    for _ in 0..3 {
        let rejected = client.get("/").send().await;
        assert_eq!(rejected.status, 429);
        // `Retry-After` is the time until a request would be delayed by at most `max_delay`. The next slot is at most
        // 20 s away and `max_delay` is 5 s, so `Retry-After` is at most 15 s. The range has a tolerance of 5 s.
        assert!(
            (10..=20).contains(&rejected.retry_after()),
            "unexpected Retry-After: {rejected:?}"
        );
    }
}

#[tokio::test]
async fn a_delayed_request_whose_client_disconnects_is_not_forwarded_and_its_slot_is_spent() {
    let upstream = Upstream::replying(200);
    let gateway =
        Gateway::limited("rate = \"1/3s\"\nburst = 0\non_exceed = \"delay\"\nmax_delay = \"30s\"")
            .upstream(&upstream)
            .admin()
            .start();
    let client = gateway.client();
    let start = Instant::now();
    assert_eq!(client.get("/first").send().await.status, 200);
    let leaving = tokio::spawn(client.get("/leaves").send());
    let mut delayed = 0.0;
    while delayed < 1.0 {
        delayed = gateway.metric("delayed_total{route=\"all\"}").await;
    }
    leaving.abort();
    assert!(
        leaving.await.is_err(),
        "the request got a response before its client disconnected"
    );
    assert_eq!(client.get("/last").send().await.status, 200);
    // The request `/leaves` used the slot at 3 s, although its client disconnected. So the request `/last` waited for
    // the slot at 6 s.
    assert!(start.elapsed() + TOLERANCE >= Duration::from_secs(6));
    let targets: Vec<_> = upstream.requests().into_iter().map(|r| r.target).collect();
    assert_eq!(targets, ["/first", "/last"]);
}

#[tokio::test]
async fn with_two_limits_the_longer_wait_counts() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::with(
        r#"
        [upstream.api]
        servers = ["{upstream}"]
        [limit.short]
        rate = "10/s"
        burst = 0
        on_exceed = "delay"
        max_delay = "10s"
        [limit.long]
        rate = "1/s"
        on_exceed = "delay"
        max_delay = "10s"
        [[route]]
        name = "all"
        path = "/"
        limits = ["short", "long"]
        "#,
    )
    .upstream(&upstream)
    .start();
    let client = gateway.client();
    let start = Instant::now();
    assert_eq!(client.get("/").send().await.status, 200);
    assert_eq!(client.get("/").send().await.status, 200);
    assert!(start.elapsed() + TOLERANCE >= Duration::from_secs(1));
}

#[tokio::test]
async fn a_shadow_limit_changes_only_metrics() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited("rate = \"1/h\"\nmode = \"shadow\"")
        .upstream(&upstream)
        .admin()
        .start();
    for _ in 0..5 {
        let response = gateway.client().get("/").send().await;
        assert_eq!(response.status, 200);
        assert!(!response.has("ratelimit") && !response.has("ratelimit-policy"));
    }
    eventually("the upstream has received five requests", async || {
        upstream.count() == 5
    })
    .await;
    assert_eq!(metric(&gateway, "shadow_rejected_total").await, 4);
    assert_eq!(metric(&gateway, "rejected_total").await, 0);
}

#[tokio::test]
async fn a_delaying_shadow_limit_delays_no_request() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited(
        "rate = \"1/h\"\nburst = 0\nmode = \"shadow\"\non_exceed = \"delay\"\nmax_delay = \"2h\"",
    )
    .upstream(&upstream)
    .start();
    for _ in 0..3 {
        assert_eq!(gateway.client().get("/").send().await.status, 200);
    }
}

#[expect(clippy::cast_possible_truncation, reason = "small counts")]
async fn metric(gateway: &Gateway, name: &str) -> i64 {
    gateway
        .metric(&format!("{name}{{route=\"all\",limit=\"device\"}}"))
        .await as i64
}
