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

    /// Asserts that the gateway rejects a POST request with these header lines and this body with 400.
    #[track_caller]
    fn assert_post_rejected(&self, lines: &str, body: &str) {
        let request = format!("POST /api HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n{body}");
        self.assert_rejected_and_closed(400, request);
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
fn content_length_with_transfer_encoding_is_rejected() {
    let fixture = WireFixture::start();
    let chunked = "0\r\n\r\n";
    for lines in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Content-Length: 0\r\nTransfer-Encoding: chunked",
        "transfer-encoding:chunked\r\ncontent-length:5",
        "Content-Length: 5\r\nX: y\r\nTRANSFER-ENCODING: CHUNKED",
    ] {
        fixture.assert_post_rejected(lines, chunked);
    }
}

#[test]
fn an_invalid_or_repeated_content_length_is_rejected() {
    let fixture = WireFixture::start();
    for length in [
        "+5",
        "-0",
        "-5",
        "0x5",
        "5 5",
        "5,5",
        "5, 5",
        "5;",
        "5.0",
        "5e0",
        "",
        "five",
        "\u{665}",
        "18446744073709551614",
        "18446744073709551615",
        "18446744073709551616",
        "99999999999999999999999999",
    ] {
        fixture.assert_post_rejected(&format!("Content-Length: {length}"), "hello");
    }
    for lines in [
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 0\r\nX: y\r\ncontent-length: 5",
    ] {
        fixture.assert_post_rejected(lines, "hello");
    }
}

#[test]
fn a_transfer_coding_other_than_chunked_is_rejected() {
    let fixture = WireFixture::start();
    for coding in [
        "gzip, chunked",
        "chunked, gzip",
        "chunked, chunked",
        "chunked,",
        ",chunked",
        "xchunked",
        "chunkedx",
        "chunked;q=1",
        "\"chunked\"",
        "identity",
        "gzip",
        "",
        "chun ked",
        "chunked\u{b}",
    ] {
        fixture.assert_post_rejected(&format!("Transfer-Encoding: {coding}"), "0\r\n\r\n");
    }
    for lines in [
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding:\r\n chunked",
    ] {
        fixture.assert_post_rejected(lines, "0\r\n\r\n");
    }
}

#[test]
fn a_transfer_coding_in_http_1_0_is_rejected() {
    let fixture = WireFixture::start();
    for rest in [
        "Transfer-Encoding: chunked",
        "Connection: keep-alive\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
    ] {
        let request = format!("POST /api HTTP/1.0\r\nHost: a\r\n{rest}\r\n\r\n0\r\n\r\n");
        fixture.assert_rejected_and_closed(400, request);
    }
}

#[test]
fn invalid_lines_and_names_are_rejected() {
    let fixture = WireFixture::start();
    for invalid in [
        "GET /api HTTP/1.1\nHost: a\n\n",
        "GET /api HTTP/1.1\r\nHost: a\n\r\n",
        "GET /api HTTP/1.1\r\nHost: a\r\n\n",
        "GET /api HTTP/1.1\r\nHost: a\r\nX: y\nContent-Length: 5\r\n\r\n",
        "GET /api HTTP/1.1\rHost: a\r\r",
        "GET /api HTTP/1.1\r\nHost: a\r\nX: y\rZ: z\r\n\r\n",
        "GET /api HTTP/1.1\r\nHost: a\r\nX: y\r\r\n\r\n",
        "GET /api HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n",
        "GET /api HTTP/1.1\r\nHost: a\r\nX: y\r\n\tz\r\n\r\n",
        "GET /api HTTP/1.1\r\n Host: a\r\n\r\n",
        "GET /api HTTP/1.1\r\nHost : a\r\n\r\n",
        "GET /api HTTP/1.1\r\nHost: a\r\nContent-Length : 5\r\n\r\n",
        "GET /api HTTP/1.1\r\nHost: a\r\nTransfer-Encoding\t: chunked\r\n\r\n",
        "GET /api HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n",
        "GET /api HTTP/1.1\r\nHost: a\r\nX\0: b\r\n\r\n",
        "GET /api\0 HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /api HTTP/1.1\r\nHost: a\r\nX: a\x7fb\r\n\r\n",
        "GET /api HTTP/1.1\r\nHost: a\r\nX: a\x1bb\r\n\r\n",
        "GET /api HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n",
        "GET /api HTTP/1.1\r\nHost: a\r\nX\r\n\r\n",
        "GET /api HTTP/1.1\r\nHost: a\r\nX(: b\r\n\r\n",
        "GET /api HTTP/1.1\r\nHost: a\r\nX\u{e9}: b\r\n\r\n",
        "GET /api HTTP/1.1\r\n\r\n",
        "GET  /api HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /api  HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET\t/api\tHTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /api HTTP/1.1 \r\nHost: a\r\n\r\n",
        "GET /api\r\nHost: a\r\n\r\n",
        " GET /api HTTP/1.1\r\nHost: a\r\n\r\n",
        "\r\n\r\nGET /api HTTP/1.1\r\nHost: a\r\n\r\n",
        "\nGET /api HTTP/1.1\r\nHost: a\r\n\r\n",
        "G(T /api HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /api http/1.1\r\nHost: a\r\n\r\n",
        "GET /api HTTP/1.1x\r\nHost: a\r\n\r\n",
        "GET /api HTTP/01.1\r\nHost: a\r\n\r\n",
        "GET /a pi HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        fixture.assert_rejected_and_closed(400, invalid);
    }
    fixture.assert_rejected_and_closed(400, b"GET /api/\xff HTTP/1.1\r\nHost: a\r\n\r\n");
    fixture.assert_rejected_and_closed(505, "GET /api HTTP/2.0\r\nHost: a\r\n\r\n");
    fixture.assert_rejected_and_closed(505, "GET /api HTTP/1.2\r\nHost: a\r\n\r\n");
}

