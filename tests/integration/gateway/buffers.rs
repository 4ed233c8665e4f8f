//! Tests of the configuration keys that bound the memory for buffered bodies: `max_buffered` and
//! `max_buffered_per_client`.

mod process_memory;

use tidegate::internals;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::gateway::retries::{QUICK, gateway_to};
use crate::support::{Client, ClientResponse, Gateway, Upstream, eventually, full};

/// Returns a body of `length` pseudo-random bytes. A comparison therefore also detects bytes in the wrong order.
fn body(length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(7);
    std::iter::repeat_with(|| random.u8(..))
        .take(length)
        .collect()
}

/// Number of body bytes that [`unfinished`] sends. `Content-Length` is one byte larger.
const SENT: usize = 60_000;

/// Starts an upload with the idempotency key `key` and never sends its last byte. The upload ends when the returned
/// connection is dropped.
async fn unfinished(client: &Client, key: &str) -> TcpStream {
    let mut stream = client.connect().await.expect("the connection is open");
    let head = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: {key}\r\nContent-Length: {}\r\n\r\n",
        SENT + 1
    );
    stream
        .write_all(head.as_bytes())
        .await
        .expect("the bytes are sent");
    stream
        .write_all(&body(SENT))
        .await
        .expect("the bytes are sent");
    stream
}

/// Waits until the gateway has buffered the bodies of this many [`unfinished`] uploads.
async fn wait_for_uploads(gateway: &Gateway, uploads: usize) {
    // The buffer of an upload has at least the bytes that were sent. It can also already have the full size of
    // `Content-Length`, which is one byte more.
    let wanted = uploads * SENT..=uploads * (SENT + 1);
    eventually(
        &format!("the gateway buffers {wanted:?} bytes"),
        async || wanted.contains(&internals::buffered_bytes(&gateway.shared())),
    )
    .await;
}

fn exceeded(kind: &str) -> String {
    format!("buffers_exceeded_total{{kind=\"{kind}\"}}")
}

#[track_caller]
fn assert_rejected(response: &ClientResponse) {
    assert_eq!(response.status, 503, "{response:?}");
    assert_eq!(response.problem(), "store-unavailable");
    assert_eq!(response.header("retry-after"), "1");
    assert_eq!(response.header("x-should-retry"), "true");
    assert!(
        response.text().contains("max_buffered"),
        "unexpected response: {response:?}"
    );
}

#[tokio::test]
async fn a_keyed_request_beyond_the_total_gets_503_and_claims_nothing() {
    let upstream = Upstream::replying(201);
    let gateway = Gateway::keyed("max_request = \"64KiB\"")
        .with_section("[server]\nmax_buffered = \"128KiB\"")
        .upstream(&upstream)
        .admin()
        .start();
    let mut uploads = Vec::new();
    for (number, address) in (1..).zip(["127.0.0.2", "127.0.0.3"]) {
        let client = gateway.client().from(address);
        uploads.push(unfinished(&client, address).await);
        wait_for_uploads(&gateway, number).await;
    }
    let attempts = [gateway.client(), gateway.client().h2()];
    for (number, client) in (1..).zip(&attempts) {
        let response = client.post("/").key("k1").body(body(20_000)).send().await;
        assert_rejected(&response);
        gateway.wait_for_metric(&exceeded("request"), number).await;
    }
    gateway.wait_for_outcome("exhausted", 2).await;
    assert_eq!(gateway.counts().in_progress, 0);
    assert_eq!(upstream.count(), 0);
    // The gateway still accepts a body that fits into the rest of `max_buffered`, and a request without a body.
    for key in ["small", "empty"] {
        let request = gateway.client().post("/").key(key);
        let length = if key == "small" { 5_000 } else { 0 };
        assert_eq!(request.body(body(length)).send().await.status, 201);
    }
    drop(uploads);
    gateway.wait_for_metric("buffered_bytes", 0).await;
    for client in &attempts {
        let response = client.post("/").key("k1").body(body(20_000)).send().await;
        assert_eq!(response.status, 201, "{response:?}");
    }
    assert_eq!(upstream.count(), 3);
    gateway.wait_for_metric("buffered_bytes", 0).await;
}

