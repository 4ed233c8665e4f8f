//! Requests whose client does not end them: none is executed, however it stops.

use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::frames::{
    DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, RST_STREAM, SETTINGS, block,
    frame,
};
use crate::harness::{Gateway, PATIENCE, Upstream, eventually};

/// The body of every request here, frame by frame.
const PARTS: [&str; 3] = ["{\"amount\"", "", ": 100}"];

/// Connections that are open at once.
const AT_ONCE: usize = 64;

/// How a client stops.
#[derive(Clone, Copy, Debug)]
enum Cut {
    /// It resets the stream with this code.
    Reset(u32),
    /// It announces the end of the connection with this code, and closes it.
    Goaway(u32),
    /// It announces the end of the connection, and sends nothing more.
    GoawayAndSilence,
    /// It closes the connection.
    Close,
    /// It resets the connection.
    Abort,
    /// It sends nothing more, and does not acknowledge pings either.
    Silence,
}

/// One request that is cut.
#[derive(Clone, Debug)]
struct Case {
    /// Frames of the body that are sent.
    frames: usize,
    cut: Cut,
    is_declared: bool,
    key: Option<String>,
}

/// Every combination. The last boundary has the whole body sent and only the end of the stream missing.
fn cases() -> Vec<Case> {
    let resets = (0..=13).chain([0xff]).map(Cut::Reset);
    let cuts = resets.chain([
        Cut::Goaway(0),
        Cut::Goaway(2),
        Cut::GoawayAndSilence,
        Cut::Close,
        Cut::Abort,
        Cut::Silence,
    ]);
    let mut cases = Vec::new();
    for cut in cuts {
        for frames in 0..=PARTS.len() {
            for is_declared in [false, true] {
                for is_keyed in [false, true] {
                    let key = is_keyed.then(|| format!("k{}", cases.len()));
                    cases.push(Case {
                        frames,
                        cut,
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

    /// Sends the request up to its cut, and cuts it.
    async fn run(self, gateway: TcpStream) {
        let mut gateway = gateway;
        let mut sent = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &self.headers()].concat();
        for part in &PARTS[..self.frames] {
            sent.extend(frame(DATA, 0, 1, part.as_bytes()));
        }
        match self.cut {
            Cut::Reset(code) => sent.extend(frame(RST_STREAM, 0, 1, &code.to_be_bytes())),
            Cut::Goaway(code) => {
                let payload = [[0; 4], code.to_be_bytes()].concat();
                sent.extend(frame(GOAWAY, 0, 0, &payload));
            }
            Cut::GoawayAndSilence => sent.extend(frame(GOAWAY, 0, 0, &[0; 8])),
            Cut::Close | Cut::Abort | Cut::Silence => {}
        }
        gateway.write_all(&sent).await.expect("a connection");
        match self.cut {
            Cut::Reset(_) => {
                // The connection stays open until the gateway has handled the reset: it acknowledges the ping.
                gateway
                    .write_all(&frame(PING, 0, 0, &[7; 8]))
                    .await
                    .expect("a connection");
                assert!(has_sent(&mut gateway, &[7; 8]).await);
            }
            Cut::Silence | Cut::GoawayAndSilence => {
                assert!(
                    has_sent(&mut gateway, b"did not arrive in time").await,
                    "no 408"
                );
            }
            Cut::Abort => {
                let linger = SockRef::from(&gateway).set_linger(Some(Duration::ZERO));
                linger.expect("an open socket");
            }
            Cut::Goaway(_) | Cut::Close => {}
        }
    }
}

/// Reads until the gateway has sent `bytes`. Returns whether it has before the end of the connection.
async fn has_sent(gateway: &mut TcpStream, bytes: &[u8]) -> bool {
    let mut received = Vec::new();
    while !received.windows(bytes.len()).any(|window| window == bytes) {
        let read = tokio::time::timeout(PATIENCE, gateway.read_buf(&mut received)).await;
        match read.expect("the gateway reacts") {
            Ok(0) | Err(_) => return false,
            Ok(_) => {}
        }
    }
    true
}

#[tokio::test]
async fn a_request_that_its_client_does_not_end_is_never_executed() {
    let upstream = Upstream::replying(201);
    let gateway = Gateway::keyed("")
        .and(
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
        if running.len() == AT_ONCE {
            running
                .join_next()
                .await
                .expect("a case")
                .expect("no panic");
        }
        let socket = gateway.client().connect().await.expect("a connection");
        running.spawn(case.run(socket));
    }
    while let Some(ended) = running.join_next().await {
        ended.expect("no panic");
    }
    gateway.comes_to("connections", 0).await;
    gateway
        .comes_to("upstream_in_flight{upstream=\"api\"}", 0)
        .await;
    let executed: Vec<_> = upstream.requests();
    assert!(executed.is_empty(), "{executed:?}");

    // No key was claimed, so each is free for the complete request.
    let keys: Vec<_> = cases.into_iter().filter_map(|case| case.key).collect();
    for key in &keys {
        let retry = gateway.client().post("/pay").key(key).body(PARTS.concat());
        let response = retry.send().await;
        assert_eq!(response.status, 201, "{key}: {}", response.text());
        assert!(!response.is_replay());
    }
    eventually("all retries arrive", || upstream.count() == keys.len()).await;
    println!("{count} requests cut, none executed");
}

#[tokio::test]
async fn a_body_declared_to_be_empty_is_complete_only_with_its_stream() {
    let upstream = Upstream::replying(201);
    let gateway = Gateway::open("[server]\nworkers = 1\nbody_timeout = \"500ms\"")
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
        // Nothing: the body times out.
        Vec::new(),
    ] {
        let mut socket = gateway.client().connect().await.expect("a connection");
        let headers = frame(HEADERS, END_HEADERS, 1, &block(&lines));
        let sent = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &headers, &end].concat();
        socket.write_all(&sent).await.expect("a connection");
        if end.is_empty() {
            assert!(
                has_sent(&mut socket, b"did not arrive in time").await,
                "no 408"
            );
        } else {
            let ping = frame(PING, 0, 0, &[7; 8]);
            socket.write_all(&ping).await.expect("a connection");
            assert!(has_sent(&mut socket, &[7; 8]).await);
        }
        assert_eq!(upstream.count(), 0);
    }
    let empty = frame(DATA, END_STREAM, 1, &[]);
    let mut socket = gateway.client().connect().await.expect("a connection");
    let headers = frame(HEADERS, END_HEADERS, 1, &block(&lines));
    let sent = [PREFACE, &frame(SETTINGS, 0, 0, &[]), &headers, &empty].concat();
    socket.write_all(&sent).await.expect("a connection");
    eventually("the complete request arrives", || upstream.count() == 1).await;
    assert_eq!(upstream.last().header("content-length"), "0");
}
