//! Clients that read slowly, or stop: `write_timeout` counts the bytes that each stream takes.

use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::{Reason, RecvStream};
use tokio::time::timeout;

use super::{Connection, request};
use crate::harness::{Gateway, PATIENCE, Upstream, full};

const WRITE_TIMEOUT: Duration = Duration::from_millis(400);

/// Receive window of a stream, in bytes. The client grants more in steps of half of it.
const WINDOW: u32 = 2_000;

/// An upstream whose every response has this many bytes.
fn long(bytes: usize) -> Upstream {
    Upstream::with(move |_| async move { full(vec![b'x'; bytes]) })
}

fn gateway(upstream: &Upstream) -> Gateway {
    Gateway::keyed("")
        .and("[server]\nwrite_timeout = \"400ms\"")
        .upstream(upstream)
        .start()
}

/// The body of the response to a request.
async fn body_of(connection: &Connection, request: http::request::Builder) -> RecvStream {
    let request = request.body(()).expect("a request");
    let mut sender = connection.ready().await;
    let (response, _) = sender.send_request(request, true).expect("sent");
    let response = timeout(PATIENCE, response).await.expect("a response");
    response.expect("no stream error").into_body()
}

/// Reads on until there is an error or the end; grants `step` bytes every `pause`.
async fn read_slowly(
    body: &mut RecvStream,
    step: usize,
    pause: Duration,
    most: Duration,
) -> Result<usize, h2::Error> {
    let (mut read, mut granted) = (0, 0);
    let started = Instant::now();
    while started.elapsed() < most {
        match timeout(pause, body.data()).await {
            Ok(None) => return Ok(read),
            Ok(Some(data)) => read += data?.len(),
            Err(_pause) => {
                let step = step.min(read - granted);
                body.flow_control().release_capacity(step)?;
                granted += step;
            }
        }
    }
    Ok(read)
}

#[tokio::test]
async fn a_client_that_takes_bytes_within_the_timeout_is_never_cut_off() {
    let upstream = long(200_000);
    let gateway = gateway(&upstream);
    let connection = Connection::open(&gateway, WINDOW).await;
    let mut body = body_of(&connection, request("GET", "/")).await;
    // Half a window each time, which takes the client several timeouts for what `h2` queues.
    let pause = WRITE_TIMEOUT / 4;
    let read = read_slowly(&mut body, 1_000, pause, 8 * WRITE_TIMEOUT).await;
    let read = read.expect("the stream is not reset");
    assert!(read > 10_000, "{read}");
}

/// The reset of a stream whose client grants nothing more.
async fn reset_of(body: &mut RecvStream) -> Option<Reason> {
    let end = async {
        loop {
            match body.data().await {
                Some(Ok(_unreleased)) => {}
                Some(Err(error)) => return error.reason(),
                None => panic!("the response is complete"),
            }
        }
    };
    timeout(PATIENCE, end).await.expect("the stream is reset")
}

#[tokio::test]
async fn a_client_that_stops_reading_a_stream_loses_this_stream_only() {
    let upstream = long(200_000);
    let gateway = gateway(&upstream);
    let connection = Connection::open(&gateway, WINDOW).await;
    let started = Instant::now();
    let mut stopped = body_of(&connection, request("GET", "/")).await;
    let mut goes_on = body_of(&connection, request("GET", "/")).await;
    let reading = tokio::spawn(async move {
        read_slowly(&mut goes_on, 1_000, WRITE_TIMEOUT / 8, 6 * WRITE_TIMEOUT).await
    });
    assert_eq!(reset_of(&mut stopped).await, Some(Reason::CANCEL));
    let elapsed = started.elapsed();
    assert!(elapsed >= WRITE_TIMEOUT, "{elapsed:?}");
    assert!(
        elapsed < WRITE_TIMEOUT + Duration::from_secs(2),
        "{elapsed:?}"
    );
    let read = reading.await.expect("no panic").expect("no reset");
    assert!(read > 10_000, "{read}");
    drop(body_of(&connection, request("GET", "/")).await);
}

#[tokio::test]
async fn a_replay_that_is_not_read_is_reset() {
    let upstream = long(1_000_000);
    let gateway = gateway(&upstream);
    let pay = || request("POST", "/pay").header("idempotency-key", "k1");
    let first = Connection::open(&gateway, 4 << 20).await;
    let mut body = body_of(&first, pay()).await;
    let mut read = 0;
    while let Some(data) = body.data().await {
        let data: Bytes = data.expect("the whole response");
        read += data.len();
        body.flow_control()
            .release_capacity(data.len())
            .expect("an open stream");
    }
    assert_eq!(read, 1_000_000);
    let second = Connection::open(&gateway, WINDOW).await;
    let started = Instant::now();
    let mut replay = body_of(&second, pay()).await;
    assert_eq!(reset_of(&mut replay).await, Some(Reason::CANCEL));
    let elapsed = started.elapsed();
    assert!(elapsed >= WRITE_TIMEOUT, "{elapsed:?}");
    assert_eq!(upstream.count(), 1);
}