#[tokio::test]
async fn one_client_cannot_use_more_than_its_bound_above_half_of_max_buffered() {
    let upstream = Upstream::replying(201);
    let gateway = Gateway::keyed("max_request = \"64KiB\"")
        .with_section("[server]\nmax_buffered = \"256KiB\"\nmax_buffered_per_client = \"64KiB\"")
        .upstream(&upstream)
        .admin()
        .start();
    let mut uploads = Vec::new();
    for (number, key) in (1..).zip(["a", "b"]) {
        uploads.push(unfinished(&gateway.client(), key).await);
        wait_for_uploads(&gateway, number).await;
    }
    let send = |client: Client| client.post("/").key("k1").body(body(20_000)).send();
    assert_rejected(&send(gateway.client()).await);
    assert_eq!(send(gateway.client().from("127.0.0.2")).await.status, 201);
    drop(uploads.pop());
    wait_for_uploads(&gateway, 1).await;
    assert_eq!(send(gateway.client()).await.status, 201);
}

#[tokio::test]
async fn a_response_beyond_the_bound_is_delivered_completely_and_not_stored() {
    const LENGTH: usize = 500_000;
    let upstream = Upstream::with(|_| async { full(body(LENGTH)) });
    let gateway = Gateway::keyed("max_request = \"64KiB\"")
        .with_section("[server]\nmax_buffered = \"256KiB\"")
        .upstream(&upstream)
        .admin()
        .start();
    for (number, client) in (1..).zip([gateway.client(), gateway.client().h2()]) {
        let key = format!("key-{number}");
        let send = || client.post("/").key(&key).body("request").send();
        let first = send().await;
        assert_eq!(first.status, 200);
        assert!(
            first.body == body(LENGTH),
            "the client received another body, of {} bytes",
            first.body.len()
        );
        assert_eq!(first.header("content-length"), LENGTH.to_string());
        let second = send().await;
        assert_eq!(second.status, 409, "{second:?}");
        assert_eq!(second.problem(), "response-not-retained");
        gateway.wait_for_metric(&exceeded("response"), number).await;
        gateway.wait_for_metric("buffered_bytes", 0).await;
    }
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn a_response_within_the_bound_is_stored_and_leaves_no_charge() {
    let upstream = Upstream::with(|_| async { full(body(100_000)) });
    let gateway = Gateway::keyed("max_request = \"64KiB\"")
        .with_section("[server]\nmax_buffered = \"256KiB\"")
        .upstream(&upstream)
        .admin()
        .start();
    for number in 0..10 {
        let key = format!("key-{number}");
        let send = || gateway.client().post("/").key(&key).body("request").send();
        assert!(send().await.body == body(100_000));
        let replay = send().await;
        assert!(replay.is_replay() && replay.body == body(100_000));
    }
    gateway.wait_for_metric("buffered_bytes", 0).await;
    gateway.wait_for_metric(&exceeded("response"), 0).await;
}

#[tokio::test]
async fn a_copy_for_retries_beyond_the_bound_is_dropped_and_the_body_streamed() {
    for (max_buffered, without_retry) in [("128KiB", 0), ("16KiB", 1)] {
        let upstream = Upstream::replying(503);
        let gateway = gateway_to(&[upstream.url()], &format!("{QUICK}attempts = 2"))
            .with_section(&format!("[server]\nmax_buffered = \"{max_buffered}\""))
            .admin()
            .start();
        let request = gateway.client().request("PUT", "/").body(body(40_000));
        assert_eq!(request.send().await.status, 503);
        let requests = upstream.requests();
        assert_eq!(requests.len(), 2 - without_retry, "{max_buffered}");
        assert!(requests.iter().all(|request| request.body == body(40_000)));
        let without_retry = u32::try_from(without_retry).expect("the number is small");
        gateway
            .wait_for_metric(&exceeded("retry"), without_retry)
            .await;
        gateway.wait_for_metric("buffered_bytes", 0).await;
    }
}
