//! Tests that a replay equals the first response: same status, same header lines, same body bytes.

use http::HeaderMap;

use super::url;
use crate::support::raw_http;
use crate::support::{ClientResponse, Gateway};

/// Header lines that a store can change by mistake, for example by merging or reordering them.
const HEAD: &[u8] = b"HTTP/1.1 201 Created\r\n\
    Set-Cookie: a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT\r\n\
    X-First: 1\r\n\
    Set-Cookie: b=\"2, 3\"; Path=/\r\n\
    X-Latin: caf\xe9\r\n\
    X-Empty: \r\n\
    Link: </a>; rel=\"next\", </b>\r\n\
    Link: </c>\r\n\
    ETag: \"x\"\r\n\
    X-Request-Id: upstreams-own\r\n\
    Date: Mon, 01 Jan 2024 00:00:00 GMT\r\n\
    Content-Encoding: gzip\r\n\
    Content-Type: application/octet-stream\r\n";

/// Not a valid gzip stream: the gateway never decompresses a body.
const BODY: &[u8] = b"\0\x01\xff\r\n0\r\n\r\n\0end";

/// Creates an upstream that sends `response` to the first request, and a different response to all later requests.
fn responding_once(response: Vec<u8>) -> raw_http::RawUpstream {
    raw_http::RawUpstream::scripted(move |connection| {
        connection.request();
        connection.send(&response);
        while connection.request().is_some() {
            connection.send(raw_http::ok("a second execution"));
        }
    })
}

fn sized(head: &[u8], body: &[u8]) -> Vec<u8> {
    let length = format!("Content-Length: {}\r\n\r\n", body.len());
    [head, length.as_bytes(), body].concat()
}

/// Returns whether the value of a header is specific to one response. Such headers differ between the first response
/// and its replay.
fn is_per_request(name: &str) -> bool {
    let names = [
        "x-request-id",
        "idempotent-replayed",
        "idempotent-original-request-id",
        "x-should-retry",
    ];
    names.contains(&name)
}

/// Returns the header lines that the first response and its replay have in common, in order.
fn lines(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    let lines = headers.iter();
    lines
        .filter(|(name, _)| !is_per_request(name.as_str()))
        .map(|(name, value)| (name.to_string(), value.as_bytes().to_vec()))
        .collect()
}

/// Asserts that `replay` is a replay of `first` and has its own request ID.
#[track_caller]
fn assert_identical(first: &ClientResponse, replay: &ClientResponse) {
    assert!(!first.is_replay() && replay.is_replay());
    assert_eq!(replay.status, first.status);
    assert_eq!(lines(&replay.headers), lines(&first.headers));
    assert_eq!(replay.body, first.body);
    assert!(first.has("x-request-id") && replay.has("x-request-id"));
    let original = replay.header("idempotent-original-request-id");
    assert_eq!(original, first.header("x-request-id"));
    let should_retry = replay.headers.get("x-should-retry");
    let expected = (first.status >= 500).then_some("false");
    assert_eq!(should_retry.map(|it| it.to_str().unwrap()), expected);
    assert_ne!(replay.header("x-request-id"), first.header("x-request-id"));
}

