//! Tests of the circuit breaker: transitions between the states closed, open and half-open.

mod defaults;
mod failure_kinds;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};

use crate::support::{ClientResponse, Gateway, Reply, Upstream, empty, eventually};

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

/// Creates a response whose body starts and never ends.
pub(super) fn endless() -> Reply {
    let started = stream::iter([Ok(Frame::data(Bytes::from_static(b"more")))]);
    let body = StreamBody::new(started.chain(stream::pending()));
    http::Response::new(body.boxed_unsync())
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
