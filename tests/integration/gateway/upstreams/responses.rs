//! Tests of responses from upstream: trailers, body lengths and invalid HTTP.

use crate::support::Gateway;
use crate::support::raw_http::{RawUpstream, WireGateway};

/// Creates a server that reads one request on each connection, sends `bytes` and closes the connection.
fn sending(bytes: &'static str) -> RawUpstream {
    RawUpstream::scripted(move |connection| {
        if connection.request().is_some() {
            connection.send(bytes);
        }
    })
}

#[tokio::test]
async fn trailers_announced_on_several_lines_are_all_forwarded() {
    let upstream = sending(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-One\r\nTrailer: X-Two, X-Three\r\n\
         \r\n2\r\nok\r\n0\r\nX-One: 1\r\nX-Two: 2\r\nX-Three: 3\r\n\r\n",
    );
    let gateway = WireGateway::forwarding_to(&upstream);
    let mut client = gateway.client();
    client.send("GET /api HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nConnection: close\r\n\r\n");
    let (received, _) = client.read_to_end();
    let received = String::from_utf8_lossy(&received);
    let end = "2\r\nok\r\n0\r\nx-one: 1\r\nx-two: 2\r\nx-three: 3\r\n\r\n";
    assert!(received.ends_with(end), "{received}");
    assert!(received.contains("trailer: X-One\r\ntrailer: X-Two, X-Three\r\n"));

    let gateway = Gateway::proxying("").upstream_url(&upstream.url()).start();
    let request = gateway.client().h2().get("/").header("TE", "trailers");
    let response = request.send().await;
    assert_eq!(response.header("trailer"), "X-One, X-Two, X-Three");
    assert_eq!(response.trailers.len(), 3, "{:?}", response.trailers);
}

#[tokio::test]
async fn a_response_that_is_not_valid_http_is_reported_as_such() {
    for bytes in [
        "SSH-2.0-OpenSSH_9.9\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: five\r\n\r\n",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    ] {
        let upstream = sending(bytes);
        let gateway = Gateway::proxying("").upstream_url(&upstream.url()).start();
        let response = gateway.client().get("/").send().await;
        assert_eq!(response.status, 502, "{bytes}");
        let detail = response.json()["detail"].to_string();
        assert!(detail.contains("not valid HTTP"), "{bytes}: {detail}");
    }
}

#[tokio::test]
async fn a_connection_that_closes_before_the_response_is_not_reported_as_invalid_http() {
    for bytes in ["", "HTTP/1.1 200 OK\r\nContent-"] {
        let upstream = sending(bytes);
        let gateway = Gateway::proxying("").upstream_url(&upstream.url()).start();
        let response = gateway.client().get("/").send().await;
        assert_eq!(response.status, 502, "{bytes}");
        let detail = response.json()["detail"].to_string();
        assert!(detail.contains("closed the connection"), "{detail}");
    }
}

#[tokio::test]
async fn a_keyed_response_with_an_invalid_chunk_is_reported_as_invalid_http() {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let invalid =
        sending("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\nzz\r\n0\r\n\r\n");
    let truncated = sending("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n");
    for (upstream, reported) in [(invalid, true), (truncated, false)] {
        let gateway = Gateway::keyed("").upstream_url(&upstream.url()).start();
        let response = gateway.client().post("/").key("k1").send().await;
        assert_eq!(response.status, 502, "{head}");
        let detail = response.json()["detail"].to_string();
        assert_eq!(detail.contains("not valid HTTP"), reported, "{detail}");
    }
}

#[tokio::test]
async fn an_invalid_content_length_returns_502_also_without_a_body() {
    for (method, status) in [("HEAD", "200 OK"), ("GET", "304 Not Modified")] {
        for length in ["abc", "-1", "+1", "1, 2", "", "99999999999999999999"] {
            let response = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n");
            let upstream = sending(response.leak());
            let gateway = Gateway::proxying("").upstream_url(&upstream.url()).start();
            for client in [gateway.client(), gateway.client().h2()] {
                let response = client.request(method, "/").send().await;
                assert_eq!(response.status, 502, "{method} {length:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_content_length_given_several_times_is_forwarded_once() {
    for lines in [
        "Content-Length: 2\r\nContent-Length: 2",
        "Content-Length: 2, 2",
        "Content-Length: 002",
    ] {
        // The server closes the connection after the response. `Connection: close` announces this, so that the gateway
        // does not send the second request on the same connection.
        let response = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{lines}\r\n\r\n");
        let upstream = sending(response.leak());
        let gateway = Gateway::proxying("").upstream_url(&upstream.url()).start();
        for client in [gateway.client(), gateway.client().h2()] {
            let response = client.request("HEAD", "/").send().await;
            assert_eq!(response.status, 200, "{lines}");
            assert_eq!(response.header("content-length"), "2", "{lines}");
        }
    }
}
