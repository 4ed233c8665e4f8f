//! Tests with clients that read slowly or stop reading. `write_timeout` applies to each stream separately, and it
//! restarts whenever the client accepts bytes.

use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::{Reason, RecvStream};
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::frames::{
    ACK, END_HEADERS, END_STREAM, FrameClient, GOAWAY, HEADERS, PING, PREFACE, SETTINGS,
    WINDOW_UPDATE, block, frame,
};
use super::{Connection, request};
use crate::support::{Gateway, TEST_TIMEOUT, Upstream, eventually, full};

const WRITE_TIMEOUT: Duration = Duration::from_millis(400);

/// Receive window of a stream in bytes. The slow clients enlarge it in steps of half a window.
const WINDOW: u32 = 2_000;

/// Creates an upstream whose response bodies have this many bytes.
fn with_response_length(bytes: usize) -> Upstream {
    Upstream::with(move |_| async move { full(vec![b'x'; bytes]) })
}

fn gateway(upstream: &Upstream) -> Gateway {
    Gateway::keyed("")
        .with_section("[server]\nwrite_timeout = \"400ms\"")
        .upstream(upstream)
        .start()
}

/// Sends a request and returns the body of the response. No byte of the body has been read yet.
async fn response_body(connection: &Connection, request: http::request::Builder) -> RecvStream {
    let request = request.body(()).expect("the request is valid");
    let mut sender = connection.ready().await;
    let (response, _) = sender
        .send_request(request, true)
        .expect("the bytes are sent");
    let response = timeout(TEST_TIMEOUT, response)
        .await
        .expect("a response arrives");
    response.expect("the stream has no error").into_body()
}

/// Reads until the body ends, an error occurs, or `most` has passed. Whenever no data arrives for `pause`, enlarges the
/// receive window by `step` bytes. Returns the number of bytes read.
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
async fn a_client_that_accepts_bytes_within_the_timeout_is_not_reset() {
    let upstream = with_response_length(200_000);
    let gateway = gateway(&upstream);
    let connection = Connection::open(&gateway, WINDOW).await;
    let mut body = response_body(&connection, request("GET", "/")).await;
    // The client enlarges its window by only half a window at a time. The gateway therefore needs longer than
    // `write_timeout` to send the data that `h2` has queued. The stream must not be reset, because the client accepts
    // bytes four times per `write_timeout`.
    let pause = WRITE_TIMEOUT / 4;
    let read = read_slowly(&mut body, 1_000, pause, 8 * WRITE_TIMEOUT).await;
    let read = read.expect("the stream is not reset");
    assert!(read > 10_000, "the client could read only {read} bytes");
}

/// Reads until the gateway resets the stream, and never enlarges the receive window. Returns the error code of the
/// reset.
async fn reset_of(body: &mut RecvStream) -> Option<Reason> {
    let end = async {
        loop {
            match body.data().await {
                Some(Ok(_unreleased)) => {}
                Some(Err(error)) => return error.reason(),
                None => panic!("the gateway sent the complete response instead of a reset"),
            }
        }
    };
    timeout(TEST_TIMEOUT, end)
        .await
        .expect("the gateway resets the stream in time")
}

#[tokio::test]
async fn a_client_that_stops_reading_a_stream_loses_this_stream_only() {
    let upstream = with_response_length(200_000);
    let gateway = gateway(&upstream);
    let connection = Connection::open(&gateway, WINDOW).await;
    let started = Instant::now();
    let mut stopped = response_body(&connection, request("GET", "/")).await;
    let mut reading_body = response_body(&connection, request("GET", "/")).await;
    let reading = tokio::spawn(async move {
        read_slowly(
            &mut reading_body,
            1_000,
            WRITE_TIMEOUT / 8,
            6 * WRITE_TIMEOUT,
        )
        .await
    });
    assert_eq!(reset_of(&mut stopped).await, Some(Reason::CANCEL));
    let elapsed = started.elapsed();
    assert!(
        elapsed >= WRITE_TIMEOUT,
        "the gateway stopped sending too early, after {elapsed:?}"
    );
    assert!(
        elapsed < WRITE_TIMEOUT + Duration::from_secs(2),
        "the gateway stopped sending too late, after {elapsed:?}"
    );
    let read = reading
        .await
        .expect("the task does not panic")
        .expect("the connection is not reset");
    assert!(read > 10_000, "the client could read only {read} bytes");
    drop(response_body(&connection, request("GET", "/")).await);
}

