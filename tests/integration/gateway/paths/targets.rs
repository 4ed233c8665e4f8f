//! Tests of unusual request targets: fragments, missing paths, and characters that URIs do not allow.

use super::gateway;
use crate::gateway::http2::frames::{FrameClient, HEADERS, RST_STREAM};
use crate::support::raw_http::{RawClient, RawResponse};
use crate::support::{Gateway, Upstream};

/// Error code `PROTOCOL_ERROR` of HTTP/2.
const PROTOCOL_ERROR: u32 = 1;

/// Sends an HTTP/1 request with this request line and the host `a`.
async fn send(gateway: &Gateway, line: &str) -> RawResponse {
    let request = format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n");
    let address = gateway.address();
    let exchange = move || {
        let mut client = RawClient::connect(address);
        client.send(request);
        client.response()
    };
    let response = tokio::task::spawn_blocking(exchange);
    response.await.expect("the gateway sends a response")
}

fn body(response: &RawResponse) -> serde_json::Value {
    serde_json::from_slice(&response.body).expect("the body is JSON")
}

#[tokio::test]
async fn an_http2_path_without_a_slash_returns_400_and_is_not_forwarded() {
    let upstream = Upstream::echo();
    let gateway = gateway(&upstream);
    let mut client = FrameClient::connect(&gateway).await;
    for (stream, path) in [(1, "#x"), (3, "?x"), (5, "#"), (7, "*")] {
        client.get(stream, path).await;
        client.response(stream).await;
    }
    for (status, expected) in [(400, 3), (405, 1)] {
        let series = format!("requests_total{{route=\"(none)\",status=\"{status}\"}}");
        gateway.wait_for_metric(&series, expected).await;
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn an_http2_path_that_the_library_does_not_accept_resets_the_stream() {
    let upstream = Upstream::echo();
    let gateway = gateway(&upstream);
    for path in ["", "/a<b>", "/a`", "/a?b=\"c\"", "/a\u{1}", "api"] {
        let mut client = FrameClient::connect(&gateway).await;
        client.get(1, path).await;
        loop {
            let frame = client.next().await.expect("the connection is open");
            assert_ne!(frame.kind, HEADERS, "{path:?} gets a response");
            if frame.kind == RST_STREAM {
                assert_eq!(frame.payload, PROTOCOL_ERROR.to_be_bytes(), "{path:?}");
                break;
            }
        }
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn unusual_targets_are_rejected_with_a_reason_or_unified() {
    let upstream = Upstream::echo();
    let gateway = gateway(&upstream);
    for (line, status, member, expected) in [
        (
            "GET http://a#x",
            400,
            "detail",
            "byte 8 of the request target is `#`",
        ),
        (
            "GET /a\u{1}",
            400,
            "detail",
            "byte 2 of the request target is a control character",
        ),
        (
            "GET /\0",
            400,
            "detail",
            "byte 1 of the request target is a NUL character",
        ),
        ("OPTIONS http://a", 405, "type", "method-not-allowed"),
        ("OPTIONS *", 405, "type", "method-not-allowed"),
        ("TRACE /a", 405, "type", "method-not-allowed"),
        ("CONNECT a:80", 405, "type", "method-not-allowed"),
        ("GET http://a", 200, "target", "/"),
        ("GET http://a?x=1", 200, "target", "/?x=1"),
        ("OPTIONS http://a/", 200, "target", "/"),
        (
            "GET /a<b>`c`?d=<e>|^",
            200,
            "target",
            "/a%3Cb%3E%60c%60?d=%3Ce%3E%7C%5E",
        ),
    ] {
        let response = send(&gateway, line).await;
        assert_eq!(response.status, status, "{line}");
        let body = body(&response);
        let found = body[member].as_str().unwrap();
        assert!(found.contains(expected), "{line}: {found}");
    }
    assert_eq!(upstream.count(), 4);
}
