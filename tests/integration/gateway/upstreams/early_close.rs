//! Tests with servers that respond before they have read the request body and then close the connection.

use std::net::Shutdown;
use std::time::Duration;

use crate::support::raw_http::{self, UpstreamConnection};
use crate::support::{Certificates, Gateway};

/// Number of requests that each test sends for each form of response.
const REQUESTS: usize = 40;

/// Size of a request body in bytes. It does not fit into the socket buffers between gateway and server.
const UPLOAD: usize = 4 << 20;

/// Prepares the close of a connection whose request bytes are partly unread. The caller then drops the connection. The
/// connection number selects one of three ways to close.
fn close(connection: &UpstreamConnection) {
    match connection.number % 3 {
        // Dropping the connection with unread bytes makes the kernel send RST immediately.
        0 => {}
        1 => std::thread::sleep(Duration::from_millis(1)),
        // The gateway receives FIN first, and RST when the connection is dropped.
        _ => connection
            .stream
            .shutdown(Shutdown::Write)
            .expect("the socket should be open"),
    }
}

/// Creates a server that reads the head of each request, sends `response` and closes the connection.
fn responding_early(response: impl Into<Vec<u8>>) -> raw_http::RawUpstream {
    let response = response.into();
    raw_http::RawUpstream::scripted(move |connection| {
        if connection.head().is_some() {
            connection.send(&response);
            close(connection);
        }
    })
}

/// Returns a 413 response with a body of `body` bytes. The body is chunked or has a `Content-Length`.
fn too_large(body: usize, chunked: bool) -> String {
    let text = "x".repeat(body);
    if chunked {
        format!(
            "HTTP/1.1 413 Too Large\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
             {body:x}\r\n{text}\r\n0\r\n\r\n"
        )
    } else {
        format!(
            "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: {body}\r\n\r\n{text}"
        )
    }
}

#[tokio::test]
async fn a_response_before_the_end_of_the_upload_arrives_although_the_server_closes() {
    for (body, chunked) in [(5, false), (5, true), (20_000, false)] {
        let upstream = responding_early(too_large(body, chunked));
        let gateway = Gateway::proxying("")
            .upstream_url(&upstream.url())
            .admin()
            .start();
        for number in 0..REQUESTS {
            let mut client = raw_http::RawClient::connect(gateway.address());
            client.send(format!(
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {UPLOAD}\r\n\r\n"
            ));
            let _sending = client.send_in_background(vec![b'x'; UPLOAD]);
            let response = client.response();
            assert_eq!(response.status, 413, "{number}: {}", response.head);
            assert_eq!(response.body.len(), body);
        }
        let failures = "upstream_failures_total{upstream=\"api\",reason=\"broken\"}";
        assert!(gateway.metric(failures).await < 0.5);
    }
}

#[tokio::test]
async fn a_keyed_request_whose_server_responds_early_and_closes_is_recorded() {
    let upstream = responding_early(too_large(5, false));
    let gateway = Gateway::keyed("max_request = \"8MiB\"")
        .upstream_url(&upstream.url())
        .start();
    for number in 0..REQUESTS {
        let send = || {
            let request = gateway.client().post("/").key(&format!("k{number}"));
            request.body(vec![b'x'; UPLOAD]).send()
        };
        let (first, second) = (send().await, send().await);
        assert_eq!((first.status, first.is_replay()), (413, false), "{number}");
        assert_eq!((second.status, second.is_replay()), (413, true));
    }
    assert_eq!(gateway.counts().unknown, 0);
    assert_eq!(upstream.connections(), REQUESTS);
}

#[tokio::test]
async fn a_response_that_a_reset_truncates_does_not_look_complete() {
    // The response declares no length, so only a FIN marks its end. The server sends RST instead, so the gateway must
    // treat the body as truncated.
    let upstream = raw_http::RawUpstream::scripted(|connection| {
        if connection.head().is_some() {
            connection.send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhalf");
            std::thread::sleep(Duration::from_millis(1));
            connection.reset_on_close();
        }
    });
    // The circuit breaker is off, because it counts each of these requests as a failure and would open.
    let gateway = Gateway::with_servers(1, "breaker = { enabled = false }")
        .upstream_url(&upstream.url())
        .start();
    for number in 0..REQUESTS {
        let mut client = raw_http::RawClient::connect(gateway.address());
        client.send(format!(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {UPLOAD}\r\n\r\n"
        ));
        let _sending = client.send_in_background(vec![b'x'; UPLOAD]);
        let (received, _) = client.read_to_end();
        let received = String::from_utf8_lossy(&received);
        assert!(!received.ends_with("0\r\n\r\n"), "{number}: {received}");
    }
}

#[tokio::test]
async fn a_response_through_tls_arrives_although_the_server_closes() {
    let certificates = Certificates::for_localhost();
    let upstream = crate::support::Upstream::early_413_through_tls(&certificates);
    let ca_file = format!("ca_file = \"{}\"", certificates.cert_file().display());
    let gateway = Gateway::with_servers(1, &ca_file)
        .upstream(&upstream)
        .start();
    for number in 0..REQUESTS {
        let request = gateway.client().h2().post("/");
        let response = request.body(vec![b'x'; UPLOAD]).send().await;
        assert_eq!(response.status, 413, "{number}: {}", response.text());
        assert_eq!(response.text(), "large");
    }
}