#[tokio::test]
async fn a_replay_that_is_not_read_is_reset() {
    let upstream = with_response_length(1_000_000);
    let gateway = gateway(&upstream);
    let pay = || request("POST", "/pay").header("idempotency-key", "k1");
    let first = Connection::open(&gateway, 4 << 20).await;
    let mut body = response_body(&first, pay()).await;
    let mut read = 0;
    while let Some(data) = body.data().await {
        let data: Bytes = data.expect("the response is complete");
        read += data.len();
        body.flow_control()
            .release_capacity(data.len())
            .expect("the stream is open");
    }
    assert_eq!(read, 1_000_000);
    let second = Connection::open(&gateway, WINDOW).await;
    let started = Instant::now();
    let mut replay = response_body(&second, pay()).await;
    assert_eq!(reset_of(&mut replay).await, Some(Reason::CANCEL));
    let elapsed = started.elapsed();
    assert!(
        elapsed >= WRITE_TIMEOUT,
        "the gateway stopped sending too early, after {elapsed:?}"
    );
    assert_eq!(upstream.count(), 1);
}

/// Opens a TCP connection with a small receive buffer, so that the kernel limits how much the gateway can send.
async fn small_buffer_socket(gateway: &Gateway) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("the socket is usable");
    socket
        .set_recv_buffer_size(16 * 1024)
        .expect("the socket is usable");
    // Small segments make the kernel acknowledge every few kilobytes that the client reads.
    SockRef::from(&socket)
        .set_tcp_mss(1_400)
        .expect("the socket is usable");
    let connected = socket.connect(gateway.address()).await;
    connected.expect("the connection is open")
}

/// Returns the header block of a GET for `path`.
fn get_block(path: &str) -> Vec<u8> {
    block(&[
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", path),
    ])
}

/// Returns the bytes of a GET for `/` over HTTP/1, and over HTTP/2 with the largest flow-control windows.
fn get_requests() -> [Vec<u8>; 2] {
    let http1 = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec();
    let largest_window = [0, 4, 0x7f, 0xff, 0xff, 0xff];
    let http2 = [
        PREFACE,
        &frame(SETTINGS, 0, 0, &largest_window),
        &frame(WINDOW_UPDATE, 0, 0, &[0x40, 0, 0, 0]),
        &frame(HEADERS, END_HEADERS | END_STREAM, 1, &get_block("/")),
    ];
    [http1, http2.concat()]
}