#[test]
fn every_header_line_and_every_byte_is_replayed() {
    let upstream = responding_once(sized(HEAD, BODY));
    let gateway = Gateway::keyed("")
        .upstream_url(&url(upstream.address))
        .start();
    let send = || {
        let mut client = raw_http::RawClient::connect(gateway.address());
        client.send(
            "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k1\r\nContent-Length: 2\r\n\
             Connection: close\r\n\r\nhi",
        );
        client.read_to_end().0
    };
    let (first, replay) = (send(), send());
    let stable_parts = |response: &[u8]| -> Vec<Vec<u8>> {
        let end = raw_http::find(response, b"\r\n\r\n")
            .expect("the message should contain a complete head");
        let head = response[..end].split(|&byte| byte == b'\n');
        let lines = head.filter(|line| {
            let name = line.split(|&byte| byte == b':').next();
            let name = String::from_utf8_lossy(name.unwrap_or_default()).to_lowercase();
            !is_per_request(&name)
        });
        let lines = lines.map(|line| line.trim_ascii_end().to_vec());
        lines.chain([response[end + 4..].to_vec()]).collect()
    };
    assert_eq!(stable_parts(&replay), stable_parts(&first));
    assert!(!raw_http::contains(&first, b"idempotent-replayed"));
    assert!(raw_http::contains(&replay, b"idempotent-replayed: true"));

    // The gateway forwards every header line and the body of the first response unchanged, except for the case of
    // header names.
    let mut upstream_parts = stable_parts(&sized(HEAD, BODY));
    assert_eq!(upstream_parts.pop(), Some(BODY.to_vec()));
    for line in &upstream_parts[1..] {
        let at = line
            .iter()
            .position(|&byte| byte == b':')
            .expect("the header line should contain a colon");
        let expected = [&line[..at].to_ascii_lowercase(), &line[at..]].concat();
        let found = stable_parts(&first).contains(&expected);
        assert!(found, "{:?}", expected.escape_ascii().to_string());
    }
    assert!(!raw_http::contains(&replay, b"upstreams-own"));
    let cookie = |response: &[u8], value: &[u8]| {
        raw_http::find(response, value).expect("the response should contain the cookie")
    };
    assert!(cookie(&replay, b"a=1; Exp") < cookie(&replay, b"b=\"2, 3\""));
    assert_eq!(upstream.received().matches("POST /pay").count(), 1);
}

#[tokio::test]
async fn a_response_is_replayed_across_http_versions() {
    for (first_h2, replay_h2) in [(false, true), (true, false), (true, true)] {
        let upstream = responding_once(sized(HEAD, BODY));
        let gateway = Gateway::keyed("")
            .upstream_url(&url(upstream.address))
            .start();
        let send = |h2: bool| {
            let client = gateway.client();
            let client = if h2 { client.h2() } else { client };
            client.post("/pay").key("k1").body("hi").send()
        };
        let first = send(first_h2).await;
        assert_eq!((first.status, &first.body[..]), (201, BODY));
        let replay = send(replay_h2).await;
        assert_ne!(first.version == replay.version, first_h2 != replay_h2);
        assert_identical(&first, &replay);
        assert_eq!(upstream.received().matches("POST /pay").count(), 1);
    }
}

#[tokio::test]
async fn a_chunked_response_is_stored_completely() {
    let chunks = b"4\r\none,\r\n5;x=y\r\n two,\r\n7\r\n thre\0e\r\n0\r\nX-Trailer: t\r\n\r\n";
    let head =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Trailer\r\nX-A: b\r\n\r\n";
    let upstream = responding_once([&head[..], chunks].concat());
    let gateway = Gateway::keyed("")
        .upstream_url(&url(upstream.address))
        .start();
    let send = || {
        let request = gateway.client().post("/").header("TE", "trailers");
        request.key("k1").send()
    };
    let (first, replay) = (send().await, send().await);
    assert_identical(&first, &replay);
    assert_eq!(&first.body[..], b"one, two, thre\0e");
    assert_eq!(first.header("x-a"), "b");
    // The gateway does not store trailers. It also removes them from the first response, so that both responses are
    // equal.
    assert_eq!((first.trailers.len(), replay.trailers.len()), (0, 0));
    assert!(!first.has("trailer"));
}

#[tokio::test]
async fn a_response_with_two_equal_content_length_lines_is_replayed_over_both_versions() {
    let upstream = raw_http::RawUpstream::scripted(|connection| {
        while connection.request().is_some() {
            connection.send(
                "HTTP/1.1 201 Created\r\nContent-Length: 4\r\nX-A: b\r\nContent-Length: 4\r\n\r\npaid",
            );
        }
    });
    let gateway = Gateway::keyed("").upstream_url(&upstream.url()).start();
    for (number, client) in [
        gateway.client(),
        gateway.client().h2(),
        gateway.client(),
        gateway.client().h2(),
    ]
    .iter()
    .enumerate()
    {
        let response = client.post("/").key("k1").send().await;
        assert_eq!((response.status, response.text().as_str()), (201, "paid"));
        assert_eq!(response.header("content-length"), "4");
        assert_eq!(response.is_replay(), number > 0);
    }
    assert_eq!(upstream.connections(), 1);
    let first = gateway.client().h2().post("/").key("k2").send().await;
    assert_eq!((first.status, first.is_replay()), (201, false));
}
