//! How many requests an upstream is sent at once, where that is bounded.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use http_body_util::channel::Channel;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::harness::{Gateway, Upstream, empty, eventually, full};

/// Two at once, whatever anybody finds out.
const TWO: &str = "concurrency = { min = 2, max = 2 }";

#[tokio::test]
async fn what_an_upstream_cannot_take_at_once_is_told_to_come_back() {
    let (upstream, permits) = Upstream::held();
    let gateway = Gateway::before(1, TWO).upstream(&upstream).admin().start();
    let underway: Vec<_> = (0..2)
        .map(|_| tokio::spawn(gateway.client().get("/").send()))
        .collect();
    eventually("two are underway", || upstream.count() == 2).await;

    let shed = gateway.client().get("/").send().await;
    assert_eq!((shed.status, shed.retry_after()), (503, 1));
    assert_eq!(shed.problem(), "upstream-unavailable");
    let overloaded = "upstream_failures_total{upstream=\"api\",reason=\"overloaded\"}";
    gateway.comes_to(overloaded, 1).await;
    let limit = gateway
        .metric("upstream_concurrency_limit{upstream=\"api\"}")
        .await;
    assert!((limit - 2.0).abs() < f64::EPSILON);
    let seen = gateway.admin().get("/upstreams/api").send().await.text();
    let seen: serde_json::Value = serde_json::from_str(&seen).expect("JSON");
    let expected = serde_json::json!({ "limit": 2, "in_flight": 2, "shed": 1 });
    assert_eq!(seen["concurrency"], expected);

    permits.add_permits(3);
    for answer in underway {
        assert_eq!(answer.await.expect("an answer").status, 200);
    }
    assert_eq!(gateway.client().get("/").send().await.status, 200);
    assert_eq!(upstream.count(), 3, "what was shed never got there");
}

#[tokio::test]
async fn a_key_that_was_shed_is_free() {
    let upstream = Upstream::with(|received| async move {
        if received.target == "/stalls" {
            std::future::pending::<()>().await;
        }
        full("done")
    });
    let gateway = Gateway::with(
        "[upstream.api]\nservers = [\"{upstream}\"]\nconcurrency = { max = 1 }\n\
         [[route]]\nname = \"all\"\npath = \"/\"\nidempotency = { mode = \"optional\" }\n",
    )
    .upstream(&upstream)
    .start();
    let stalling = tokio::spawn(gateway.client().get("/stalls").send());
    eventually("one is underway", || upstream.count() == 1).await;
    let pay = || gateway.client().post("/pay").key("k1").body("1").send();
    assert_eq!(pay().await.status, 503);
    stalling.abort();
    let again = async || loop {
        let answer = pay().await;
        if answer.status != 503 {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    let answer = again().await;
    assert_eq!((answer.status, answer.is_replay()), (200, false));
}

#[tokio::test]
async fn answers_that_never_end_take_up_no_place() {
    let upstream = Upstream::with(|received| async move {
        if received.target != "/stream" {
            return empty(204);
        }
        let (mut events, body) = Channel::new(1);
        tokio::spawn(async move {
            let sent = events.send_data(Bytes::from_static(b"data: 1\n\n")).await;
            sent.expect("somebody listens");
            std::future::pending::<()>().await;
        });
        http::Response::new(body.boxed_unsync())
    });
    let gateway = Gateway::before(1, TWO).upstream(&upstream).start();
    let mut streams = Vec::new();
    for _ in 0..5 {
        let mut stream = gateway.client().connect().await.expect("a connection");
        let request = b"GET /stream HTTP/1.1\r\nHost: a\r\n\r\n";
        stream.write_all(request).await.expect("sent");
        let mut head = [0; 15];
        stream.read_exact(&mut head).await.expect("an answer");
        assert_eq!(&head, b"HTTP/1.1 200 OK");
        streams.push(stream);
    }
    assert_eq!(gateway.client().get("/").send().await.status, 204);
}
