//! Tests of requests that the gateway rejects because of their idempotency key. It claims no key and forwards nothing.

use tidegate::idempotency::RecordCounts;

use super::{
    assert_execution, assert_problem, assert_replay_of, numbered_executions, numbered_on_permit,
};
use crate::support::raw_http;
use crate::support::{Client, Gateway, Upstream, eventually};

/// Asserts that no idempotency key was claimed and that upstream received no request.
#[track_caller]
fn assert_nothing_executed(gateway: &Gateway, upstream: &Upstream) {
    assert_eq!(gateway.counts(), RecordCounts::default());
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn a_request_without_a_required_key_is_rejected() {
    let upstream = numbered_executions();
    let gateway = Gateway::with(
        r#"
        [upstream.api]
        servers = ["{upstream}"]
        [[route]]
        name = "all"
        path = "/"
        idempotency = { mode = "required", scope = "client", header = "X-Once" }
        "#,
    )
    .upstream(&upstream)
    .start();
    let client = gateway.client();
    // Neither request has a valid key: this route reads keys from `X-Once`, so it ignores `Idempotency-Key`.
    for request in [client.post("/"), client.post("/").key("k1")] {
        let rejected = request.body("order").send().await;
        assert_problem(&rejected, 400, "idempotency-key-missing");
        assert!(rejected.text().contains("x-once"), "{}", rejected.text());
    }
    assert_nothing_executed(&gateway, &upstream);
    let send = || client.post("/").header("X-Once", "k1").send();
    assert_execution(&send().await, 1);
    assert_replay_of(&send().await, 1);
    // GET requests need no key: the idempotency rule does not apply to the GET method.
    assert_execution(&client.get("/").send().await, 2);
}

#[tokio::test]
async fn an_invalid_key_is_rejected() {
    let upstream = numbered_executions();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let long = "k".repeat(256);
    let quoted = format!("\"{long}\"");
    for key in [
        &b""[..],
        b"\"\"",
        b"two words",
        b"a\tb",
        b"\"open",
        b"\"a\" \"b\"",
        b"\"a\", \"b\"",
        b"\"tab\there\"",
        "caf\u{e9}".as_bytes(),
        b"caf\xe9",
        b"\"caf\xe9\"",
        long.as_bytes(),
        quoted.as_bytes(),
    ] {
        for client in [gateway.client(), gateway.client().h2()] {
            let request = client.post("/").header_bytes("Idempotency-Key", key);
            let rejected = request.body("order").send().await;
            assert_problem(&rejected, 400, "idempotency-key-invalid");
        }
    }
    for (one, other) in [("k1", "k1"), ("k1", "k2"), ("k1", "")] {
        let request = gateway.client().post("/").key(one).key(other);
        assert_problem(&request.send().await, 400, "idempotency-key-invalid");
    }
    assert_nothing_executed(&gateway, &upstream);
    // The longest valid key (255 bytes) is accepted with and without quotes.
    let long = "k".repeat(255);
    let send = |key: &str| gateway.client().post("/").key(key).send();
    assert_execution(&send(&long).await, 1);
    assert_replay_of(&send(&format!("\"{long}\"")).await, 1);
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
async fn another_request_with_a_used_key_is_rejected() {
    let upstream = numbered_executions();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let client = gateway.client();
    let first = || client.post("/pay?to=ann").key("k1").body("amount=1");
    let first = || first().header("Host", "api.example:8080");
    assert_execution(&first().send().await, 1);
    let send_variant = |method: &str, target: &str, host: &str, body: &'static str| {
        let request = client.request(method, target).header("Host", host);
        request.key("k1").body(body).send()
    };
    for (method, target, host, body) in [
        ("POST", "/pay?to=ann", "api.example", "amount=2"),
        ("POST", "/pay?to=ann", "api.example", ""),
        ("PATCH", "/pay?to=ann", "api.example", "amount=1"),
        ("POST", "/pays?to=ann", "api.example", "amount=1"),
        ("POST", "/pay?to=bob", "api.example", "amount=1"),
        ("POST", "/pay", "api.example", "amount=1"),
        ("POST", "/pay?", "other.example", "amount=1"),
        ("POST", "/pay?to=ann", "other.example", "amount=1"),
    ] {
        let rejected = send_variant(method, target, host, body).await;
        assert_problem(&rejected, 422, "idempotency-key-reused");
    }
    // Requests with equivalent spellings of path and host have the same fingerprint, so they are replayed.
    for (target, host) in [
        ("/pay?to=ann", "API.Example"),
        ("/%70ay?t%6f=ann", "api.example:8080"),
        ("/p%61y?to=ann", "api.example:443"),
    ] {
        assert_replay_of(&send_variant("POST", target, host, "amount=1").await, 1);
    }
    assert_replay_of(&first().send().await, 1);
    assert_eq!(upstream.count(), 1);
}

/// Regression test: the rewrite of a path used to drop the host, which HTTP/2 carries only in `:authority`. The
/// fingerprint then did not include the host. A duplicate request whose path needed no rewrite was rejected, and a
/// request to another host got the response of the first host.
#[tokio::test]
async fn a_unified_path_keeps_its_host_in_both_http_versions() {
    let upstream = numbered_executions();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let send = |client: Client, path: &str, host: &str| {
        client.post(path).header("Host", host).key("k1").send()
    };
    let (h1, h2) = (gateway.client(), gateway.client().h2());
    assert_execution(&send(h2.clone(), "/%70ay", "api.example").await, 1);
    for path in ["/%70ay", "/pay", "/p%61y"] {
        for client in [&h1, &h2] {
            assert_replay_of(&send(client.clone(), path, "api.example").await, 1);
            let other = send(client.clone(), path, "other.example").await;
            assert_problem(&other, 422, "idempotency-key-reused");
        }
    }
    // A path that a server can read as `/pay` is forwarded as it is, so it is another request.
    for path in ["/./pay", "//pay", "/x/../pay"] {
        let other = send(h1.clone(), path, "api.example").await;
        assert_problem(&other, 422, "idempotency-key-reused");
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn another_request_with_a_key_in_progress_is_rejected_without_waiting() {
    let (upstream, permits) = numbered_on_permit();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let send = |body: &'static str| gateway.client().post("/").key("k1").body(body).send();
    let first = tokio::spawn(send("amount=1"));
    eventually("upstream has the first request", async || {
        upstream.count() == 1
    })
    .await;
    let rejected = send("amount=2").await;
    assert_problem(&rejected, 422, "idempotency-key-reused");
    permits.add_permits(1);
    assert_execution(&first.await.expect("the request should get a response"), 1);
    assert_replay_of(&send("amount=1").await, 1);
}

#[tokio::test]
async fn a_keyed_body_above_max_request_returns_413() {
    let upstream = numbered_executions();
    let gateway = Gateway::keyed("max_request = \"1KiB\"")
        .upstream(&upstream)
        .start();
    let large = "x".repeat(1025);
    for client in [gateway.client(), gateway.client().h2()] {
        let request = client.post("/").key("k1").body(large.clone());
        let rejected = request.send().await;
        assert_problem(&rejected, 413, "payload-too-large");
        assert!(rejected.text().contains("1024"), "{}", rejected.text());
    }
    let chunked = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nIdempotency-Key: k1\r\n\
         Transfer-Encoding: chunked\r\n\r\n201\r\n{0}\r\n200\r\n{1}\r\n0\r\n\r\n",
        "x".repeat(0x201),
        "x".repeat(0x200)
    );
    let rejected = gateway.client().send_raw(chunked).await;
    assert!(rejected.starts_with("HTTP/1.1 413 "), "{rejected}");
    assert!(rejected.contains("urn:tidegate:problem:payload-too-large"));
    assert_nothing_executed(&gateway, &upstream);

    let request = || gateway.client().post("/").key("k1").body("x".repeat(1024));
    assert_execution(&request().send().await, 1);
    assert_replay_of(&request().send().await, 1);
    // `max_request` does not apply to a request without an idempotency key, because the gateway computes no fingerprint
    // of its body.
    assert_execution(&gateway.client().post("/").body(large).send().await, 2);
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

#[tokio::test]
async fn with_in_flight_conflict_a_duplicate_returns_409_with_retry_after() {
    let (upstream, permits) = numbered_on_permit();
    let gateway = Gateway::keyed("in_flight = \"conflict\"")
        .upstream(&upstream)
        .start();
    let send = || gateway.client().post("/").key("k1").send();
    let first = tokio::spawn(send());
    eventually("upstream has the first request", async || {
        upstream.count() == 1
    })
    .await;
    for _ in 0..3 {
        let rejected = send().await;
        assert_problem(&rejected, 409, "idempotency-in-flight");
        assert_eq!(rejected.header("retry-after"), "1");
        assert_eq!(rejected.json()["retry_after"], 1);
    }
    permits.add_permits(1);
    assert_execution(&first.await.expect("the request should get a response"), 1);
    assert_replay_of(&send().await, 1);
    assert_eq!(upstream.count(), 1);
}
