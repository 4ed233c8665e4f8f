//! Tests of upstream timeouts: both the problem document and a metric show which timeout expired.

use std::time::{Duration, Instant};

use crate::support::raw_http;
use crate::support::{ClientResponse, FullBacklog, Gateway, TEST_TIMEOUT, Upstream};

const TIMEOUT: Duration = Duration::from_millis(300);

/// Asserts that `response` is a 504 whose problem document names the timeout `phase`.
#[track_caller]
fn assert_timeout(response: &ClientResponse, phase: &str) {
    assert_eq!(response.status, 504, "{}", response.text());
    assert_eq!(response.problem(), "upstream-timeout");
    assert_eq!(response.json()["timeout"], phase);
}

/// Asserts that a timeout of [`TIMEOUT`] ended a wait. The upper bound is far below all default timeouts that could end
/// the wait instead.
#[track_caller]
fn assert_waited(started: Instant) {
    let waited = started.elapsed();
    assert!(
        (TIMEOUT..TIMEOUT + Duration::from_secs(4)).contains(&waited),
        "{waited:?}"
    );
}

/// Asserts that `upstream_failures_total` counts `count` failures for `reason` and none for any other reason.
async fn assert_counted(gateway: &Gateway, reason: &str, count: u32) {
    for other in [
        "connect",
        "connect_timeout",
        "first_byte_timeout",
        "idle_timeout",
        "total_timeout",
        "circuit_open",
        "broken",
        "client",
    ] {
        let series = format!("upstream_failures_total{{upstream=\"api\",reason=\"{other}\"}}");
        gateway
            .wait_for_metric(&series, if other == reason { count } else { 0 })
            .await;
    }
}

/// Creates a server that reads a request head, sends `bytes` and keeps the connection open.
fn sending(bytes: &'static str) -> raw_http::RawUpstream {
    raw_http::RawUpstream::scripted(move |connection| {
        if connection.head().is_some() {
            connection.send(bytes);
            connection.read_to_close();
        }
    })
}

fn gateway_to(upstream: &raw_http::RawUpstream, api: &str) -> Gateway {
    Gateway::with_servers(1, api)
        .upstream_url(&format!("http://{}", upstream.address))
        .admin()
        .start()
}

const HALF_RESPONSE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf ";

#[tokio::test]
async fn connect_timeout_returns_504() {
    let unreachable = FullBacklog::new();
    let gateway = Gateway::with_servers(1, "connect_timeout = \"300ms\"")
        .upstream_url(&unreachable.url())
        .admin()
        .start();
    let started = Instant::now();
    let response = gateway.client().post("/").body("unsent").send().await;
    assert_waited(started);
    assert_timeout(&response, "connect");
    assert_counted(&gateway, "connect_timeout", 1).await;
}

#[tokio::test]
async fn first_byte_timeout_returns_504() {
    let upstream = Upstream::silent();
    let gateway = Gateway::with_servers(1, "first_byte_timeout = \"300ms\"")
        .upstream(&upstream)
        .admin()
        .start();
    let started = Instant::now();
    let response = gateway.client().post("/").body("taken").send().await;
    assert_waited(started);
    assert_timeout(&response, "first-byte");
    assert_counted(&gateway, "first_byte_timeout", 1).await;
}

#[tokio::test]
async fn idle_timeout_of_an_upload_returns_504() {
    let upstream = raw_http::RawUpstream::scripted(|connection| {
        connection.head();
        // The server neither reads the body nor closes the connection while the test runs.
        std::thread::sleep(2 * TEST_TIMEOUT);
    });
    let gateway = gateway_to(&upstream, "idle_timeout = \"300ms\"");
    let address = gateway.address();
    let uploading = tokio::task::spawn_blocking(move || {
        let mut client = raw_http::RawClient::connect(address);
        // The body does not fit into the buffers between client and server, so the gateway cannot send all of it.
        let len = 64 << 20;
        client.send(format!(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n"
        ));
        let _sending = client.send_in_background(vec![b'x'; len]);
        client.response()
    });
    let response = uploading.await.expect("the request should get a response");
    assert_eq!(response.status, 504, "{}", response.head);
    let document: serde_json::Value =
        serde_json::from_slice(&response.body).expect("the text should be valid JSON");
    assert_eq!(document["type"], "urn:tidegate:problem:upstream-timeout");
    assert_eq!(document["timeout"], "idle");
    assert_counted(&gateway, "idle_timeout", 1).await;
}

#[tokio::test]
async fn a_timeout_of_a_download_truncates_the_response() {
    for (lines, reason) in [
        ("idle_timeout = \"300ms\"", "idle_timeout"),
        ("timeout = \"300ms\"", "total_timeout"),
    ] {
        let upstream = sending(HALF_RESPONSE);
        for (of_upstream, of_route) in [(lines, ""), ("", lines)] {
            let gateway = Gateway::with(&format!(
                "[upstream.api]\nservers = [\"{{upstream}}\"]\n{of_upstream}\n\
                 [[route]]\nname = \"all\"\npath = \"/\"\n{of_route}\n"
            ))
            .upstream_url(&upstream.url())
            .admin()
            .start();
            for (number, client) in (1..).zip([gateway.client(), gateway.client().h2()]) {
                let started = Instant::now();
                let response = client.get("/").try_send().await;
                assert_waited(started);
                assert!(response.is_err(), "{response:?}");
                assert_counted(&gateway, reason, number).await;
            }
        }
    }
}

#[tokio::test]
async fn total_timeout_returns_504() {
    let (silent, unreachable) = (Upstream::silent(), FullBacklog::new());
    // `timeout` covers the wait for a response (`silent`) and the wait for a connection (`unreachable`).
    for url in [silent.url(), unreachable.url()] {
        let gateway = Gateway::with_servers(1, "timeout = \"300ms\"")
            .upstream_url(&url)
            .admin()
            .start();
        let started = Instant::now();
        let response = gateway.client().get("/").send().await;
        assert_waited(started);
        assert_timeout(&response, "total");
        assert_counted(&gateway, "total_timeout", 1).await;
    }
}

#[tokio::test]
async fn a_timeout_within_the_response_to_a_keyed_request_returns_504() {
    for (api, phase, reason) in [
        ("idle_timeout = \"300ms\"", "idle", "idle_timeout"),
        ("timeout = \"300ms\"", "total", "total_timeout"),
    ] {
        let upstream = sending(HALF_RESPONSE);
        let gateway = Gateway::with(&format!(
            "[upstream.api]\nservers = [\"{{upstream}}\"]\n{api}\n[[route]]\nname = \"all\"\n\
             path = \"/\"\nidempotency = {{ mode = \"optional\" }}\n"
        ))
        .upstream_url(&format!("http://{}", upstream.address))
        .admin()
        .start();
        let request = gateway.client().post("/pay").key("k1").body("amount=1");
        let started = Instant::now();
        assert_timeout(&request.send().await, phase);
        assert_waited(started);
        assert_counted(&gateway, reason, 1).await;
        assert_eq!(gateway.counts().unknown, 1);
    }
}