/// Sends the request `get`, reads the response slowly for 6 s, and then reads the rest at full speed. Panics if the
/// gateway closes the connection.
async fn read_through_small_buffer(mut socket: TcpStream, get: Vec<u8>) {
    socket
        .write_all(&get)
        .await
        .expect("the connection is open");
    let started = Instant::now();
    let mut buffer = [0; 2_000];
    // The client reads at most 100 KB/s. At this rate, the socket of the gateway sometimes accepts no bytes for longer
    // than `write_timeout`, although the client makes progress.
    while started.elapsed() < Duration::from_secs(6) {
        let read = timeout(TEST_TIMEOUT, socket.read(&mut buffer)).await;
        let read = read
            .expect("bytes arrive in time")
            .expect("the connection is not reset");
        assert!(
            read > 0,
            "the gateway closed the connection after {:?}",
            started.elapsed()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut rest = 0;
    let mut buffer = vec![0; 1 << 20];
    while rest < 15 << 20 {
        let read = timeout(TEST_TIMEOUT, socket.read(&mut buffer)).await;
        let read = read
            .expect("bytes arrive in time")
            .expect("the connection is not reset");
        assert!(
            read > 0,
            "the gateway closed the connection after {rest} further bytes"
        );
        rest += read;
    }
}

#[tokio::test]
async fn a_client_whose_socket_accepts_bytes_slowly_is_not_disconnected() {
    let upstream = with_response_length(16 << 20);
    let gateway = Gateway::proxying("[server]\nwrite_timeout = \"1500ms\"")
        .upstream(&upstream)
        .start();
    let [http1, http2] = get_requests();
    let (one, other) = (
        small_buffer_socket(&gateway).await,
        small_buffer_socket(&gateway).await,
    );
    tokio::join!(
        read_through_small_buffer(one, http1),
        read_through_small_buffer(other, http2)
    );
}

#[tokio::test]
async fn a_client_whose_socket_accepts_nothing_is_disconnected() {
    let upstream = with_response_length(16 << 20);
    let gateway = Gateway::keyed("")
        .with_section("[server]\nwrite_timeout = \"400ms\"")
        .admin()
        .upstream(&upstream)
        .start();
    for (number, get) in get_requests().into_iter().enumerate() {
        let mut socket = small_buffer_socket(&gateway).await;
        let started = Instant::now();
        socket
            .write_all(&get)
            .await
            .expect("the connection is open");
        eventually("the upstream has received the request", async || {
            upstream.count() == number + 1
        })
        .await;
        gateway.wait_for_metric("connections", 0).await;
        let elapsed = started.elapsed();
        assert!(
            elapsed >= WRITE_TIMEOUT,
            "the gateway stopped sending too early, after {elapsed:?}"
        );
        assert!(
            elapsed < WRITE_TIMEOUT + Duration::from_secs(4),
            "the gateway stopped sending too late, after {elapsed:?}"
        );
    }
}

#[tokio::test]
async fn streams_that_wait_for_their_turn_on_the_connection_are_not_reset() {
    const STREAMS: usize = 24;
    let upstream = with_response_length(400_000);
    let gateway = gateway(&upstream);
    let socket = gateway
        .client()
        .connect()
        .await
        .expect("the connection is open");
    // Only the window of the connection limits the streams: the window of the connection has its default size of 65,535
    // bytes, whereas the window of each stream has 1 MiB.
    let (requests, connection) = h2::client::Builder::new()
        .initial_window_size(1 << 20)
        .handshake::<_, Bytes>(socket)
        .await
        .expect("the handshake succeeds");
    let driver = AbortOnDropHandle::new(tokio::spawn(connection));
    let connection = Connection {
        requests,
        _driver: driver,
    };
    let mut bodies = Vec::new();
    for _ in 0..STREAMS {
        bodies.push(response_body(&connection, request("GET", "/")).await);
    }
    // The client reads 640 KB/s from all streams together. If each of the 24 streams gets 16 KiB in turn, all
    // streams together get 393 KB, which takes 0.6 s. A stream thus waits for its next turn longer than
    // `write_timeout`, which is 0.4 s.
    let started = Instant::now();
    let mut read = 0;
    let mut tick = tokio::time::interval(Duration::from_millis(100));
    for round in 1..=24 {
        tick.tick().await;
        let mut index = 0;
        while read < round * 64_000 && index < 10 * STREAMS {
            index += 1;
            let body = &mut bodies[index % STREAMS];
            let Ok(data) = timeout(Duration::from_micros(10), body.data()).await else {
                continue;
            };
            let data = data
                .expect("the body continues")
                .expect("the connection is not reset");
            read += data.len();
            body.flow_control()
                .release_capacity(data.len())
                .expect("the stream is open");
        }
    }
    println!("the client read {read} bytes in {:?}", started.elapsed());
    assert!(read > 1_000_000, "the client could read only {read} bytes");
}

#[tokio::test]
async fn a_client_that_withdraws_its_window_does_not_hold_responses_forever() {
    const STREAMS: u32 = 20;
    const RESPONSE_LENGTH: usize = 60_000;
    let upstream = with_response_length(RESPONSE_LENGTH);
    let gateway = Gateway::proxying("[server]\nwrite_timeout = \"400ms\"")
        .admin()
        .upstream(&upstream)
        .start();
    let mut socket = small_buffer_socket(&gateway).await;
    let mut sent = [
        PREFACE,
        &frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]),
        &frame(WINDOW_UPDATE, 0, 0, &[0x40, 0, 0, 0]),
    ]
    .concat();
    for number in 0..STREAMS {
        let stream = 2 * number + 1;
        sent.extend(frame(
            HEADERS,
            END_HEADERS | END_STREAM,
            stream,
            &get_block("/"),
        ));
    }
    let started = Instant::now();
    socket
        .write_all(&sent)
        .await
        .expect("the connection is open");
    let arrived = usize::try_from(STREAMS).expect("the number is small");
    eventually("the upstream has received all requests", async || {
        upstream.count() == arrived
    })
    .await;
    tokio::time::sleep(WRITE_TIMEOUT / 4).await;
    let withdrawn = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    socket
        .write_all(&withdrawn)
        .await
        .expect("the connection is open");
    let mut received = 0;
    let reading = async {
        let mut buffer = vec![0; 65_536];
        while let Ok(read @ 1..) = socket.read(&mut buffer).await {
            received += read;
        }
    };
    timeout(TEST_TIMEOUT, reading)
        .await
        .expect("the gateway closes the connection in time");
    let elapsed = started.elapsed();
    assert!(
        elapsed >= WRITE_TIMEOUT,
        "the gateway closed the connection too early, after {elapsed:?}"
    );
    assert!(
        received < arrived * RESPONSE_LENGTH,
        "the client got all responses, so no stream waited for a window"
    );
    gateway.wait_for_metric("connections", 0).await;
}

