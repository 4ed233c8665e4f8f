//! Waits that are over: each has a name, in the document its caller gets and in what is counted.

use std::time::{Duration, Instant};

use crate::harness::{Answer, Deaf, Gateway, Upstream};
use crate::wire_raw;

const SHORT: Duration = Duration::from_millis(300);

/// Holds that the answer says which wait was over.
#[track_caller]
fn is_late(answer: &Answer, phase: &str) {
    assert_eq!(answer.status, 504, "{}", answer.text());
    assert_eq!(answer.problem(), "upstream-timeout");
    assert_eq!(answer.json()["timeout"], phase);
}

/// Holds that one failure was counted, under this reason and no other.
async fn is_counted(gateway: &Gateway, reason: &str) {
    for other in [
        "connect",
        "connect_timeout",
        "first_byte_timeout",
        "idle_timeout",
        "total_timeout",
        "circuit_open",
        "broken",
        "client",
    ] {
        let series = format!("upstream_failures_total{{upstream=\"api\",reason=\"{other}\"}}");
        gateway.comes_to(&series, u32::from(other == reason)).await;
    }
}

/// A server that reads a request's head and says this.
fn saying(bytes: &'static str) -> wire_raw::Upstream {
    wire_raw::Upstream::scripted(move |conversation| {
        if conversation.head().is_some() {
            conversation.send(bytes);
            conversation.until_closed();
        }
    })
}

fn before(upstream: &wire_raw::Upstream, api: &str) -> Gateway {
    Gateway::before(1, api)
        .upstream_url(&format!("http://{}", upstream.address))
        .admin()
        .start()
}

const HALF: &str = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf ";

#[tokio::test]
async fn a_connection_that_does_not_come_about() {
    let deaf = Deaf::new();
    let gateway = Gateway::before(1, "connect_timeout = \"300ms\"")
        .upstream_url(&deaf.url())
        .admin()
        .start();
    let asked = Instant::now();
    let answer = gateway.client().post("/").body("unsent").send().await;
    assert!(asked.elapsed() >= SHORT);
    is_late(&answer, "connect");
    is_counted(&gateway, "connect_timeout").await;
}

#[tokio::test]
async fn an_answer_that_does_not_begin() {
    let upstream = Upstream::silent();
    let gateway = Gateway::before(1, "first_byte_timeout = \"300ms\"")
        .upstream(&upstream)
        .admin()
        .start();
    let asked = Instant::now();
    let answer = gateway.client().post("/").body("taken").send().await;
    assert!(asked.elapsed() >= SHORT);
    is_late(&answer, "first-byte");
    is_counted(&gateway, "first_byte_timeout").await;
}

#[tokio::test]
async fn an_upload_that_is_not_taken_any_further() {
    let upstream = wire_raw::Upstream::scripted(|conversation| {
        conversation.head();
        // Neither reads nor closes.
        std::thread::sleep(2 * wire_raw::PATIENCE);
    });
    let gateway = before(&upstream, "idle_timeout = \"300ms\"");
    let address = gateway.address();
    let answered = tokio::task::spawn_blocking(move || {
        let mut client = wire_raw::Client::connect(address);
        // More than all buffers on the way hold.
        let len = 64 << 20;
        client.send(format!(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n"
        ));
        let _sending = client.send_meanwhile(vec![b'x'; len]);
        client.answer()
    });
    let answer = answered.await.expect("an answer");
    assert_eq!(answer.status, 504, "{}", answer.head);
    let document: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
    assert_eq!(document["type"], "urn:tidegate:problem:upstream-timeout");
    assert_eq!(document["timeout"], "idle");
    is_counted(&gateway, "idle_timeout").await;
}

#[tokio::test]
async fn a_download_that_stalls() {
    let upstream = saying(HALF);
    let gateway = before(&upstream, "idle_timeout = \"300ms\"");
    let asked = Instant::now();
    let answer = gateway.client().get("/").try_send().await;
    assert!(asked.elapsed() >= SHORT);
    assert!(answer.is_err(), "{answer:?}");
    is_counted(&gateway, "idle_timeout").await;
}

#[tokio::test]
async fn all_of_it_together() {
    let (silent, deaf) = (Upstream::silent(), Deaf::new());
    // Whatever it is that takes as long: waiting for an answer, or for a connection.
    for url in [silent.url(), deaf.url()] {
        let gateway = Gateway::before(1, "timeout = \"300ms\"")
            .upstream_url(&url)
            .admin()
            .start();
        let asked = Instant::now();
        let answer = gateway.client().get("/").send().await;
        assert!(asked.elapsed() >= SHORT);
        is_late(&answer, "total");
        is_counted(&gateway, "total_timeout").await;
    }
}

#[tokio::test]
async fn all_of_it_together_amid_a_download() {
    let upstream = saying(HALF);
    let gateway = before(&upstream, "timeout = \"300ms\"");
    let answer = gateway.client().get("/").try_send().await;
    assert!(answer.is_err(), "{answer:?}");
    is_counted(&gateway, "total_timeout").await;
}

#[tokio::test]
async fn a_keyed_request_is_told_even_amid_its_answer() {
    for (api, phase, reason) in [
        ("idle_timeout = \"300ms\"", "idle", "idle_timeout"),
        ("timeout = \"300ms\"", "total", "total_timeout"),
    ] {
        let upstream = saying(HALF);
        let gateway = Gateway::with(&format!(
            "[upstream.api]\nservers = [\"{{upstream}}\"]\n{api}\n[[route]]\nname = \"all\"\n\
             path = \"/\"\nidempotency = {{ mode = \"optional\" }}\n"
        ))
        .upstream_url(&format!("http://{}", upstream.address))
        .admin()
        .start();
        let asking = gateway.client().post("/pay").key("k1").body("amount=1");
        is_late(&asking.send().await, phase);
        is_counted(&gateway, reason).await;
        assert_eq!(gateway.counts().unknown, 1);
    }
}
