//! Tests of responses that the gateway cannot store: the first client gets them completely, and no duplicate request is
//! executed.

use std::sync::Mutex;
use std::sync::mpsc;

use http_body_util::BodyExt as _;

use super::{assert_problem, url};
use crate::support::raw_http;
use crate::support::{Gateway, Upstream, eventually, full};

/// Returns reproducible pseudo-random bytes. A test that compares them detects lost and reordered bytes.
fn pseudo_random_bytes(length: usize) -> Vec<u8> {
    // The generator is Knuth's linear congruential generator. Only its most significant byte is used, because the lower
    // bits have short periods.
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
async fn a_response_above_max_response_is_delivered_completely_once() {
    const LENGTH: usize = 5 << 20;
    let upstream = Upstream::with(|_| async { full(pseudo_random_bytes(LENGTH)) });
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    for (number, client) in (1..).zip([gateway.client(), gateway.client().h2()]) {
        let send = || client.post("/").key(&format!("key-{number}")).send();
        let first = send().await;
        assert_eq!(first.status, 200);
        assert!(
            first.body == pseudo_random_bytes(LENGTH),
            "{} bytes",
            first.body.len()
        );
        assert_eq!(first.header("content-length"), LENGTH.to_string());
        for _ in 0..2 {
            assert_problem(&send().await, 409, "response-not-retained");
        }
        assert_eq!(upstream.count(), number);
        assert_eq!(gateway.counts().tombstones, number as u64);
    }
}

#[tokio::test]
async fn events_are_streamed_to_the_first_client_and_duplicates_get_409() {
    for kind in ["Text/Event-Stream; charset=utf-8", "application/x-ndjson"] {
        let (events, received_events) = mpsc::channel::<&'static str>();
        let received_events = Mutex::new(received_events);
        let upstream = raw_http::RawUpstream::scripted(move |upstream_connection| {
            upstream_connection.request();
            upstream_connection.send(format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
            ));
            let received_events = received_events
                .lock()
                .expect("no thread should panic while it holds the lock");
            while let Ok(event) = received_events.recv() {
                upstream_connection.send(format!("{:x}\r\n{event}\r\n", event.len()));
            }
            upstream_connection.send("0\r\n\r\n");
        });
        let gateway = Gateway::keyed("")
            .upstream_url(&url(upstream.address))
            .start();
        let client = gateway.client();
        let mut connection = client.keep_alive().await;
        let mut body = connection.response_body(client.post("/").key("k1")).await;
        for event in ["data: one\n\n", "data: two\n\n"] {
            events
                .send(event)
                .expect("the upstream should wait for events");
            let frame = body
                .frame()
                .await
                .expect("the response body should continue")
                .expect("the frame should arrive without an error");
            assert_eq!(
                frame.into_data().expect("the frame should contain data"),
                event
            );
            // While the stream continues, a duplicate request neither waits for the end of the stream nor starts
            // another execution.
            let second = client.post("/").key("k1").send().await;
            assert_problem(&second, 409, "response-not-retained");
        }
        drop(events);
        assert!(body.frame().await.is_none());
        assert_eq!(upstream.received().matches("POST /").count(), 1, "{kind}");
        assert_eq!(gateway.counts().tombstones, 1);
    }
}

#[tokio::test]
async fn waiting_duplicates_get_409_when_the_response_turns_out_to_be_a_stream() {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let upstream = raw_http::RawUpstream::scripted(move |upstream_connection| {
        upstream_connection.request();
        let released = released
            .lock()
            .expect("no thread should panic while it holds the lock");
        let _ = released.recv();
        upstream_connection.send(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
             Transfer-Encoding: chunked\r\n\r\n3\r\none\r\n",
        );
        // The second `recv` keeps the stream open until the test drops the sender.
        let _ = released.recv();
    });
    let gateway = Gateway::keyed("wait_timeout = \"10m\"")
        .admin()
        .upstream_url(&url(upstream.address))
        .start();
    let client = gateway.client();
    let mut connection = client.keep_alive().await;
    let request = client.post("/").key("k1");
    let first = tokio::spawn(async move {
        let mut body = connection.response_body(request).await;
        let frame = body
            .frame()
            .await
            .expect("the response body should have a frame")
            .expect("the frame should arrive without an error");
        (
            connection,
            body,
            frame.into_data().expect("the frame should contain data"),
        )
    });
    eventually("upstream has the first request", async || {
        upstream.received().contains("POST /")
    })
    .await;
    let waiting: Vec<_> = (0..3)
        .map(|_| tokio::spawn(client.post("/").key("k1").send()))
        .collect();
    gateway.wait_for_outcome("waited", 3).await;
    release
        .send(())
        .expect("the upstream should still wait for the signal");
    for response in waiting {
        assert_problem(
            &response.await.expect("the request should get a response"),
            409,
            "response-not-retained",
        );
    }
    let (_connection, _body, part) = first.await.expect("the request should get a response");
    assert_eq!(part, "one");
}