/// Opens 20 streams with a window of `window` bytes on a connection whose socket is blocked by a slow download.
async fn hold_streams_behind_slow_download(window: u8) {
    const STREAMS: usize = 20;
    let upstream = Upstream::with(|received| async move {
        let is_download = received.target == "/download";
        full(vec![b'x'; if is_download { 32 << 20 } else { 1 << 20 }])
    });
    let gateway = Gateway::proxying("[server]\nwrite_timeout = \"400ms\"")
        .admin()
        .upstream(&upstream)
        .start();
    let (mut reader, mut writer) = small_buffer_socket(&gateway).await.into_split();
    let largest_window = [0x40, 0, 0, 0];
    let get = |stream, path| frame(HEADERS, END_HEADERS | END_STREAM, stream, &get_block(path));
    let download = [
        PREFACE,
        &frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, window]),
        &frame(WINDOW_UPDATE, 0, 0, &largest_window),
        &get(1, "/download"),
        &frame(WINDOW_UPDATE, 0, 1, &largest_window),
    ];
    let sent = writer.write_all(&download.concat()).await;
    sent.expect("the connection is open");
    let mut before = 0.0;
    eventually("the download fills the socket buffers", async || {
        let sent = gateway.metric("sent_bytes_total").await;
        std::mem::replace(&mut before, sent) >= sent.max(100_000.0)
    })
    .await;
    let reading = AbortOnDropHandle::new(tokio::spawn(async move {
        let mut buffer = [0; 8_000];
        while let Ok(1..) = reader.read(&mut buffer).await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }));
    let in_flight = "upstream_in_flight{upstream=\"api\"}";
    let held: Vec<u8> = (1..=20)
        .flat_map(|number| get(2 * number + 1, "/"))
        .collect();
    let sent = writer.write_all(&held).await;
    sent.expect("the connection is open");
    eventually("the upstream has received all requests", async || {
        upstream.count() == STREAMS + 1
    })
    .await;
    let started = Instant::now();
    gateway.wait_for_metric(in_flight, 1).await;
    let elapsed = started.elapsed();
    println!("window of {window} bytes: streams held for {elapsed:?}");
    assert!(
        elapsed < Duration::from_secs(12),
        "the gateway held the streams for {elapsed:?}"
    );
    assert!(
        !reading.is_finished(),
        "the gateway closed a connection that makes progress"
    );
}

