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
async fn a_target_with_a_fragment_returns_400_and_is_not_forwarded() {
    let upstream = Upstream::echo();
    let gateway = gateway(&upstream);
    for (target, at) in [("http://a#x", 8), ("/#", 1), ("/a?b#c", 4)] {
        let response = send(&gateway, &format!("GET {target}")).await;
        assert_eq!(response.status, 400, "{target}");
        let detail = body(&response)["detail"].to_string();
        let expected = format!("byte {at} of the request target is `#`");
        assert!(detail.contains(&expected), "{target}: {detail}");
        assert!(detail.contains("Write `%23`"), "{target}: {detail}");
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn a_control_character_in_a_target_is_named() {
    let upstream = Upstream::echo();
    let gateway = gateway(&upstream);
    for (target, expected) in [
        (
            "/a\u{1}",
            "byte 2 of the request target is a control character",
        ),
        ("/\0", "byte 1 of the request target is a NUL character"),
    ] {
        let response = send(&gateway, &format!("GET {target}")).await;
        assert_eq!(response.status, 400);
        let detail = body(&response)["detail"].to_string();
        assert!(detail.contains(expected), "{detail}");
    }
    assert_eq!(upstream.count(), 0);
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
async fn an_absolute_target_without_a_path_is_the_root() {
    let upstream = Upstream::echo();
    let gateway = gateway(&upstream);
    for (target, forwarded) in [
        ("http://a", "/"),
        ("http://a/", "/"),
        ("http://a?x=1", "/?x=1"),
        ("http://a/b?c", "/b?c"),
    ] {
        let response = send(&gateway, &format!("GET {target}")).await;
        assert_eq!(response.status, 200, "{target}");
        assert_eq!(body(&response)["target"], forwarded, "{target}");
    }
    let response = send(&gateway, "OPTIONS http://a/").await;
    assert_eq!(body(&response)["target"], "/");
}

#[tokio::test]
async fn requests_that_no_server_can_serve_return_405_with_allow() {
    let upstream = Upstream::echo();
    let gateway = gateway(&upstream);
    for line in [
        "OPTIONS http://a",
        "OPTIONS *",
        "GET *",
        "TRACE /a",
        "CONNECT a:80",
    ] {
        let response = send(&gateway, line).await;
        assert_eq!(response.status, 405, "{line}");
        let problem = body(&response);
        assert_eq!(problem["type"], "urn:tidegate:problem:method-not-allowed");
        let allowed = response.header("allow");
        let expected = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT";
        assert_eq!(allowed, Some(expected), "{line}");
    }
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn characters_that_uris_do_not_allow_are_forwarded_in_percent_encoded_form() {
    let upstream = Upstream::echo();
    let gateway = gateway(&upstream);
    for (target, forwarded) in [
        (
            r#"/api/v1/query?query=up{job="x"}"#,
            "/api/v1/query?query=up%7Bjob=%22x%22%7D",
        ),
        ("/a<b>`c`?d=<e>`f`", "/a%3Cb%3E%60c%60?d=%3Ce%3E%60f%60"),
        ("http://a/|^?|^", "/%7C%5E?%7C%5E"),
    ] {
        let response = send(&gateway, &format!("GET {target}")).await;
        assert_eq!(response.status, 200, "{target}");
        assert_eq!(body(&response)["target"], forwarded, "{target}");
    }
}
