//! Requests that two servers could read differently: refused, and nothing of them passed on.

use crate::wire_raw::{Running, Upstream};

/// What an attacker would have upstream see.
const SMUGGLED: &str = "GET /api/smuggled HTTP/1.1\r\nHost: a\r\n\r\n";

const GOOD: &str = "GET /api/good HTTP/1.1\r\nHost: a\r\n\r\n";

/// A gateway that must let nothing pass.
struct Guarded {
    upstream: Upstream,
    gateway: Running,
}

impl Guarded {
    fn start() -> Self {
        let upstream = Upstream::repeating();
        let gateway = Running::before(&upstream);
        Self { upstream, gateway }
    }

    /// Holds that `bad` is refused with `status`, first on its connection or behind another request,
    /// that the connection ends there, and that upstream learns nothing of it.
    #[track_caller]
    fn refuses(&self, status: u16, bad: impl AsRef<[u8]>) {
        let bad = bad.as_ref();
        let shown = bad[..bad.len().min(200)].escape_ascii();
        let mut client = self.gateway.client();
        client.send([bad, SMUGGLED.as_bytes()].concat());
        let answer = client.answer();
        assert_eq!(answer.status, status, "{shown}");
        client.is_hung_up();
        self.upstream.got_nothing_by(&self.gateway);

        let mut client = self.gateway.client();
        client.send([GOOD.as_bytes(), bad, SMUGGLED.as_bytes()].concat());
        assert_eq!(client.answer().status, 200, "{shown}");
        assert_eq!(client.answer().status, status, "{shown}");
        client.is_hung_up();
        let received = self.upstream.received();
        assert_eq!(received.matches(" HTTP/1.1").count(), 1, "{received:?}");
        assert!(received.starts_with("GET /api/good "), "{received:?}");
        self.upstream.forget();
    }

    /// A request with these header lines besides Host and what may be a body.
    #[track_caller]
    fn refuses_post(&self, lines: &str, body: &str) {
        let request = format!("POST /api HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n{body}");
        self.refuses(400, request);
    }

    /// Holds that `request` is refused with `status`, nothing of it passed on, and the connection
    /// either closed or good for the next request.
    #[track_caller]
    fn declines(&self, status: u16, request: &str) {
        let mut client = self.gateway.client();
        client.send(request);
        assert_eq!(client.answer().status, status, "{request:?}");
        self.upstream.got_nothing_by(&self.gateway);
    }
}

#[test]
fn a_length_given_in_two_ways_is_refused() {
    let guarded = Guarded::start();
    let chunked = "0\r\n\r\n";
    for lines in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Content-Length: 0\r\nTransfer-Encoding: chunked",
        "transfer-encoding:chunked\r\ncontent-length:5",
        "Content-Length: 5\r\nX: y\r\nTRANSFER-ENCODING: CHUNKED",
    ] {
        guarded.refuses_post(lines, chunked);
    }
}

#[test]
fn a_length_that_is_not_one_plain_number_is_refused() {
    let guarded = Guarded::start();
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
        guarded.refuses_post(&format!("Content-Length: {length}"), "hello");
    }
    for lines in [
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 0\r\nX: y\r\ncontent-length: 5",
    ] {
        guarded.refuses_post(lines, "hello");
    }
}

#[test]
fn a_transfer_coding_other_than_exactly_chunked_is_refused() {
    let guarded = Guarded::start();
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
        guarded.refuses_post(&format!("Transfer-Encoding: {coding}"), "0\r\n\r\n");
    }
    for lines in [
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding:\r\n chunked",
    ] {
        guarded.refuses_post(lines, "0\r\n\r\n");
    }
}

#[test]
fn a_transfer_coding_in_http_1_0_is_refused() {
    let guarded = Guarded::start();
    for rest in [
        "Transfer-Encoding: chunked",
        "Connection: keep-alive\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
    ] {
        let request = format!("POST /api HTTP/1.0\r\nHost: a\r\n{rest}\r\n\r\n0\r\n\r\n");
        guarded.refuses(400, request);
    }
}