#[tokio::test]
async fn streams_without_window_are_reset_although_a_slow_download_blocks_the_socket() {
    tokio::join!(
        hold_streams_behind_slow_download(0),
        hold_streams_behind_slow_download(1)
    );
}

/// Which window of the client is exhausted.
#[derive(Clone, Copy, Debug)]
enum Exhausted {
    Stream,
    Connection,
}

/// Waits for the GOAWAY of an idle connection and opens streams after it. `acknowledges` is whether the client then
/// acknowledges the graceful shutdown. The client reads nothing from then on.
async fn hold_streams_after_goaway(exhausted: Exhausted, acknowledges: bool) {
    const STREAMS: u32 = 20;
    let upstream = Upstream::with(|_| async {
        // Some timeouts of the connection expire before the gateway sends the head.
        tokio::time::sleep(WRITE_TIMEOUT).await;
        full(vec![b'x'; 2 << 20])
    });
    let timeouts =
        "[server]\nidle_timeout = \"400ms\"\nheader_timeout = \"400ms\"\nwrite_timeout = \"400ms\"";
    let gateway = Gateway::proxying(timeouts)
        .admin()
        .upstream(&upstream)
        .start();
    let mut client = FrameClient::connect(&gateway).await;
    let window = match exhausted {
        Exhausted::Stream => [0, 4, 0, 0, 0, 0],
        Exhausted::Connection => [0, 4, 0x7f, 0xff, 0xff, 0xff],
    };
    client.send(frame(SETTINGS, 0, 0, &window)).await;
    let mut goaways = 0;
    let ping = loop {
        let frame = client.read().await.expect("the connection is open");
        match frame.kind {
            GOAWAY => goaways += 1,
            PING => break frame,
            _ => {}
        }
    };
    assert_eq!(goaways, 1);
    for number in 0..STREAMS {
        client.get(2 * number + 1, "/").await;
    }
    if acknowledges {
        client.send(frame(PING, ACK, 0, &ping.payload)).await;
    }
    let arrived = usize::try_from(STREAMS).expect("the number is small");
    eventually("the upstream has received all requests", async || {
        upstream.count() == arrived
    })
    .await;
    let started = Instant::now();
    gateway
        .wait_for_metric("upstream_in_flight{upstream=\"api\"}", 0)
        .await;
    gateway.wait_for_metric("connections", 0).await;
    let elapsed = started.elapsed();
    println!("{exhausted:?}, acknowledges {acknowledges}: {elapsed:?}");
    assert!(
        elapsed < 10 * WRITE_TIMEOUT + Duration::from_secs(4),
        "the gateway held the streams for {elapsed:?}"
    );
}

#[tokio::test]
async fn streams_opened_after_goaway_are_reset_if_the_client_grants_no_window() {
    tokio::join!(
        hold_streams_after_goaway(Exhausted::Stream, false),
        hold_streams_after_goaway(Exhausted::Stream, true),
        hold_streams_after_goaway(Exhausted::Connection, false),
        hold_streams_after_goaway(Exhausted::Connection, true),
    );
}

#[tokio::test]
async fn a_drain_ends_although_the_client_grants_no_window() {
    let upstream = with_response_length(2 << 20);
    let timeouts = "write_timeout = \"400ms\"\nheader_timeout = \"1s\"\nshutdown_grace = \"25s\"";
    let gateway = Gateway::proxying(&format!("[server]\n{timeouts}"))
        .upstream(&upstream)
        .start();
    let mut client = FrameClient::connect(&gateway).await;
    client
        .send(frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]))
        .await;
    for number in 0..20 {
        client.get(2 * number + 1, "/").await;
    }
    eventually("the upstream has received all requests", async || {
        upstream.count() == 20
    })
    .await;
    let started = Instant::now();
    gateway.drain();
    let exited = tokio::task::spawn_blocking(move || gateway.wait_for_exit());
    exited.await.expect("the task does not panic");
    let elapsed = started.elapsed();
    assert!(
        elapsed < Duration::from_secs(15),
        "the drain took {elapsed:?}, so it waited for `shutdown_grace`"
    );
}
