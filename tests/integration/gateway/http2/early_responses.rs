//! Tests of responses that are complete before the client has sent the end of its request.
//!
//! Such a stream lingers: the gateway discards the rest of the request for a limited time and up to a limited number of
//! bytes. Then it resets the stream.

use std::future::poll_fn;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::{Reason, SendStream};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::frames::{DATA, END_STREAM, FrameClient, RST_STREAM, frame};
use super::{Connection, rejecting, request};
use crate::support::{Gateway, TEST_TIMEOUT, Upstream, empty};

/// How long a stream lingers before the gateway resets it.
const LINGER_TIME: Duration = Duration::from_secs(5);

/// Number of request bytes that the gateway discards on a lingering stream before it resets the stream.
const LINGER_BYTES: usize = 1 << 20;

/// Receive window of the gateway per stream, in bytes.
const WINDOW: usize = 256 * 1024;

const LINGERING_STREAMS: &str = "http2_lingering_streams";

fn resets(reason: &str) -> String {
    format!("http2_early_resets_total{{reason=\"{reason}\"}}")
}

/// Starts a gateway with an admin listener, and uses up the rate limit of `/limited`. The gateway then rejects every
/// request for `/limited`.
async fn rejecting_all(upstream: &Upstream) -> Gateway {
    let gateway = rejecting(upstream).admin().start();
    let first = gateway.client().get("/limited").send().await;
    assert_eq!(first.status, 200);
    gateway
}

/// Sends up to `most` body bytes, as the flow-control windows allow, until the gateway resets the stream. Returns the
/// number of bytes sent and the reason of the reset. The reason is `None` if there was no reset.
async fn send_until_reset(body: &mut SendStream<Bytes>, most: usize) -> (usize, Option<Reason>) {
    let mut sent = 0;
    while sent < most {
        body.reserve_capacity(16 * 1024);
        let capacity = poll_fn(|cx| body.poll_capacity(cx)).await;
        let Some(Ok(capacity)) = capacity else {
            let reset = timeout(TEST_TIMEOUT, poll_fn(|cx| body.poll_reset(cx))).await;
            return (sent, reset.expect("the gateway resets the stream").ok());
        };
        let part = Bytes::from(vec![b'x'; capacity.min(most - sent)]);
        let length = part.len();
        if body.send_data(part, false).is_ok() {
            sent += length;
        }
    }
    (sent, None)
}

#[tokio::test]
async fn a_client_that_ends_its_side_is_not_reset() {
    let upstream = Upstream::replying(200);
    let gateway = rejecting_all(&upstream).await;
    let mut client = FrameClient::connect(&gateway).await;
    for stream in [1, 3, 5] {
        client.post(stream, "/limited").await;
        client.response(stream).await;
    }
    gateway.wait_for_metric(LINGERING_STREAMS, 3).await;
    for stream in [1, 3, 5] {
        client.send(frame(DATA, 0, stream, &[b'x'; 9_000])).await;
        client.assert_no_reset().await;
        client.send(frame(DATA, END_STREAM, stream, b"x")).await;
    }
    gateway.wait_for_metric(LINGERING_STREAMS, 0).await;
    client.assert_no_reset().await;
    // The client sends the complete request on stream 7 before it reads the response, so the stream does not linger.
    let end = frame(DATA, END_STREAM, 7, b"x");
    client.post(7, "/limited").await;
    client.send(end).await;
    client.response(7).await;
    client.assert_no_reset().await;
}

#[tokio::test]
async fn a_client_that_does_not_end_its_side_is_reset_after_5_seconds() {
    let upstream = Upstream::replying(200);
    let gateway = rejecting_all(&upstream).await;
    let mut client = FrameClient::connect(&gateway).await;
    let started = Instant::now();
    client.post(1, "/limited").await;
    client.response(1).await;
    client.send(frame(DATA, 0, 1, b"the start of a body")).await;
    assert_eq!(client.reset().await, (1, 0));
    let elapsed = started.elapsed();
    assert!(
        elapsed >= LINGER_TIME,
        "the gateway reset the stream too early, after {elapsed:?}"
    );
    assert!(
        elapsed < 2 * LINGER_TIME,
        "the gateway reset the stream too late, after {elapsed:?}"
    );
    gateway.wait_for_metric(LINGERING_STREAMS, 0).await;
    gateway.wait_for_metric(&resets("time"), 1).await;
    // The reset of stream 1 does not end the connection: the gateway responds on stream 3.
    client.post(3, "/limited").await;
    client.response(3).await;
}

