//! Tests that the gateway never forwards a request that the client does not complete, however the client stops.

use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::frames::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, block,
    frame,
};
use crate::support::{Gateway, TEST_TIMEOUT, Upstream, eventually};

/// Body of every request. Each element is the payload of one DATA frame.
const PARTS: [&str; 3] = ["{\"amount\"", "", ": 100}"];

/// Maximum number of connections that the test opens at the same time.
const MAX_CONNECTIONS: usize = 64;

/// How a client stops before its request is complete.
#[derive(Clone, Copy, Debug)]
enum ClientStop {
    /// The client resets the stream with this error code.
    Reset(u32),
    /// The client sends GOAWAY with this error code and closes the connection.
    Goaway(u32),
    /// The client sends GOAWAY, then nothing more, and leaves the connection open.
    GoawayAndSilence,
    /// The client closes the connection.
    Close,
    /// The client resets the TCP connection.
    Abort,
    /// The client sends nothing more, does not acknowledge pings, and leaves the connection open.
    Silence,
}

/// Description of one incomplete request.
#[derive(Clone, Debug)]
struct Case {
    /// Number of DATA frames that the client sends, at most the length of `PARTS`.
    frames: usize,
    stop: ClientStop,
    /// Whether the request has `Content-Length`.
    is_declared: bool,
    /// Idempotency key of the request.
    key: Option<String>,
}

/// Returns a case for every combination of stop, number of frames, `Content-Length` and idempotency key. If the client
/// sends all frames of `PARTS`, the body is complete and only `END_STREAM` is missing.
fn cases() -> Vec<Case> {
    let resets = (0..=13).chain([0xff]).map(ClientStop::Reset);
    let stops = resets.chain([
        ClientStop::Goaway(0),
        ClientStop::Goaway(2),
        ClientStop::GoawayAndSilence,
        ClientStop::Close,
        ClientStop::Abort,
        ClientStop::Silence,
    ]);
    let mut cases = Vec::new();
    for stop in stops {
        for frames in 0..=PARTS.len() {
            for is_declared in [false, true] {
                for is_keyed in [false, true] {
                    let key = is_keyed.then(|| format!("k{}", cases.len()));
                    cases.push(Case {
                        frames,
                        stop,
                        is_declared,
                        key,
                    });
                }
            }
        }
    }
    cases
}

impl Case {
    fn headers(&self) -> Vec<u8> {
        let length = PARTS.concat().len().to_string();
        let mut lines = vec![
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "a"),
            (":path", "/pay"),
        ];
        if self.is_declared {
            lines.push(("content-length", &length));
        }
        if let Some(key) = &self.key {
            lines.push(("idempotency-key", key));
        }
        frame(HEADERS, END_HEADERS, 1, &block(&lines))
    }

    /// Sends the incomplete request on the connection `gateway`, and then stops as `stop` states.
    async fn run(self, gateway: TcpStream) {
        let mut gateway = gateway;
        let mut sent = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &self.headers()].concat();
        for part in &PARTS[..self.frames] {
            sent.extend(frame(DATA, 0, 1, part.as_bytes()));
        }
        match self.stop {
            ClientStop::Reset(code) => sent.extend(frame(RST_STREAM, 0, 1, &code.to_be_bytes())),
            ClientStop::Goaway(code) => {
                let payload = [[0; 4], code.to_be_bytes()].concat();
                sent.extend(frame(GOAWAY, 0, 0, &payload));
            }
            ClientStop::GoawayAndSilence => sent.extend(frame(GOAWAY, 0, 0, &[0; 8])),
            ClientStop::Close | ClientStop::Abort | ClientStop::Silence => {}
        }
        gateway
            .write_all(&sent)
            .await
            .expect("the connection is open");
        match self.stop {
            ClientStop::Reset(_) => {
                // The gateway handles frames in order. When it acknowledges the ping, it has handled the reset.
                gateway
                    .write_all(&frame(PING, 0, 0, &[7; 8]))
                    .await
                    .expect("the connection is open");
                assert!(has_sent(&mut gateway, &[7; 8]).await);
            }
            ClientStop::Silence | ClientStop::GoawayAndSilence => {
                assert!(
                    has_sent(&mut gateway, b"did not arrive in time").await,
                    "the gateway did not respond with 408"
                );
            }
            ClientStop::Abort => {
                let linger = SockRef::from(&gateway).set_linger(Some(Duration::ZERO));
                linger.expect("the socket is open");
            }
            ClientStop::Goaway(_) | ClientStop::Close => {}
        }
    }
}

