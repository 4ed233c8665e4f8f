//! Limits that make requests wait, and limits that only watch.

use std::time::{Duration, Instant};

use crate::harness::{Gateway, Upstream, eventually};

/// Timers may be late on a busy machine, never early.
const EARLY: Duration = Duration::from_millis(20);

#[tokio::test]
async fn a_leaky_bucket_passes_a_burst_and_spaces_what_follows() {
    let upstream = Upstream::replying(200);
    let gateway =
        Gateway::limited("rate = \"2/s\"\nburst = 1\non_exceed = \"delay\"\nmax_delay = \"10s\"")
            .upstream(&upstream)
            .admin()
            .start();
    let client = gateway.client();
    let start = Instant::now();
    let asked: Vec<_> = (0..6)
        .map(|_| {
            let asking = client.get("/").send();
            tokio::spawn(async move { (asking.await.status, start.elapsed()) })
        })
        .collect();
    let mut answered = Vec::new();
    for answer in asked {
        let (status, after) = answer.await.expect("answered");
        assert_eq!(status, 200);
        answered.push(after);
    }
    answered.sort();
    // Two at once, then one slot every half second; the clock of the slots starts with the first arrival.
    for (place, after) in answered.iter().enumerate().skip(2) {
        let slot = Duration::from_millis(500) * u32::try_from(place - 1).expect("small");
        assert!(*after + EARLY >= slot, "number {place} after {after:?}");
    }
    assert!(gateway.metric("delayed_total{route=\"all\"}").await >= 1.0);
}

#[tokio::test]
async fn a_request_that_would_wait_too_long_is_refused_and_takes_no_slot() {
    let upstream = Upstream::replying(200);
    let gateway =
        Gateway::limited("rate = \"1/20s\"\nburst = 0\non_exceed = \"delay\"\nmax_delay = \"5s\"")
            .upstream(&upstream)
            .start();
    let client = gateway.client();
    assert_eq!(client.get("/").send().await.status, 200);
    for _ in 0..3 {
        let refused = client.get("/").send().await;
        assert_eq!(refused.status, 429);
        // When the wait is one it may make: 20 s to the slot, 5 s of them spent waiting.
        assert!((10..=20).contains(&refused.retry_after()), "{refused:?}");
    }
}

#[tokio::test]
async fn a_client_that_leaves_while_waiting_is_not_forwarded_and_its_slot_is_spent() {
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
    assert!(leaving.await.is_err(), "it was to leave while it waited");
    assert_eq!(client.get("/last").send().await.status, 200);
    // The slot at 3 s was spent: the last one waited for the slot at 6 s.
    assert!(start.elapsed() + EARLY >= Duration::from_secs(6));
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
    assert!(start.elapsed() + EARLY >= Duration::from_secs(1));
}

#[tokio::test]
async fn a_limit_in_shadow_changes_nothing_but_what_is_counted() {
    let upstream = Upstream::replying(200);
    let gateway = Gateway::limited("rate = \"1/h\"\nmode = \"shadow\"")
        .upstream(&upstream)
        .admin()
        .start();
    for _ in 0..5 {
        let answer = gateway.client().get("/").send().await;
        assert_eq!(answer.status, 200);
        assert!(!answer.has("ratelimit") && !answer.has("ratelimit-policy"));
    }
    eventually("five requests", || upstream.count() == 5).await;
    assert_eq!(metric(&gateway, "shadow_refused_total").await, 4);
    assert_eq!(metric(&gateway, "refused_total").await, 0);
}

#[tokio::test]
async fn a_delaying_limit_in_shadow_delays_nobody() {
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
    gateway.metric(&format!("{name}{{limit=\"device\"}}")).await as i64
}
