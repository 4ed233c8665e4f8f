//! Tests of the events that count as failures and open a circuit, and of the events that never do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::BodyExt as _;

use super::{assert_rejected, endless, series_of};
use crate::support::raw_http::{self, UpstreamConnection};
use crate::support::{Gateway, Upstream, eventually, full};

/// Breaker settings: two consecutive failures open the circuit for one minute, which is longer than a test takes.
const TWO_FAILURES: &str = "breaker = { consecutive_failures = 2, open = \"1m\" }";

/// Description of a failure, the script of a server that fails in this way, and the status that the client gets. The
/// status is `None` if the response is truncated.
type FailureCase = (&'static str, fn(&mut UpstreamConnection), Option<u16>);

const FAILURES: [FailureCase; 7] = [
    (
        "never responds",
        UpstreamConnection::read_to_close,
        Some(504),
    ),
    (
        "resets the connection",
        |connection| connection.reset_on_close(),
        Some(502),
    ),
    ("closes the connection", |_| (), Some(502)),
    (
        "does not speak HTTP",
        |connection| connection.send("SSH-2.0-OpenSSH_9.9\r\n"),
        Some(502),
    ),
    (
        "sends half a head",
        |connection| connection.send("HTTP/1.1 200 OK\r\nContent-"),
        Some(502),
    ),
    (
        "sends half of a body with a declared length",
        |connection| connection.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf "),
        None,
    ),
    (
        "sends half of a chunked body",
        |connection| {
            connection.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhalf \r\n");
        },
        None,
    ),
];

#[tokio::test]
async fn timeouts_lost_connections_and_truncated_responses_open_the_circuit() {
    for (description, fail, status) in FAILURES {
        let upstream = raw_http::RawUpstream::scripted(move |connection| {
            if connection.head().is_some() {
                fail(connection);
            }
        });
        let timeouts = "first_byte_timeout = \"200ms\"\nidle_timeout = \"200ms\"";
        let gateway = Gateway::with_servers(1, &format!("{timeouts}\n{TWO_FAILURES}"))
            .upstream_url(&format!("http://{}", upstream.address))
            .start();
        for _ in 0..2 {
            let response = gateway.client().get("/").try_send().await;
            let found = response.ok().map(|response| response.status);
            assert_eq!(found, status, "a server that {description}");
        }
        assert_rejected(&gateway.client().get("/").send().await);
        let requests = upstream.received().matches("GET /").count();
        assert_eq!(requests, 2, "a server that {description}");
    }
}

/// Breaker settings: one failure opens the circuit for one minute, which is longer than a test takes.
const ONE_FAILURE: &str = "breaker = { consecutive_failures = 1, open = \"1m\" }";

/// Waits until no request is in flight. Asserts that the circuit was never open, and that no failure was counted.
async fn assert_no_failure_counted(gateway: &Gateway, upstream: &Upstream) {
    gateway
        .wait_for_metric(&series_of(upstream, "server_in_flight", ""), 0)
        .await;
    let circuit = gateway.circuit().await;
    assert_eq!(circuit["state"], "closed", "{circuit}");
    assert_eq!(circuit["openings"], 0);
    assert_eq!(circuit["window"]["failed"], 0);
    assert_eq!(gateway.client().get("/").send().await.status, 200);
}

#[tokio::test]
async fn a_client_that_disconnects_does_not_open_the_circuit() {
    let upstream = Upstream::with(|received| async move {
        match &*received.target {
            "/silent" => std::future::pending().await,
            "/endless" => endless(),
            _ => full("ok"),
        }
    });
    let gateway = Gateway::with_servers(1, ONE_FAILURE)
        .upstream(&upstream)
        .with_section("[server]\nrequest_buffer = 0")
        .admin()
        .start();
    let in_flight = series_of(&upstream, "server_in_flight", "");

    for arrived in 1..=3 {
        let pending = tokio::spawn(gateway.client().get("/silent").try_send());
        eventually("the upstream has received the request", async || {
            upstream.count() == arrived
        })
        .await;
        pending.abort();
        assert_no_failure_counted(&gateway, &upstream).await;
    }
    let mut connection = gateway.client().keep_alive().await;
    let mut body = connection
        .response_body(gateway.client().get("/endless"))
        .await;
    assert!(body.frame().await.is_some());
    gateway.wait_for_metric(&in_flight, 1).await;
    drop((body, connection));
    assert_no_failure_counted(&gateway, &upstream).await;

    let mut uploading = raw_http::RawClient::connect(gateway.address());
    uploading.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf ");
    gateway.wait_for_metric(&in_flight, 1).await;
    drop(uploading);
    assert_no_failure_counted(&gateway, &upstream).await;
}

#[tokio::test]
async fn an_upload_that_exceeds_timeout_does_not_open_the_circuit() {
    let upstream = Upstream::echo();
    let gateway = Gateway::with_servers(1, &format!("timeout = \"500ms\"\n{ONE_FAILURE}"))
        .upstream(&upstream)
        .with_section("[server]\nrequest_buffer = 0")
        .admin()
        .start();
    let mut uploading = raw_http::RawClient::connect(gateway.address());
    uploading.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf ");
    // The timeout is not a failure of the server: the server waits for the rest of the request.
    let response = tokio::task::spawn_blocking(move || uploading.response()).await;
    assert_eq!(response.expect("a response arrives").status, 504);
    assert_no_failure_counted(&gateway, &upstream).await;
}

#[tokio::test]
async fn a_client_that_does_not_read_the_response_does_not_open_the_circuit() {
    // A body of this length exceeds all buffers between server and client, so the server cannot send all of it.
    const LENGTH: usize = 64 << 20;
    const TIMEOUT: Duration = Duration::from_secs(1);
    let upstream = raw_http::RawUpstream::scripted(|connection| {
        while let Some(request) = connection.request() {
            if request.line().contains("/large") {
                connection.send(format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n"
                ));
                connection.send(vec![b'x'; LENGTH - 1]);
            } else {
                connection.send(raw_http::ok("ok"));
            }
        }
    });
    let gateway = Gateway::with_servers(1, &format!("timeout = \"{TIMEOUT:?}\"\n{ONE_FAILURE}"))
        .upstream_url(&format!("http://{}", upstream.address))
        .admin()
        .start();
    let mut client = raw_http::RawClient::connect(gateway.address());
    client.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    let reading = tokio::task::spawn_blocking(move || {
        // No event shows that `timeout` has expired: the gateway finds out when it can write to the client again.
        std::thread::sleep(TIMEOUT + Duration::from_millis(100));
        client.read_to_end()
    });
    let (read, _) = reading.await.expect("the task does not panic");
    assert!(read.len() < LENGTH, "the client got the complete response");
    let failures = "upstream_failures_total{upstream=\"api\",reason=\"total_timeout\"}";
    gateway.wait_for_metric(failures, 1).await;
    assert_eq!(gateway.circuit().await["state"], "closed");
    assert_eq!(gateway.client().get("/").send().await.status, 200);
}

