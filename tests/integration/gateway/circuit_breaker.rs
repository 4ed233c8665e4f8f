//! Tests of the circuit breaker: transitions between the states closed, open and half-open.

mod defaults;
mod failure_kinds;
mod open_responses;
mod probe_load;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use parking_lot::Mutex;

use crate::support::{ClientResponse, Gateway, Reply, TEST_TIMEOUT, Upstream, empty, eventually};

/// Breaker settings: two consecutive failures open the circuit for one minute, which is longer than a test takes.
const TWO_FAILURES: &str = "breaker = { consecutive_failures = 2, open = \"1m\" }";

/// Returns the metric `name` with the labels of `upstream`, a server of the upstream `api`. `more` is empty or contains
/// further labels, with a comma before each.
fn series_of(upstream: &Upstream, name: &str, more: &str) -> String {
    let server = upstream.address();
    format!("{name}{{upstream=\"api\",server=\"{server}\"{more}}}")
}

/// Returns the series of the metric `breaker_state` that is 1 while the circuit breaker of `upstream` is in `state`.
fn state(upstream: &Upstream, state: &str) -> String {
    series_of(upstream, "breaker_state", &format!(",state=\"{state}\""))
}

/// Asserts that the gateway rejected the request because the circuit is open, and that `Retry-After` is
/// `Retry-After-Ms` rounded up to seconds.
#[track_caller]
fn assert_rejected(response: &ClientResponse) {
    assert_eq!(response.status, 503, "{}", response.text());
    assert_eq!(response.problem(), "circuit-open");
    assert!(response.retry_after() >= 1);
    let wait: u64 = response
        .header("retry-after-ms")
        .parse()
        .expect("the value is a number");
    assert_eq!(wait.div_ceil(1000).max(1), response.retry_after());
}

/// Sends `times` requests and asserts that each gets the 502 of the upstream, not a 502 of the gateway.
async fn send_failing_requests(gateway: &Gateway, times: usize) {
    for _ in 0..times {
        let response = gateway.client().get("/").send().await;
        assert_eq!((response.status, response.text().as_str()), (502, "ok"));
    }
}

/// Creates a response whose body starts and never ends.
pub(super) fn endless() -> Reply {
    let started = stream::iter([Ok(Frame::data(Bytes::from_static(b"more")))]);
    let body = StreamBody::new(started.chain(stream::pending()));
    http::Response::new(body.boxed_unsync())
}

#[tokio::test]
async fn five_consecutive_failures_open_the_circuit_and_nothing_reaches_the_server() {
    let (upstream, switch) = Upstream::with_status_switch(502);
    let gateway = Gateway::with_servers(1, "breaker = { open = \"5s\" }")
        .upstream(&upstream)
        .admin()
        .start();
    send_failing_requests(&gateway, 5).await;
    // The server responds with 200 from now on, but the gateway sends it no request while the circuit is open.
    switch.set_status(200);
    for _ in 0..20 {
        let response = gateway.client().get("/").send().await;
        assert_rejected(&response);
        assert!(
            response.retry_after() <= 6,
            "Retry-After is {} s",
            response.retry_after()
        );
    }
    assert_eq!(upstream.count(), 5);
    let rejected = "upstream_failures_total{upstream=\"api\",reason=\"circuit_open\"}";
    gateway.wait_for_metric(rejected, 20).await;
}

#[tokio::test]
async fn a_success_resets_the_count_of_consecutive_failures() {
    let (upstream, switch) = Upstream::with_status_switch(502);
    let gateway = Gateway::with_servers(1, "breaker = {}")
        .upstream(&upstream)
        .admin()
        .start();
    for _ in 0..3 {
        switch.set_status(502);
        send_failing_requests(&gateway, 4).await;
        assert_eq!(gateway.circuit().await["failures_in_a_row"], 4);
        switch.set_status(200);
        assert_eq!(gateway.client().get("/").send().await.status, 200);
        assert_eq!(gateway.circuit().await["failures_in_a_row"], 0);
    }
    assert_eq!(upstream.count(), 15);
}

