//! Answers that cannot be kept: the first caller gets all of them as they come, nobody else runs again.

use std::sync::Mutex;
use std::sync::mpsc;

use http_body_util::BodyExt as _;

use super::{is_problem, url};
use crate::harness::{Gateway, Upstream, eventually, full};
use crate::wire_raw;

/// Bytes of which none can be missing or out of place unnoticed; the same each time.
fn noise(length: usize) -> Vec<u8> {
    // Knuth's, of which the upper bits are as good as random.
    let next = |state: &mut u64| {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        Some(state.to_be_bytes()[0])
    };
    let mut state = 7;
    std::iter::from_fn(|| next(&mut state))
        .take(length)
        .collect()
}

#[tokio::test]
async fn an_answer_too_large_to_keep_is_given_once_and_whole() {
    const LENGTH: usize = 5 << 20;
    let upstream = Upstream::with(|_| async { full(noise(LENGTH)) });
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    for (number, client) in (1..).zip([gateway.client(), gateway.client().h2()]) {
        let ask = || client.post("/").key(&format!("key-{number}")).send();
        let first = ask().await;
        assert_eq!(first.status, 200);
        assert!(first.body == noise(LENGTH), "{} bytes", first.body.len());
        assert_eq!(first.header("content-length"), LENGTH.to_string());
        for _ in 0..2 {
            is_problem(&ask().await, 409, "response-not-retained");
        }
        assert_eq!(upstream.count(), number);
        assert_eq!(gateway.counts().tombstones, number as u64);
    }
}

#[tokio::test]
async fn an_answer_of_unknown_length_that_grows_too_large_is_given_once_and_whole() {
    const LENGTH: usize = 3 << 20;
    let upstream = wire_raw::Upstream::scripted(|conversation| {
        while conversation.request().is_some() {
            conversation.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            for chunk in noise(LENGTH).chunks(10_007) {
                conversation.send(format!("{:x}\r\n", chunk.len()));
                conversation.send(chunk);
                conversation.send("\r\n");
            }
            conversation.send("0\r\n\r\n");
        }
    });
    let gateway = Gateway::keyed("max_response = \"100KiB\"")
        .upstream_url(&url(upstream.address))
        .start();
    let ask = || gateway.client().post("/").key("k1").send();
    let first = ask().await;
    assert!(first.body == noise(LENGTH), "{} bytes", first.body.len());
    is_problem(&ask().await, 409, "response-not-retained");
    assert_eq!(upstream.received().matches("POST /").count(), 1);
}

#[tokio::test]
async fn the_largest_answer_that_is_kept_is_as_large_as_it_says() {
    let upstream = Upstream::with(|received| async move {
        full(noise(
            received.header("x-length").parse().expect("a length"),
        ))
    });
    let gateway = Gateway::keyed("max_response = \"64KiB\"")
        .upstream(&upstream)
        .start();
    let ask = |length: usize| {
        let asking = gateway.client().post("/").key(&length.to_string());
        asking.header("X-Length", &length.to_string()).send()
    };
    for length in [65_535, 65_536] {
        assert_eq!(ask(length).await.body, noise(length));
        let replay = ask(length).await;
        assert!(replay.is_replay() && replay.body == noise(length));
    }
    assert_eq!(ask(65_537).await.body, noise(65_537));
    is_problem(&ask(65_537).await, 409, "response-not-retained");
    assert_eq!(upstream.count(), 3);
}

#[tokio::test]
async fn events_reach_the_first_caller_as_they_come_and_the_second_is_told_so() {
    for kind in [
        "text/event-stream",
        "Text/Event-Stream; charset=utf-8",
        "application/x-ndjson",
        "multipart/x-mixed-replace; boundary=frame",
    ] {
        let (say, said) = mpsc::channel::<&'static str>();
        let said = Mutex::new(said);
        let upstream = wire_raw::Upstream::scripted(move |conversation| {
            conversation.request();
            conversation.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
            ));
            let said = said.lock().expect("no test panics holding it");
            while let Ok(event) = said.recv() {
                conversation.send(format!("{:x}\r\n{event}\r\n", event.len()));
            }
            conversation.send("0\r\n\r\n");
        });
        let gateway = Gateway::keyed("")
            .upstream_url(&url(upstream.address))
            .start();
        let client = gateway.client();
        let mut connection = client.keep_alive().await;
        let mut body = connection.body_of(client.post("/").key("k1")).await;
        for event in ["data: one\n\n", "data: two\n\n"] {
            say.send(event).expect("an upstream that listens");
            let frame = body.frame().await.expect("more").expect("no error");
            assert_eq!(frame.into_data().expect("data"), event);
            // The stream goes on, and a duplicate neither waits for it nor starts another.
            let second = client.post("/").key("k1").send().await;
            is_problem(&second, 409, "response-not-retained");
        }
        drop(say);
        assert!(body.frame().await.is_none());
        assert_eq!(upstream.received().matches("POST /").count(), 1, "{kind}");
        assert_eq!(gateway.counts().tombstones, 1);
    }
}

#[tokio::test]
async fn those_who_wait_for_what_turns_out_a_stream_are_told_when_it_begins() {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let upstream = wire_raw::Upstream::scripted(move |conversation| {
        conversation.request();
        let released = released.lock().expect("no test panics holding it");
        let _ = released.recv();
        conversation.send(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
             Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n",
        );
        // Until the test is over.
        let _ = released.recv();
    });
    let gateway = Gateway::keyed("wait_timeout = \"10m\"")
        .admin()
        .upstream_url(&url(upstream.address))
        .start();
    let client = gateway.client();
    let mut connection = client.keep_alive().await;
    let asking = client.post("/").key("k1");
    let first = tokio::spawn(async move {
        let mut body = connection.body_of(asking).await;
        let frame = body.frame().await.expect("a part").expect("no error");
        (connection, body, frame.into_data().expect("data"))
    });
    eventually("the first is running", || {
        upstream.received().contains("POST /")
    })
    .await;
    let waiting: Vec<_> = (0..3)
        .map(|_| tokio::spawn(client.post("/").key("k1").send()))
        .collect();
    gateway.has_counted("waited", 3).await;
    release.send(()).expect("an upstream that waits");
    for answer in waiting {
        is_problem(
            &answer.await.expect("an answer"),
            409,
            "response-not-retained",
        );
    }
    let (_connection, _body, part) = first.await.expect("an answer");
    assert_eq!(part, "one");
}