#[test]
fn an_invalid_chunk_returns_400_and_closes() {
    let upstream = RawUpstream::scripted(|connection| {
        while let Some(request) = connection.request() {
            connection.send(crate::support::raw_http::ok(request.line()));
        }
    });
    let gateway = WireGateway::forwarding_to(&upstream);
    let long = "x".repeat(17 * 1024);
    for body in [
        &format!("5;{long}\r\nhello\r\n0\r\n\r\n"),
        "5;a\nb\r\nhello\r\n0\r\n\r\n",
        "5;a\r\r\nhello\r\n0\r\n\r\n",
        "5;a\0\r\nhello\r\n0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "-1\r\nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "5\t\r\nhello\r\n0\r\n\r\n",
        "00000000000000005\r\nhello\r\n0\r\n\r\n",
        "10000000000000005\r\nhello\r\n0\r\n\r\n",
        "5\nhello\r\n0\r\n\r\n",
        "5\rhello\r\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5\r\nhello!\r\n0\r\n\r\n",
        "\r\nhello\r\n0\r\n\r\n",
        "g\r\nhello\r\n0\r\n\r\n",
        "5\r\nhello\r\n0\r\n\n",
        "5\r\nhello\r\n0\r\nX : y\r\n\r\n",
        "5\r\nhello\r\n0\r\nX: y\n\r\n",
        "5\r\nhello\r\n0\r\n X: y\r\n\r\n",
    ] {
        let shown = &body[..body.len().min(60)];
        let mut client = gateway.client();
        client.send(format!(
            "POST /api HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{body}{SMUGGLED}"
        ));
        assert_eq!(client.response().status, 400, "{shown:?}");
        client.assert_closed();

        let mut client = gateway.client();
        client.send("GET /api/after HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(
            client.response().body,
            b"GET /api/after HTTP/1.1",
            "{shown:?}"
        );
        let received = upstream.received();
        assert!(!received.contains("smuggled"), "{shown:?}: {received:?}");
        assert!(!received.contains("\r\n0\r\n"), "{shown:?}: {received:?}");
        upstream.clear_received();
    }
}

#[test]
fn an_invalid_or_repeated_host_is_rejected() {
    let fixture = WireFixture::start();
    fixture.assert_rejected_and_closed(400, "GET /api HTTP/1.1\r\n\r\n");
    fixture.assert_rejected_and_closed(400, "GET /api HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n");
    fixture.assert_rejected_and_closed(400, "GET /api HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n");
    for host in [
        "",
        "a,b",
        "a, b",
        "user@a",
        "user:pass@a",
        "a/b",
        "a/",
        "a?b",
        "a#b",
        "a b",
        "a\\b",
        ":80",
        "a:b",
        "a:80:80",
        "a:8 0",
        "::1",
        "[::1",
        "[::1]x",
        "http://a",
        "a%00b",
        "b\u{e9}",
    ] {
        fixture.assert_rejected(400, &format!("GET /api HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    }
}

#[test]
fn an_absolute_target_for_another_host_is_rejected() {
    let fixture = WireFixture::start();
    for target in [
        "http://b/api",
        "http://a:81/api",
        "http://a@b/api",
        "http://a.b/api",
        "https://b/api",
        "//b/api",
    ] {
        let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut client = fixture.gateway.client();
        client.send(&request);
        // `//b/api` has no scheme, so it is a path. It is ambiguous, because some servers read it as `/api`.
        assert_eq!(client.response().status, 400, "{request:?}");
        fixture.upstream.assert_received_nothing(&fixture.gateway);
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
fn connect_trace_and_invalid_targets_are_rejected() {
    let fixture = WireFixture::start();
    for request in [
        "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n",
        "CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
        "CONNECT /api HTTP/1.1\r\nHost: a\r\n\r\n",
        "TRACE /api HTTP/1.1\r\nHost: a\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET * HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET api HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET ftp://a/api HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http:///api HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET ?x HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET \\api HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        let mut client = fixture.gateway.client();
        client.send(request);
        let status = client.response().status;
        assert!(matches!(status, 400 | 405), "{status} for {request:?}");
        fixture.upstream.assert_received_nothing(&fixture.gateway);
    }
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
