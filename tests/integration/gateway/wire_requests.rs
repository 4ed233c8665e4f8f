//! Tests of requests that two servers could parse differently. The gateway rejects them and forwards no part of them.

use crate::support::raw_http::{RawUpstream, WireGateway};

/// Request that an attacker tries to smuggle to upstream.
const SMUGGLED: &str = "GET /api/smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

const VALID: &str = "GET /api/good HTTP/1.1\r\nHost: a\r\n\r\n";

/// Gateway with the upstream that must not receive any part of an invalid request.
struct WireFixture {
    upstream: RawUpstream,
    gateway: WireGateway,
}

impl WireFixture {
    fn start() -> Self {
        let upstream = RawUpstream::echoing_request_line();
        let gateway = WireGateway::forwarding_to(&upstream);
        Self { upstream, gateway }
    }

    /// Asserts that the gateway rejects the request `invalid` with `status`, forwards no part of this request, and
    /// closes the connection. Sends `invalid` first on a new connection, and then on another one after a valid request.
    #[track_caller]
    fn assert_rejected_and_closed(&self, status: u16, invalid: impl AsRef<[u8]>) {
        let invalid = invalid.as_ref();
        let shown = invalid[..invalid.len().min(200)].escape_ascii();
        let mut client = self.gateway.client();
        client.send([invalid, SMUGGLED.as_bytes()].concat());
        let response = client.response();
        assert_eq!(response.status, status, "{shown}");
        client.assert_closed();
        self.upstream.assert_received_nothing(&self.gateway);

        let mut client = self.gateway.client();
        client.send([VALID.as_bytes(), invalid, SMUGGLED.as_bytes()].concat());
        assert_eq!(client.response().status, 200, "{shown}");
        assert_eq!(client.response().status, status, "{shown}");
        client.assert_closed();
        let received = self.upstream.received();
        assert_eq!(received.matches(" HTTP/1.1").count(), 1, "{received:?}");
        assert!(received.starts_with("GET /api/good "), "{received:?}");
        self.upstream.clear_received();
    }

    /// Asserts that the gateway rejects `request` with `status` and forwards no part of it. The connection can stay
    /// open.
    #[track_caller]
    fn assert_rejected(&self, status: u16, request: &str) {
        let mut client = self.gateway.client();
        client.send(request);
        assert_eq!(client.response().status, status, "{request:?}");
        self.upstream.assert_received_nothing(&self.gateway);
    }
}

#[test]
fn an_invalid_head_is_rejected_and_the_connection_closed() {
    let fixture = WireFixture::start();
    for (status, invalid) in [
        (400, "GET /api HTTP/1.1\r\n\r\n"),
        (400, "GET /api HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n"),
        (400, "GET /api HTTP/1.1\nHost: a\n\n"),
        (400, "GET /api HTTP/1.1\r\nHost: a\r\nX: y\rZ: z\r\n\r\n"),
        (400, "GET /api HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n"),
        (
            400,
            "GET /api HTTP/1.1\r\nHost: a\r\nContent-Length : 5\r\n\r\n",
        ),
        (400, "GET /api HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n"),
        (400, "GET /a pi HTTP/1.1\r\nHost: a\r\n\r\n"),
        (505, "GET /api HTTP/2.0\r\nHost: a\r\n\r\n"),
    ] {
        fixture.assert_rejected_and_closed(status, invalid);
    }
    for lines in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: +5",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding:\r\n chunked",
    ] {
        let request = format!("POST /api HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n0\r\n\r\n");
        fixture.assert_rejected_and_closed(400, request);
    }
    let request = "POST /api HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    fixture.assert_rejected_and_closed(400, request);
}

#[test]
fn an_invalid_chunk_returns_400_and_closes() {
    let upstream = RawUpstream::scripted(|connection| {
        while let Some(request) = connection.request() {
            connection.send(crate::support::raw_http::ok(request.line()));
        }
    });
    let gateway = WireGateway::forwarding_to(&upstream);
    for body in [
        "5;a\nb\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "5\r\nhello!\r\n0\r\n\r\n",
        "5\r\nhello\r\n0\r\nX : y\r\n\r\n",
    ] {
        let mut client = gateway.client();
        client.send(format!(
            "POST /api HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}{SMUGGLED}"
        ));
        assert_eq!(client.response().status, 400, "{body:?}");
        client.assert_closed();

        let mut client = gateway.client();
        client.send("GET /api/after HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(
            client.response().body,
            b"GET /api/after HTTP/1.1",
            "{body:?}"
        );
        let received = upstream.received();
        assert!(!received.contains("smuggled"), "{body:?}: {received:?}");
        assert!(!received.contains("\r\n0\r\n"), "{body:?}: {received:?}");
        upstream.clear_received();
    }
}

#[test]
fn an_ambiguous_host_or_target_is_rejected() {
    let fixture = WireFixture::start();
    for (status, request) in [
        (400, "GET /api HTTP/1.1\r\nHost: a,b\r\n\r\n"),
        (400, "GET /api HTTP/1.1\r\nHost: user@a\r\n\r\n"),
        (400, "GET http://b/api HTTP/1.1\r\nHost: a\r\n\r\n"),
        // The target has no scheme, so it is a path, which some servers read as `/api`.
        (400, "GET //b/api HTTP/1.1\r\nHost: a\r\n\r\n"),
        (400, "GET ?x HTTP/1.1\r\nHost: a\r\n\r\n"),
        (405, "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n"),
        (405, "TRACE /api HTTP/1.1\r\nHost: a\r\n\r\n"),
        (405, "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n"),
    ] {
        fixture.assert_rejected(status, request);
    }
}

#[test]
fn an_absolute_target_is_sent_to_the_configured_upstream() {
    let fixture = WireFixture::start();
    let mut client = fixture.gateway.client();
    client.send("GET http://elsewhere.test:1/api/x HTTP/1.1\r\nHost: elsewhere.test:1\r\n\r\n");
    assert_eq!(client.response().body, b"GET /api/x HTTP/1.1");
}

#[test]
fn bytes_after_a_rejected_connect_are_not_tunnelled() {
    let fixture = WireFixture::start();
    let mut client = fixture.gateway.client();
    client.send(format!(
        "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n{VALID}"
    ));
    assert!(matches!(client.response().status, 400 | 405));
    // The gateway either parses the bytes after the rejected CONNECT as a new request, or closes the connection.
    let (rest, _) = {
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        client.read_to_end()
    };
    let rest = String::from_utf8_lossy(&rest);
    assert!(
        rest.is_empty() || rest.starts_with("HTTP/1.1 200"),
        "{rest}"
    );
}
