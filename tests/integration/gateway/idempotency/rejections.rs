//! Tests of requests that the gateway rejects because of their idempotency key. It claims no key and forwards nothing.

use tidegate::idempotency::RecordCounts;

use super::{assert_execution, numbered_executions};
use crate::support::raw_http;
use crate::support::{Gateway, Upstream};

/// Asserts that no idempotency key was claimed and that upstream received no request.
#[track_caller]
fn assert_nothing_executed(gateway: &Gateway, upstream: &Upstream) {
    assert_eq!(gateway.counts(), RecordCounts::default());
    assert_eq!(upstream.count(), 0);
}

#[test]
fn control_characters_in_a_key_are_never_repeated_in_a_response() {
    let upstream = numbered_executions();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    for key in [
        &b"a\x01b"[..],
        b"a\x7fb",
        b"a\0b",
        b"a\rX-Injected: 1",
        b"\"a\x1bb\"",
        b"a\x0bb",
    ] {
        let mut client = raw_http::RawClient::connect(gateway.address());
        let head = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nIdempotency-Key: ";
        client.send([&head[..], key, b"\r\nContent-Length: 2\r\n\r\nhi"].concat());
        let (response, _) = client.read_to_end();
        let shown = response.escape_ascii().to_string();
        assert!(response.starts_with(b"HTTP/1.1 400 "), "{shown}");
        assert!(!shown.to_lowercase().contains("x-injected"), "{shown}");
        assert!(!raw_http::contains(&response, key), "{shown}");
    }
    assert_nothing_executed(&gateway, &upstream);
}

#[tokio::test]
async fn a_malformed_body_claims_nothing() {
    let upstream = numbered_executions();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let head = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nIdempotency-Key: k1\r\n";
    let malformed = format!("{head}Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\nzz\r\n\r\n");
    let rejected = gateway.client().send_raw(malformed).await;
    assert!(rejected.starts_with("HTTP/1.1 400 "), "{rejected}");
    assert!(rejected.contains("urn:tidegate:problem:bad-request"));
    assert_nothing_executed(&gateway, &upstream);
    assert_execution(&gateway.client().post("/").key("k1").send().await, 1);
}

#[tokio::test]
async fn a_keyed_request_cannot_be_upgraded() {
    let upstream = numbered_executions();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let head = "POST / HTTP/1.1\r\nHost: a\r\nConnection: upgrade, close\r\nUpgrade: websocket\r\n";
    let rejected = gateway
        .client()
        .send_raw(format!("{head}Idempotency-Key: k1\r\n\r\n"))
        .await;
    assert!(rejected.starts_with("HTTP/1.1 400 "), "{rejected}");
    assert!(rejected.contains("urn:tidegate:problem:bad-request"));
    assert_nothing_executed(&gateway, &upstream);
    // The gateway forwards an upgrade request without a key. It also forwards one with a method to which the
    // idempotency rule does not apply.
    for head in [
        format!("{head}\r\n"),
        format!("{}Idempotency-Key: k1\r\n\r\n", head.replace("POST", "GET")),
    ] {
        let response = gateway.client().send_raw(head).await;
        assert!(response.starts_with("HTTP/1.1 201 "), "{response}");
    }
}
