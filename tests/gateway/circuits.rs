//! Circuits: how they open, half-open and close, with a server that fails and one that is back.

mod callers;
mod causes;
mod defaults;
mod storm;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::harness::{Answer, Gateway, PATIENCE, Reply, Upstream, empty, eventually};

/// Two failures open it, for longer than a test takes.
const STRICT: &str = "breaker = { consecutive_failures = 2, open = \"1m\" }";

/// A series of the only server of the upstream `api`, with `more` labels.
fn of(upstream: &Upstream, name: &str, more: &str) -> String {
    let server = upstream.address();
    format!("{name}{{upstream=\"api\",server=\"{server}\"{more}}}")
}

/// The series of a state that its circuit may be in.
fn state(upstream: &Upstream, state: &str) -> String {
    of(upstream, "breaker_state", &format!(",state=\"{state}\""))
}

/// Asserts that a request is rejected because the circuit is open, with the exact time until a probe.
#[track_caller]
fn is_refused(answer: &Answer) {
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert_eq!(answer.problem(), "circuit-open");
    assert!(answer.retry_after() >= 1);
    let wait: u64 = answer.header("retry-after-ms").parse().expect("a number");
    assert_eq!(wait.div_ceil(1000).max(1), answer.retry_after());
}

/// Sends `times` requests that the server responds to with 502.
async fn fails(gateway: &Gateway, times: usize) {
    for _ in 0..times {
        let answer = gateway.client().get("/").send().await;
        assert_eq!((answer.status, answer.text().as_str()), (502, "ok"));
    }
}

/// An answer whose body begins and does not end.
fn endless() -> Reply {
    let begun = stream::iter([Ok(Frame::data(Bytes::from_static(b"more")))]);
    let body = StreamBody::new(begun.chain(stream::pending()));
    http::Response::new(body.boxed_unsync())
}

#[tokio::test]
async fn five_failures_in_a_row_open_it_and_nothing_reaches_the_server_any_more() {
    let (upstream, mood) = Upstream::moody(502);
    let gateway = Gateway::before(1, "breaker = { open = \"5s\" }")
        .upstream(&upstream)
        .admin()
        .start();
    fails(&gateway, 5).await;
    // That it is back makes no difference yet.
    mood.becomes(200);
    for _ in 0..20 {
        let answer = gateway.client().get("/").send().await;
        is_refused(&answer);
        assert!(answer.retry_after() <= 6, "{}", answer.retry_after());
    }
    assert_eq!(upstream.count(), 5);
    let refused = "upstream_failures_total{upstream=\"api\",reason=\"circuit_open\"}";
    gateway.comes_to(refused, 20).await;
}

#[tokio::test]
async fn a_success_in_between_begins_the_count_anew() {
    let (upstream, mood) = Upstream::moody(502);
    let gateway = Gateway::before(1, "breaker = {}")
        .upstream(&upstream)
        .admin()
        .start();
    for _ in 0..3 {
        mood.becomes(502);
        fails(&gateway, 4).await;
        assert_eq!(gateway.circuit().await["failures_in_a_row"], 4);
        mood.becomes(200);
        assert_eq!(gateway.client().get("/").send().await.status, 200);
        assert_eq!(gateway.circuit().await["failures_in_a_row"], 0);
    }
    assert_eq!(upstream.count(), 15);
}

#[tokio::test]
async fn the_breaker_goes_from_open_to_half_open_to_closed() {
    let permits = Arc::new(Semaphore::new(2));
    let waiting = Arc::clone(&permits);
    let upstream = Upstream::with(move |received| {
        let waiting = Arc::clone(&waiting);
        async move {
            waiting.acquire().await.expect("never closed").forget();
            empty(if received.target == "/fails" {
                502
            } else {
                200
            })
        }
    });
    let gateway = Gateway::before(1, "breaker = { consecutive_failures = 2, open = \"2s\" }")
        .upstream(&upstream)
        .admin()
        .start();
    let client = gateway.client();
    gateway.comes_to(&state(&upstream, "closed"), 1).await;

    for _ in 0..2 {
        assert_eq!(client.get("/fails").send().await.status, 502);
    }
    let circuit = gateway.circuit().await;
    assert_eq!(circuit["state"], "open", "{circuit}");
    assert_eq!(circuit["opened_by"], "consecutive failures");
    assert_eq!(circuit["held"], false);
    is_refused(&client.get("/").send().await);

    gateway.comes_to(&state(&upstream, "half_open"), 1).await;
    assert_eq!(upstream.count(), 2);
    let probe = tokio::spawn(client.get("/probe").send());
    eventually("one request finds out", || upstream.count() == 3).await;
    for _ in 0..3 {
        is_refused(&client.get("/").send().await);
    }
    assert_eq!(gateway.circuit().await["state"], "half_open");
    assert_eq!(upstream.count(), 3);

    permits.add_permits(1);
    assert_eq!(probe.await.expect("an answer").status, 200);
    let circuit = gateway.circuit().await;
    assert_eq!(circuit["state"], "closed", "{circuit}");
    assert_eq!(circuit["openings"], 1);
    permits.add_permits(10);
    for _ in 0..10 {
        assert_eq!(client.get("/").send().await.status, 200);
    }
    let opened = of(&upstream, "breaker_opened_total", "");
    gateway.comes_to(&opened, 1).await;
}

