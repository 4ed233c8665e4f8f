//! Bounds on bodies held in memory: `max_buffered` and `max_buffered_per_client`.

mod memory;

use std::time::{Duration, Instant};

use tidegate::internals;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::harness::{Answer, Client, Gateway, PATIENCE, Upstream, full};
use crate::retries::{QUICK, before};

/// Bytes that differ from their neighbours.
fn body(length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(7);
    std::iter::repeat_with(|| random.u8(..))
        .take(length)
        .collect()
}

/// Bytes that [`unfinished`] sends. It declares one more.
const SENT: usize = 60_000;

/// An upload with this key that never ends.
async fn unfinished(client: &Client, key: &str) -> TcpStream {
    let mut stream = client.connect().await.expect("a connection");
    let head = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: {key}\r\nContent-Length: {}\r\n\r\n",
        SENT + 1
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    stream.write_all(&body(SENT)).await.expect("sent");
    stream
}

/// Waits until the gateway holds this many [`unfinished`] uploads.
async fn holds(gateway: &Gateway, uploads: usize) {
    let deadline = Instant::now() + PATIENCE;
    // The buffer of a body has its declared length at most.
    let wanted = uploads * SENT..=uploads * (SENT + 1);
    loop {
        let held = internals::buffered_bytes(gateway.shared());
        if wanted.contains(&held) {
            return;
        }
        assert!(Instant::now() < deadline, "{held} bytes, not {wanted:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn exceeded(kind: &str) -> String {
    format!("buffers_exceeded_total{{kind=\"{kind}\"}}")
}

#[track_caller]
fn is_rejected(answer: &Answer) {
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(answer.problem(), "store-unavailable");
    assert_eq!(answer.header("retry-after"), "1");
    assert_eq!(answer.header("x-should-retry"), "true");
    assert!(answer.text().contains("max_buffered"), "{answer:?}");
}

#[tokio::test]
async fn a_keyed_request_beyond_the_total_gets_503_and_claims_nothing() {
    let upstream = Upstream::replying(201);
    let gateway = Gateway::keyed("max_request = \"64KiB\"")
        .and("[server]\nmax_buffered = \"128KiB\"")
        .upstream(&upstream)
        .admin()
        .start();
    let mut uploads = Vec::new();
    for (number, address) in (1..).zip(["127.0.0.2", "127.0.0.3"]) {
        let client = gateway.client().from(address);
        uploads.push(unfinished(&client, address).await);
        holds(&gateway, number).await;
    }
    let attempts = [gateway.client(), gateway.client().h2()];
    for (number, client) in (1..).zip(&attempts) {
        let answer = client.post("/").key("k1").body(body(20_000)).send().await;
        is_rejected(&answer);
        gateway.comes_to(&exceeded("request"), number).await;
    }
    gateway.has_counted("exhausted", 2).await;
    assert_eq!(gateway.counts().in_progress, 0);
    assert_eq!(upstream.count(), 0);
    // A body that fits is served, and so is a request without a body.
    for key in ["small", "empty"] {
        let asking = gateway.client().post("/").key(key);
        let length = if key == "small" { 5_000 } else { 0 };
        assert_eq!(asking.body(body(length)).send().await.status, 201);
    }
    drop(uploads);
    gateway.comes_to("buffered_bytes", 0).await;
    for client in &attempts {
        let answer = client.post("/").key("k1").body(body(20_000)).send().await;
        assert_eq!(answer.status, 201, "{answer:?}");
    }
    assert_eq!(upstream.count(), 3);
    gateway.comes_to("buffered_bytes", 0).await;
}

#[tokio::test]
async fn one_client_leaves_half_of_the_memory_to_others() {
    let upstream = Upstream::replying(201);
    let gateway = Gateway::keyed("max_request = \"64KiB\"")
        .and("[server]\nmax_buffered = \"256KiB\"\nmax_buffered_per_client = \"64KiB\"")
        .upstream(&upstream)
        .admin()
        .start();
    let mut uploads = Vec::new();
    for (number, key) in (1..).zip(["a", "b"]) {
        uploads.push(unfinished(&gateway.client(), key).await);
        holds(&gateway, number).await;
    }
    let ask = |client: Client| client.post("/").key("k1").body(body(20_000)).send();
    is_rejected(&ask(gateway.client()).await);
    assert_eq!(ask(gateway.client().from("127.0.0.2")).await.status, 201);
    drop(uploads.pop());
    holds(&gateway, 1).await;
    assert_eq!(ask(gateway.client()).await.status, 201);
}

#[tokio::test]
async fn a_response_beyond_the_bound_is_delivered_whole_and_not_stored() {
    const LENGTH: usize = 500_000;
    let upstream = Upstream::with(|_| async { full(body(LENGTH)) });
    let gateway = Gateway::keyed("max_request = \"64KiB\"")
        .and("[server]\nmax_buffered = \"256KiB\"")
        .upstream(&upstream)
        .admin()
        .start();
    for (number, client) in (1..).zip([gateway.client(), gateway.client().h2()]) {
        let key = format!("key-{number}");
        let ask = || client.post("/").key(&key).body("request").send();
        let first = ask().await;
        assert_eq!(first.status, 200);
        assert!(first.body == body(LENGTH), "{} bytes", first.body.len());
        assert_eq!(first.header("content-length"), LENGTH.to_string());
        let second = ask().await;
        assert_eq!(second.status, 409, "{second:?}");
        assert_eq!(second.problem(), "response-not-retained");
        gateway.comes_to(&exceeded("response"), number).await;
        gateway.comes_to("buffered_bytes", 0).await;
    }
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn a_response_within_the_bound_is_stored_and_leaves_no_charge() {
    let upstream = Upstream::with(|_| async { full(body(100_000)) });
    let gateway = Gateway::keyed("max_request = \"64KiB\"")
        .and("[server]\nmax_buffered = \"256KiB\"")
        .upstream(&upstream)
        .admin()
        .start();
    for number in 0..10 {
        let key = format!("key-{number}");
        let ask = || gateway.client().post("/").key(&key).body("request").send();
        assert!(ask().await.body == body(100_000));
        let replay = ask().await;
        assert!(replay.is_replay() && replay.body == body(100_000));
    }
    gateway.comes_to("buffered_bytes", 0).await;
    gateway.comes_to(&exceeded("response"), 0).await;
}

#[tokio::test]
async fn a_copy_for_retries_beyond_the_bound_is_dropped_and_the_body_streamed() {
    for (max_buffered, dropped) in [("128KiB", 0), ("16KiB", 1)] {
        let upstream = Upstream::replying(503);
        let gateway = before(&[upstream.url()], &format!("{QUICK}attempts = 2"))
            .and(&format!("[server]\nmax_buffered = \"{max_buffered}\""))
            .admin()
            .start();
        let asking = gateway.client().request("PUT", "/").body(body(40_000));
        assert_eq!(asking.send().await.status, 503);
        let requests = upstream.requests();
        assert_eq!(requests.len(), 2 - dropped, "{max_buffered}");
        assert!(requests.iter().all(|request| request.body == body(40_000)));
        let dropped = u32::try_from(dropped).expect("small");
        gateway.comes_to(&exceeded("retry"), dropped).await;
        gateway.comes_to("buffered_bytes", 0).await;
    }
}