#[tokio::test]
async fn the_17th_lingering_stream_resets_the_oldest() {
    let upstream = Upstream::replying(200);
    let gateway = rejecting_all(&upstream).await;
    let mut client = FrameClient::connect(&gateway).await;
    for number in 0..16 {
        client.post(2 * number + 1, "/limited").await;
        client.response(2 * number + 1).await;
    }
    client.assert_no_reset().await;
    // The client ends stream 1, so this stream no longer counts towards the limit of 16 lingering streams.
    client.send(frame(DATA, END_STREAM, 1, b"x")).await;
    gateway.wait_for_metric(LINGERING_STREAMS, 15).await;
    client.post(33, "/limited").await;
    client.response(33).await;
    client.assert_no_reset().await;
    gateway.wait_for_metric(LINGERING_STREAMS, 16).await;
    for (next, oldest) in [(35, 3), (37, 5)] {
        client.post(next, "/limited").await;
        assert_eq!(client.reset().await, (oldest, 0));
    }
    client.assert_no_reset().await;
    gateway.wait_for_metric(LINGERING_STREAMS, 16).await;
    gateway.wait_for_metric(&resets("streams"), 2).await;
    // The limit of 16 lingering streams applies to each connection separately.
    let mut other = FrameClient::connect(&gateway).await;
    other.post(1, "/limited").await;
    other.response(1).await;
    gateway.wait_for_metric(LINGERING_STREAMS, 17).await;
    other.assert_no_reset().await;
}

#[tokio::test]
async fn data_in_flight_on_many_reset_streams_does_not_end_the_connection() {
    const UPLOADS: u32 = 120;
    let upstream = Upstream::replying(200);
    let gateway = rejecting_all(&upstream).await;
    let mut client = FrameClient::connect(&gateway).await;
    for number in 0..UPLOADS {
        client.post(2 * number + 1, "/limited").await;
    }
    let mut open: Vec<_> = (0..UPLOADS).map(|number| 2 * number + 1).collect();
    while open.len() > 16 {
        let (stream, code) = client.reset().await;
        assert_eq!(code, 0);
        open.retain(|&other| other != stream);
    }
    // The client behaves like one that has not yet read the resets: it sends data on all streams.
    for number in 0..UPLOADS {
        let data = frame(DATA, 0, 2 * number + 1, &[b'x'; 1_000]);
        client.send([&*data, &data, &data].concat()).await;
    }
    client.assert_no_reset().await;
    client.post(2 * UPLOADS + 1, "/limited").await;
    client.response(2 * UPLOADS + 1).await;
}

#[tokio::test]
async fn a_client_that_resets_a_stream_or_disconnects_ends_lingering_immediately() {
    let upstream = Upstream::replying(200);
    let gateway = rejecting_all(&upstream).await;
    let mut client = FrameClient::connect(&gateway).await;
    let started = Instant::now();
    for stream in [1, 3, 5] {
        client.post(stream, "/limited").await;
        client.response(stream).await;
    }
    gateway.wait_for_metric(LINGERING_STREAMS, 3).await;
    client.send(frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])).await;
    gateway.wait_for_metric(LINGERING_STREAMS, 2).await;
    client.assert_no_reset().await;
    drop(client);
    gateway.wait_for_metric(LINGERING_STREAMS, 0).await;
    gateway.wait_for_metric("connections", 0).await;
    assert!(
        started.elapsed() < LINGER_TIME,
        "the streams lingered for {:?}",
        started.elapsed()
    );
}