#[tokio::test]
async fn a_server_that_closes_on_a_slow_reader_does_not_open_the_circuit() {
    // A body of this length exceeds all buffers between server and client, so the server cannot send all of it.
    const LENGTH: usize = 64 << 20;
    let has_closed = Arc::new(AtomicBool::new(false));
    let closing = Arc::clone(&has_closed);
    let upstream = raw_http::RawUpstream::scripted(move |connection| {
        while let Some(request) = connection.request() {
            if !request.line().contains("/large") {
                connection.send(raw_http::ok("ok"));
                continue;
            }
            connection.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {LENGTH}\r\n\r\n"
            ));
            let write_timeout = Some(Duration::from_millis(1_200));
            let stream = &connection.stream;
            stream
                .set_write_timeout(write_timeout)
                .expect("the socket is open");
            connection.send(vec![b'x'; LENGTH]);
            connection.reset_on_close();
            closing.store(true, Ordering::SeqCst);
            return;
        }
    });
    let gateway = Gateway::with_servers(1, ONE_FAILURE)
        .upstream_url(&format!("http://{}", upstream.address))
        .admin()
        .start();
    let mut client = raw_http::RawClient::connect(gateway.address());
    client.send("GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    // The client starts to read after the server has closed the connection.
    eventually("the server closes the connection", async || {
        has_closed.load(Ordering::SeqCst)
    })
    .await;
    let read = tokio::task::spawn_blocking(move || client.read_to_end()).await;
    assert!(
        read.expect("the task does not panic").0.len() < LENGTH,
        "the client got the complete response"
    );
    let failures = "upstream_failures_total{upstream=\"api\",reason=\"broken\"}";
    gateway.wait_for_metric(failures, 1).await;
    let circuit = gateway.circuit().await;
    assert_eq!(circuit["window"]["failed"], 0, "{circuit}");
    assert_eq!(gateway.client().get("/").send().await.status, 200);
}

/// A client is slow if the gateway waits this long for a part of its request.
const CLIENT_PAUSE: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_server_that_closes_on_a_slow_upload_does_not_open_the_circuit() {
    let upstream = raw_http::RawUpstream::scripted(|connection| {
        while let Some(head) = connection.head() {
            if !head.starts_with("POST") {
                connection.send(raw_http::ok("ok"));
                continue;
            }
            std::thread::sleep(CLIENT_PAUSE + Duration::from_millis(100));
            return;
        }
    });
    let gateway = Gateway::with_servers(1, ONE_FAILURE)
        .upstream_url(&format!("http://{}", upstream.address))
        .with_section("[server]\nrequest_buffer = 0")
        .admin()
        .start();
    let mut uploading = raw_http::RawClient::connect(gateway.address());
    uploading.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf ");
    let response = tokio::task::spawn_blocking(move || uploading.response()).await;
    assert_eq!(response.expect("a response arrives").status, 502);
    let circuit = gateway.circuit().await;
    assert_eq!(circuit["window"]["failed"], 0, "{circuit}");
    assert_eq!(gateway.client().get("/").send().await.status, 200);
}