#[test]
fn lines_and_names_that_bend_the_grammar_are_refused() {
    let guarded = Guarded::start();
    for bad in [
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
        guarded.refuses(400, bad);
    }
    guarded.refuses(400, b"GET /api/\xff HTTP/1.1\r\nHost: a\r\n\r\n");
    guarded.refuses(505, "GET /api HTTP/2.0\r\nHost: a\r\n\r\n");
    guarded.refuses(505, "GET /api HTTP/1.2\r\nHost: a\r\n\r\n");
}

#[test]
fn a_broken_chunk_ends_the_request_where_it_breaks() {
    let upstream = Upstream::scripted(|conversation| {
        while let Some(request) = conversation.request() {
            conversation.send(crate::wire_raw::ok(request.line()));
        }
    });
    let gateway = Running::before(&upstream);
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
        assert_eq!(client.answer().status, 400, "{shown:?}");
        client.is_hung_up();

        let mut client = gateway.client();
        client.send("GET /api/after HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(
            client.answer().body,
            b"GET /api/after HTTP/1.1",
            "{shown:?}"
        );
        let received = upstream.received();
        assert!(!received.contains("smuggled"), "{shown:?}: {received:?}");
        assert!(!received.contains("\r\n0\r\n"), "{shown:?}: {received:?}");
        upstream.forget();
    }
}

#[test]
fn a_host_that_is_not_one_plain_host_is_refused() {
    let guarded = Guarded::start();
    guarded.refuses(400, "GET /api HTTP/1.1\r\n\r\n");
    guarded.refuses(400, "GET /api HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n");
    guarded.refuses(400, "GET /api HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n");
    guarded.declines(400, "GET /api HTTP/1.0\r\n\r\n");
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
        guarded.declines(400, &format!("GET /api HTTP/1.1\r\nHost: {host}\r\n\r\n"));
    }
}

#[test]
fn an_absolute_target_for_another_host_is_refused() {
    let guarded = Guarded::start();
    for target in [
        "http://b/api",
        "http://a:81/api",
        "http://a@b/api",
        "http://a.b/api",
        "https://b/api",
        "//b/api",
    ] {
        let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut client = guarded.gateway.client();
        client.send(&request);
        let status = client.answer().status;
        // Without a scheme it is a path, which no route takes.
        let expected = if target.starts_with("//") { 404 } else { 400 };
        assert_eq!(status, expected, "{request:?}");
        guarded.upstream.got_nothing_by(&guarded.gateway);
    }
}

#[test]
fn an_absolute_target_goes_where_the_configuration_says() {
    let guarded = Guarded::start();
    let mut client = guarded.gateway.client();
    client.send("GET http://elsewhere.test:1/api/x HTTP/1.1\r\nHost: elsewhere.test:1\r\n\r\n");
    assert_eq!(client.answer().body, b"GET /api/x HTTP/1.1");
}

#[test]
fn methods_that_ask_for_no_resource_are_refused() {
    let guarded = Guarded::start();
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
        let mut client = guarded.gateway.client();
        client.send(request);
        let status = client.answer().status;
        assert!(matches!(status, 400 | 405), "{status} for {request:?}");
        guarded.upstream.got_nothing_by(&guarded.gateway);
    }
}

#[test]
fn what_is_sent_behind_a_refused_connect_is_no_tunnel() {
    let guarded = Guarded::start();
    let mut client = guarded.gateway.client();
    client.send(format!("CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n{GOOD}"));
    assert!(matches!(client.answer().status, 400 | 405));
    // The rest is a request like any other, or the connection is over.
    let (rest, _) = {
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        client.rest()
    };
    let rest = String::from_utf8_lossy(&rest);
    assert!(
        rest.is_empty() || rest.starts_with("HTTP/1.1 200"),
        "{rest}"
    );
}