/// Reads until the gateway has sent `bytes`. Returns false if the gateway closes the connection before that.
async fn has_sent(gateway: &mut TcpStream, bytes: &[u8]) -> bool {
    let mut received = Vec::new();
    while !received.windows(bytes.len()).any(|window| window == bytes) {
        let read = tokio::time::timeout(TEST_TIMEOUT, gateway.read_buf(&mut received)).await;
        match read.expect("the gateway sends something or closes in time") {
            Ok(0) | Err(_) => return false,
            Ok(_) => {}
        }
    }
    true
}

#[tokio::test]
async fn an_incomplete_request_is_never_executed() {
    let upstream = Upstream::replying(201);
    let gateway = Gateway::keyed("")
        .with_section(
            "[server]\nidle_timeout = \"500ms\"\nheader_timeout = \"500ms\"\nbody_timeout = \"2s\"\n\
             [log]\naccess = false",
        )
        .admin()
        .upstream(&upstream)
        .start();
    let cases = cases();
    let count = cases.len();
    let mut running = JoinSet::new();
    for case in cases.clone() {
        if running.len() == MAX_CONNECTIONS {
            running
                .join_next()
                .await
                .expect("a case is running")
                .expect("the task does not panic");
        }
        let socket = gateway
            .client()
            .connect()
            .await
            .expect("the connection is open");
        running.spawn(case.run(socket));
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("the task does not panic");
    }
    gateway.wait_for_metric("connections", 0).await;
    gateway
        .wait_for_metric("upstream_in_flight{upstream=\"api\"}", 0)
        .await;
    let executed: Vec<_> = upstream.requests();
    assert!(
        executed.is_empty(),
        "the upstream received incomplete requests: {executed:?}"
    );

    // The incomplete requests must not have claimed their idempotency keys: a complete request with the same key is
    // executed.
    let keys: Vec<_> = cases.into_iter().filter_map(|case| case.key).collect();
    for key in &keys {
        let retry = gateway.client().post("/pay").key(key).body(PARTS.concat());
        let response = retry.send().await;
        assert_eq!(response.status, 201, "{key}: {}", response.text());
        assert!(!response.is_replay());
    }
    eventually(
        "the upstream has received all complete requests",
        async || upstream.count() == keys.len(),
    )
    .await;
    println!("the upstream received none of {count} incomplete requests");
}

#[tokio::test]
async fn a_request_with_content_length_0_is_complete_only_with_end_stream() {
    let upstream = Upstream::replying(201);
    let gateway = Gateway::proxying("[server]\nworkers = 1\nbody_timeout = \"500ms\"")
        .upstream(&upstream)
        .start();
    let lines = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "a"),
        (":path", "/"),
        ("content-length", "0"),
    ];
    for end in [
        frame(RST_STREAM, 0, 1, &[0; 4]),
        frame(DATA, END_STREAM, 1, b"more"),
        // The client sends nothing after the header fields, so `body_timeout` expires.
        Vec::new(),
    ] {
        let mut socket = gateway
            .client()
            .connect()
            .await
            .expect("the connection is open");
        let headers = frame(HEADERS, END_HEADERS, 1, &block(&lines));
        let sent = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &headers, &end].concat();
        socket
            .write_all(&sent)
            .await
            .expect("the connection is open");
        if end.is_empty() {
            assert!(
                has_sent(&mut socket, b"did not arrive in time").await,
                "the gateway did not respond with 408"
            );
        } else {
            let ping = frame(PING, 0, 0, &[7; 8]);
            socket
                .write_all(&ping)
                .await
                .expect("the connection is open");
            assert!(has_sent(&mut socket, &[7; 8]).await);
        }
        assert_eq!(upstream.count(), 0);
    }
    let empty = frame(DATA, END_STREAM, 1, &[]);
    let mut socket = gateway
        .client()
        .connect()
        .await
        .expect("the connection is open");
    let headers = frame(HEADERS, END_HEADERS, 1, &block(&lines));
    let sent = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &headers, &empty].concat();
    socket
        .write_all(&sent)
        .await
        .expect("the connection is open");
    eventually(
        "the upstream has received the complete request",
        async || upstream.count() == 1,
    )
    .await;
    assert_eq!(upstream.last().header("content-length"), "0");
}