#[tokio::test]
async fn the_breaker_goes_from_open_to_half_open_to_closed() {
    let (upstream, permits) = Upstream::on_permit(|received| {
        empty(if received.target == "/fails" {
            502
        } else {
            200
        })
    });
    permits.add_permits(2);
    let gateway = Gateway::with_servers(1, "breaker = { consecutive_failures = 2, open = \"2s\" }")
        .upstream(&upstream)
        .admin()
        .start();
    let client = gateway.client();
    gateway
        .wait_for_metric(&state(&upstream, "closed"), 1)
        .await;

    for _ in 0..2 {
        assert_eq!(client.get("/fails").send().await.status, 502);
    }
    let circuit = gateway.circuit().await;
    assert_eq!(circuit["state"], "open", "{circuit}");
    assert_eq!(circuit["opened_by"], "consecutive failures");
    assert_eq!(circuit["held"], false);
    assert_rejected(&client.get("/").send().await);

    gateway
        .wait_for_metric(&state(&upstream, "half_open"), 1)
        .await;
    assert_eq!(upstream.count(), 2);
    let probe = tokio::spawn(client.get("/probe").send());
    eventually("the upstream has received the probe", async || {
        upstream.count() == 3
    })
    .await;
    for _ in 0..3 {
        assert_rejected(&client.get("/").send().await);
    }
    assert_eq!(gateway.circuit().await["state"], "half_open");
    assert_eq!(upstream.count(), 3);

    permits.add_permits(1);
    assert_eq!(probe.await.expect("a response arrives").status, 200);
    let circuit = gateway.circuit().await;
    assert_eq!(circuit["state"], "closed", "{circuit}");
    assert_eq!(circuit["openings"], 1);
    permits.add_permits(10);
    for _ in 0..10 {
        assert_eq!(client.get("/").send().await.status, 200);
    }
    let opened = series_of(&upstream, "breaker_opened_total", "");
    gateway.wait_for_metric(&opened, 1).await;
}

#[tokio::test]
async fn every_failed_probe_doubles_the_open_time() {
    let arrivals = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&arrivals);
    let upstream = Upstream::with(move |_| {
        seen.lock().push(Instant::now());
        std::future::ready(empty(502))
    });
    let gateway = Gateway::with_servers(
        1,
        "breaker = { consecutive_failures = 1, open = \"200ms\" }",
    )
    .upstream(&upstream)
    .admin()
    .start();
    let deadline = Instant::now() + TEST_TIMEOUT;
    while arrivals.lock().len() < 4 {
        assert!(
            Instant::now() < deadline,
            "the gateway did not send three probes in time"
        );
        gateway.client().get("/").send().await;
    }
    // Three probes have failed, and each has doubled the open time. It is now 8 × 200 ms = 1.6 s, ±10 %.
    let circuit = gateway.circuit().await;
    let seconds = |series_of: &str| {
        circuit[series_of]
            .as_f64()
            .expect("the value is a number of seconds")
    };
    let open = seconds("for_seconds") + seconds("remaining_seconds");
    assert!(
        (1.43..=1.77).contains(&open),
        "unexpected state of the circuit breaker: {circuit}"
    );
    assert_eq!(circuit["opened_by"], "failed probe");
    assert_eq!(circuit["openings"], 4);

    let arrivals = arrivals.lock();
    let gaps: Vec<_> = arrivals.windows(2).map(|two| two[1] - two[0]).collect();
    for (gap, least) in gaps.iter().zip([180, 360, 720]) {
        assert!(
            *gap >= Duration::from_millis(least),
            "the probes are too close together: {gaps:?}"
        );
    }
}

/// Starts a gateway and opens its circuit by a failing request for `/fails`. Returns when the circuit is half-open.
async fn half_open_gateway(upstream: &Upstream) -> Gateway {
    let breaker = "breaker = { consecutive_failures = 1, open = \"200ms\" }";
    let gateway = Gateway::with_servers(1, breaker)
        .upstream(upstream)
        .admin()
        .start();
    let failed = gateway.client().get("/fails").send().await;
    assert_eq!(failed.status, 502);
    gateway
        .wait_for_metric(&state(upstream, "half_open"), 1)
        .await;
    gateway
}

#[tokio::test]
async fn after_a_probe_whose_client_disconnects_another_probe_is_sent() {
    let upstream = Upstream::with(|received| async move {
        match &*received.target {
            "/fails" => empty(502),
            "/silent" => std::future::pending().await,
            _ => empty(200),
        }
    });
    let gateway = half_open_gateway(&upstream).await;
    let client = gateway.client();
    let probe = tokio::spawn(client.get("/silent").try_send());
    eventually("the upstream has received the probe", async || {
        upstream.count() == 2
    })
    .await;
    assert_rejected(&client.get("/").send().await);

    probe.abort();
    let in_flight = series_of(&upstream, "server_in_flight", "");
    gateway.wait_for_metric(&in_flight, 0).await;
    assert_eq!(gateway.circuit().await["state"], "half_open");
    assert_eq!(client.get("/").send().await.status, 200);
    assert_eq!(gateway.circuit().await["state"], "closed");
}

#[tokio::test]
async fn a_response_head_closes_the_circuit_before_the_body_ends() {
    let upstream = Upstream::with(|received| async move {
        match &*received.target {
            "/fails" => empty(502),
            "/endless" => endless(),
            _ => empty(200),
        }
    });
    let gateway = half_open_gateway(&upstream).await;
    let client = gateway.client();
    let mut connection = client.keep_alive().await;
    let probe = connection.response_body(client.get("/endless")).await;
    assert_eq!(gateway.circuit().await["state"], "closed");
    assert_eq!(client.get("/").send().await.status, 200);
    drop(probe);
}
