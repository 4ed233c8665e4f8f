//! Clients that read slowly or stop reading. `write_timeout` applies to each stream and restarts when the client
//! accepts bytes.

use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::{Reason, RecvStream};
use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::frames::{
    END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, WINDOW_UPDATE, block, frame,
};
use super::{Connection, request};
use crate::harness::{Gateway, TEST_TIMEOUT, Upstream, eventually, full};

const WRITE_TIMEOUT: Duration = Duration::from_millis(400);

/// Receive window of a stream, in bytes. The client grants more in steps of half a window.
const WINDOW: u32 = 2_000;

/// Upstream whose responses have this many bytes.
fn with_response_length(bytes: usize) -> Upstream {
    Upstream::with(move |_| async move { full(vec![b'x'; bytes]) })
}

fn gateway(upstream: &Upstream) -> Gateway {
    Gateway::keyed("")
        .with_section("[server]\nwrite_timeout = \"400ms\"")
        .upstream(upstream)
        .start()
}

/// Sends a request and returns the body of the response.
async fn response_body(connection: &Connection, request: http::request::Builder) -> RecvStream {
    let request = request.body(()).expect("a request");
    let mut sender = connection.ready().await;
    let (response, _) = sender.send_request(request, true).expect("sent");
    let response = timeout(TEST_TIMEOUT, response).await.expect("a response");
    response.expect("no stream error").into_body()
}

/// Reads until the end, an error, or `most` has passed. Grants `step` bytes every `pause`.
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
    // Half a window each time: the client needs several timeouts for what `h2` queues.
    let pause = WRITE_TIMEOUT / 4;
    let read = read_slowly(&mut body, 1_000, pause, 8 * WRITE_TIMEOUT).await;
    let read = read.expect("the stream is not reset");
    assert!(read > 10_000, "{read}");
}

/// Reads without granting more bytes, and returns the reason of the reset.
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
    timeout(TEST_TIMEOUT, end)
        .await
        .expect("the stream is reset")
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
    assert!(elapsed >= WRITE_TIMEOUT, "{elapsed:?}");
    assert!(
        elapsed < WRITE_TIMEOUT + Duration::from_secs(2),
        "{elapsed:?}"
    );
    let read = reading.await.expect("no panic").expect("no reset");
    assert!(read > 10_000, "{read}");
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
        let data: Bytes = data.expect("the complete response");
        read += data.len();
        body.flow_control()
            .release_capacity(data.len())
            .expect("an open stream");
    }
    assert_eq!(read, 1_000_000);
    let second = Connection::open(&gateway, WINDOW).await;
    let started = Instant::now();
    let mut replay = response_body(&second, pay()).await;
    assert_eq!(reset_of(&mut replay).await, Some(Reason::CANCEL));
    let elapsed = started.elapsed();
    assert!(elapsed >= WRITE_TIMEOUT, "{elapsed:?}");
    assert_eq!(upstream.count(), 1);
}

/// Connects a client whose socket accepts few bytes at a time, although its HTTP/2 windows are large.
async fn small_buffer_socket(gateway: &Gateway) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(16 * 1024).expect("a socket");
    // With small segments the kernel acknowledges every few kilobytes that are read.
    SockRef::from(&socket).set_tcp_mss(1_400).expect("a socket");
    let connected = socket.connect(gateway.address()).await;
    connected.expect("a connection")
}

/// Returns a request for `/` in HTTP/1 and one in HTTP/2 with large windows.
fn get_requests() -> [Vec<u8>; 2] {
    let http1 = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec();
    let largest_window = [0, 4, 0x7f, 0xff, 0xff, 0xff];
    let get = [
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", "/"),
    ];
    let http2 = [
        PREFACE,
        &frame(SETTINGS, 0, 0, &largest_window),
        &frame(WINDOW_UPDATE, 0, 0, &[0x40, 0, 0, 0]),
        &frame(HEADERS, END_HEADERS | END_STREAM, 1, &block(&get)),
    ];
    [http1, http2.concat()]
}

/// Reads slowly for 6 s, and then the rest at full speed.
async fn read_through_small_buffer(mut socket: TcpStream, get: Vec<u8>) {
    socket.write_all(&get).await.expect("a connection");
    let started = Instant::now();
    let mut buffer = [0; 2_000];
    // 100 KB/s: the gateway's socket is blocked for longer than the timeout at a time.
    while started.elapsed() < Duration::from_secs(6) {
        let read = timeout(TEST_TIMEOUT, socket.read(&mut buffer)).await;
        let read = read.expect("bytes").expect("no reset");
        assert!(read > 0, "closed after {:?}", started.elapsed());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut rest = 0;
    let mut buffer = vec![0; 1 << 20];
    while rest < 15 << 20 {
        let read = timeout(TEST_TIMEOUT, socket.read(&mut buffer)).await;
        let read = read.expect("bytes").expect("no reset");
        assert!(read > 0, "closed after {rest} further bytes");
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
        socket.write_all(&get).await.expect("a connection");
        eventually("upstream has the request", || {
            upstream.count() == number + 1
        })
        .await;
        gateway.wait_for_metric("connections", 0).await;
        let elapsed = started.elapsed();
        assert!(elapsed >= WRITE_TIMEOUT, "{elapsed:?}");
        assert!(
            elapsed < WRITE_TIMEOUT + Duration::from_secs(4),
            "{elapsed:?}"
        );
    }
}

#[tokio::test]
async fn streams_that_wait_for_their_turn_on_the_connection_are_not_reset() {
    const STREAMS: usize = 24;
    let upstream = with_response_length(400_000);
    let gateway = gateway(&upstream);
    let socket = gateway.client().connect().await.expect("a connection");
    // The streams have large windows. The connection has the smallest window that HTTP/2 permits.
    let (requests, connection) = h2::client::Builder::new()
        .initial_window_size(1 << 20)
        .handshake::<_, Bytes>(socket)
        .await
        .expect("a handshake");
    let driver = AbortOnDropHandle::new(tokio::spawn(connection));
    let connection = Connection {
        requests,
        _driver: driver,
    };
    let mut bodies = Vec::new();
    for _ in 0..STREAMS {
        bodies.push(response_body(&connection, request("GET", "/")).await);
    }
    // 640 KB/s for all streams together: a round of 16 KiB per stream takes longer than the timeout.
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
            let data = data.expect("more").expect("no reset");
            read += data.len();
            body.flow_control()
                .release_capacity(data.len())
                .expect("an open stream");
        }
    }
    println!("{read} bytes in {:?}", started.elapsed());
    assert!(read > 1_000_000, "{read}");
}

#[tokio::test]
async fn a_client_that_withdraws_its_window_does_not_hold_responses_forever() {
    const STREAMS: u32 = 20;
    let upstream = with_response_length(60_000);
    let gateway = Gateway::proxying("[server]\nwrite_timeout = \"400ms\"")
        .admin()
        .upstream(&upstream)
        .start();
    let mut socket = small_buffer_socket(&gateway).await;
    let get = [
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", "/"),
    ];
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
            &block(&get),
        ));
    }
    socket.write_all(&sent).await.expect("a connection");
    let arrived = usize::try_from(STREAMS).expect("few");
    eventually("upstream has all requests", || upstream.count() == arrived).await;
    tokio::time::sleep(WRITE_TIMEOUT / 4).await;
    let withdrawn = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    socket.write_all(&withdrawn).await.expect("a connection");
    let reading = async {
        let mut buffer = vec![0; 65_536];
        while socket.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
    };
    timeout(TEST_TIMEOUT, reading)
        .await
        .expect("the connection is closed");
    gateway.wait_for_metric("connections", 0).await;
}