#[tokio::test]
async fn a_rejected_upload_of_100_mb_is_not_read_to_its_end() {
    const SIZE: usize = 100_000_000;
    let upstream = Upstream::replying(200);
    let gateway = rejecting_all(&upstream).await;
    let connection = Connection::open(&gateway, 65_535).await;
    let upload = request("POST", "/limited").header("content-length", SIZE);
    let (response, mut body) = (connection.ready().await)
        .send_request(upload.body(()).expect("the request is valid"), false)
        .expect("the bytes are sent");
    let (sent, reset) = timeout(TEST_TIMEOUT, send_until_reset(&mut body, SIZE))
        .await
        .expect("the gateway resets the stream in time");
    println!("the client sent {sent} of {SIZE} bytes before the gateway reset the stream");
    assert_eq!(reset, Some(Reason::NO_ERROR));
    assert!(
        (LINGER_BYTES..=LINGER_BYTES + WINDOW).contains(&sent),
        "the gateway reset the stream after {sent} bytes"
    );
    let response = timeout(TEST_TIMEOUT, response)
        .await
        .expect("a response arrives");
    assert_eq!(response.expect("the stream has no error").status(), 429);
    gateway.wait_for_metric(&resets("bytes"), 1).await;
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn rejected_uploads_do_not_delay_another_upload_of_their_connection() {
    const UPLOADS: usize = 100;
    let upstream = Upstream::with(|_| async { empty(200) });
    let gateway = rejecting_all(&upstream).await;
    let connection = Connection::open(&gateway, 65_535).await;
    let mut uploads = JoinSet::new();
    for _ in 0..UPLOADS {
        let upload = request("POST", "/limited")
            .body(())
            .expect("the request is valid");
        let (response, mut body) = (connection.ready().await)
            .send_request(upload, false)
            .expect("the bytes are sent");
        uploads.spawn(async move {
            let sent = send_until_reset(&mut body, 100 << 20).await;
            let response = response.await.expect("the stream has no error");
            assert_eq!(response.status(), 429);
            sent
        });
    }
    let started = Instant::now();
    let upload = request("POST", "/").body(()).expect("the request is valid");
    let (response, mut body) = (connection.ready().await)
        .send_request(upload, false)
        .expect("the bytes are sent");
    let (sent, _) = send_until_reset(&mut body, 1_000_000).await;
    assert_eq!(sent, 1_000_000);
    body.send_data(Bytes::new(), true)
        .expect("the bytes are sent");
    let response = timeout(TEST_TIMEOUT, response)
        .await
        .expect("a response arrives");
    let elapsed = started.elapsed();
    assert_eq!(response.expect("the stream has no error").status(), 200);
    assert_eq!(upstream.last().body.len(), 1_000_000);
    let mut discarded = 0;
    while let Some(sent) = uploads.join_next().await {
        let (sent, reset) = sent.expect("the task does not panic");
        assert_eq!(reset, Some(Reason::NO_ERROR));
        discarded += sent;
    }
    println!(
        "an upload of 1 MB took {elapsed:?}; {UPLOADS} rejected uploads sent {discarded} bytes at the same time"
    );
    assert!(
        elapsed < Duration::from_secs(1),
        "the upload took {elapsed:?}"
    );
}

#[tokio::test]
async fn rejected_uploads_leave_the_window_free_while_their_responses_wait_for_the_client() {
    const UPLOADS: usize = 40;
    let upstream = Upstream::with(|_| async { empty(200) });
    let gateway = rejecting_all(&upstream).await;
    // A window of 10 bytes per stream is smaller than the body of a 429, so no response can be sent completely.
    let connection = Connection::open(&gateway, 10).await;
    let mut pending = Vec::new();
    for _ in 0..UPLOADS {
        let upload = request("POST", "/limited")
            .body(())
            .expect("the request is valid");
        let (response, mut body) = (connection.ready().await)
            .send_request(upload, false)
            .expect("the bytes are sent");
        let response = timeout(TEST_TIMEOUT, response)
            .await
            .expect("a response arrives");
        assert_eq!(
            response.as_ref().expect("the stream has no error").status(),
            429
        );
        let sent = timeout(TEST_TIMEOUT, send_until_reset(&mut body, WINDOW)).await;
        assert_eq!(
            sent.expect("the flow-control windows stay open"),
            (WINDOW, None)
        );
        pending.push((response, body));
    }
    assert!(gateway.metric(LINGERING_STREAMS).await.abs() < f64::EPSILON);
    let upload = request("POST", "/").body(()).expect("the request is valid");
    let (response, mut body) = (connection.ready().await)
        .send_request(upload, false)
        .expect("the bytes are sent");
    let sent = timeout(TEST_TIMEOUT, send_until_reset(&mut body, 1_000_000)).await;
    assert_eq!(
        sent.expect("the flow-control windows stay open"),
        (1_000_000, None)
    );
    body.send_data(Bytes::new(), true)
        .expect("the bytes are sent");
    let response = timeout(TEST_TIMEOUT, response)
        .await
        .expect("a response arrives");
    assert_eq!(response.expect("the stream has no error").status(), 200);
}

#[tokio::test]
async fn a_drain_does_not_wait_for_lingering_streams() {
    let upstream = Upstream::replying(200);
    let gateway = rejecting_all(&upstream).await;
    let mut client = FrameClient::connect(&gateway).await;
    for stream in [1, 3, 5] {
        client.post(stream, "/limited").await;
        client.response(stream).await;
    }
    gateway.wait_for_metric(LINGERING_STREAMS, 3).await;
    let started = Instant::now();
    gateway.drain();
    let ended = tokio::task::spawn_blocking(move || gateway.wait_for_exit());
    let mut resets = Vec::new();
    while let Some(frame) = client.next().await {
        if frame.kind == RST_STREAM {
            assert_eq!(frame.payload, [0; 4]);
            resets.push(frame.stream);
        }
    }
    ended.await.expect("the task does not panic");
    resets.sort_unstable();
    assert_eq!(resets, [1, 3, 5]);
    let elapsed = started.elapsed();
    println!("the drain took {elapsed:?}");
    assert!(elapsed < LINGER_TIME / 2, "the drain took {elapsed:?}");
}