#[tokio::test]
async fn every_failed_probe_doubles_the_time_it_is_open() {
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&arrivals);
    let upstream = Upstream::with(move |_| {
        seen.lock().push(Instant::now());
        std::future::ready(empty(502))
    });
    let gateway = Gateway::before(
        1,
        "breaker = { consecutive_failures = 1, open = \"200ms\" }",
    )
    .upstream(&upstream)
    .admin()
    .start();
    let deadline = Instant::now() + PATIENCE;
    while arrivals.lock().len() < 4 {
        assert!(Instant::now() < deadline, "probes are not made");
        gateway.client().get("/").send().await;
    }
    // After the fourth, the third probe, it is open for eight times as long as at first, give or take a tenth.
    let circuit = gateway.circuit().await;
    let seconds = |of: &str| circuit[of].as_f64().expect("open, and for how long");
    let open = seconds("for_seconds") + seconds("remaining_seconds");
    assert!((1.43..=1.77).contains(&open), "{circuit}");
    assert_eq!(circuit["opened_by"], "failed probe");
    assert_eq!(circuit["openings"], 4);

    let arrivals = arrivals.lock();
    let gaps: Vec<_> = arrivals.windows(2).map(|two| two[1] - two[0]).collect();
    for (gap, least) in gaps.iter().zip([180, 360, 720]) {
        assert!(*gap >= Duration::from_millis(least), "{gaps:?}");
    }
}

/// A gateway whose circuit was opened by a failure of `/fails`, and waits for a probe.
async fn half_open(upstream: &Upstream) -> Gateway {
    let breaker = "breaker = { consecutive_failures = 1, open = \"200ms\" }";
    let gateway = Gateway::before(1, breaker)
        .upstream(upstream)
        .admin()
        .start();
    let failed = gateway.client().get("/fails").send().await;
    assert_eq!(failed.status, 502);
    gateway.comes_to(&state(upstream, "half_open"), 1).await;
    gateway
}

#[tokio::test]
async fn a_probe_whose_client_leaves_makes_room_for_another() {
    let upstream = Upstream::with(|received| async move {
        match &*received.target {
            "/fails" => empty(502),
            "/silent" => std::future::pending().await,
            _ => empty(200),
        }
    });
    let gateway = half_open(&upstream).await;
    let client = gateway.client();
    let probe = tokio::spawn(client.get("/silent").try_send());
    eventually("one request finds out", || upstream.count() == 2).await;
    is_refused(&client.get("/").send().await);

    probe.abort();
    let in_flight = of(&upstream, "server_in_flight", "");
    gateway.comes_to(&in_flight, 0).await;
    assert_eq!(gateway.circuit().await["state"], "half_open");
    assert_eq!(client.get("/").send().await.status, 200);
    assert_eq!(gateway.circuit().await["state"], "closed");
}

#[tokio::test]
async fn the_head_of_an_answer_closes_it_however_long_the_body_takes() {
    let upstream = Upstream::with(|received| async move {
        match &*received.target {
            "/fails" => empty(502),
            "/endless" => endless(),
            _ => empty(200),
        }
    });
    let gateway = half_open(&upstream).await;
    let client = gateway.client();
    let mut connection = client.keep_alive().await;
    let probe = connection.body_of(client.get("/endless")).await;
    assert_eq!(gateway.circuit().await["state"], "closed");
    assert_eq!(client.get("/").send().await.status, 200);
    drop(probe);
}
