//! HTTP/2 in raw frames: what HTTP/1 could read differently never gets there, and floods are bounded.

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use crate::http2::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS,
    block, frame, length,
};
use crate::wire_raw::{Client, Conversation, PATIENCE, Running, Upstream, ok};

/// `:status 200` in the static table.
const STATUS_200: u8 = 0x88;

/// `408` as RFC 7541 compresses it: 011010, 00000, 011110, and ones for padding.
const STATUS_408: [u8; 3] = [0b0110_1000, 0b0000_1111, 0b0111_1111];

const GET: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "http"),
    (":authority", "a"),
    (":path", "/api"),
];

/// [`GET`] with these lines added.
fn get_with(lines: &[(&'static str, &'static str)]) -> Vec<u8> {
    block(&[&GET[..], lines].concat())
}

/// A connection past its preface.
struct Http2(Client);

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Http2 {
    fn connect(gateway: &Running) -> Self {
        let mut client = gateway.client();
        client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        client.send(frame(SETTINGS, 0, 0, &[]));
        Self(client)
    }

    fn headers(&mut self, stream: u32, flags: u8, block: &[u8]) -> &mut Self {
        self.0
            .send(frame(HEADERS, flags | END_HEADERS, stream, block));
        self
    }

    fn data(&mut self, stream: u32, flags: u8, data: &[u8]) -> &mut Self {
        self.0.send(frame(DATA, flags, stream, data));
        self
    }

    /// The next frame; `None` at the end of the connection.
    fn next(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.0.stream.read_exact(&mut head).ok()?;
        let len = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; len as usize];
        self.0.stream.read_exact(&mut payload).ok()?;
        Some(Frame {
            kind: head[3],
            flags: head[4],
            stream: u32::from_be_bytes([head[5], head[6], head[7], head[8]]),
            payload,
        })
    }

    /// How the exchange on `stream` ends.
    fn outcome(&mut self, stream: u32) -> Outcome {
        let mut status = None;
        while let Some(frame) = self.next() {
            match frame.kind {
                GOAWAY => return Outcome::ConnectionError,
                RST_STREAM if frame.stream == stream => return Outcome::StreamError,
                HEADERS if frame.stream == stream => status = Some(frame.payload[0]),
                _ => {}
            }
            if frame.stream == stream && frame.flags & END_STREAM != 0 {
                match status {
                    Some(STATUS_200) => return Outcome::Served,
                    _ => return Outcome::Refused,
                }
            }
        }
        Outcome::ConnectionError
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Served,
    /// Answered with another status than 200.
    Refused,
    StreamError,
    ConnectionError,
}

#[test]
fn a_plain_request_is_served() {
    let upstream = Upstream::repeating();
    let gateway = Running::before(&upstream);
    let mut client = Http2::connect(&gateway);
    for stream in [1, 3, 5] {
        client.headers(stream, END_STREAM, &get_with(&[]));
        assert_eq!(client.outcome(stream), Outcome::Served);
    }
    let post = get_with(&[("content-length", "5")]);
    client.headers(7, 0, &post).data(7, END_STREAM, b"hello");
    assert_eq!(client.outcome(7), Outcome::Served);
}

#[test]
fn a_header_that_http_1_would_read_differently_never_reaches_upstream() {
    let upstream = Upstream::repeating();
    let gateway = Running::before(&upstream);
    for (name, value) in [
        ("x", "a\r\ny: b"),
        ("x", "a\nb"),
        ("x", "a\rb"),
        ("x", "a\0b"),
        (
            "x",
            "a\r\n\r\nGET /api/smuggled HTTP/1.1\r\nhost: a\r\n\r\n",
        ),
        ("x\r\ny", "a"),
        ("x: y", "a"),
        ("x y", "a"),
        ("", "a"),
        ("X-Upper", "a"),
        ("transfer-encoding", "chunked"),
        ("connection", "close"),
        ("keep-alive", "1"),
        ("proxy-connection", "close"),
        ("upgrade", "websocket"),
        ("te", "gzip"),
        ("content-length", "x"),
        ("content-length", "-1"),
        ("content-length", "+0"),
        ("host", "b"),
        ("host", "a\r\nx: y"),
        ("host", " a"),
        ("x", " a"),
        ("x", "a\t"),
        ("x", "\x0ba"),
        ("content-length", " 0"),
        ("te", " trailers"),
        ("te", "trailers "),
        (":late", "a"),
        (":method", "GET"),
        (":path", "/api/other"),
        (":authority", "b"),
        (":status", "200"),
        (":protocol", "websocket"),
    ] {
        let mut client = Http2::connect(&gateway);
        client.headers(1, END_STREAM, &get_with(&[(name, value)]));
        let outcome = client.outcome(1);
        assert_ne!(outcome, Outcome::Served, "{name:?}: {value:?}");
        upstream.got_nothing_by(&gateway);
    }
}

#[test]
fn bad_pseudo_headers_are_refused() {
    let upstream = Upstream::repeating();
    let gateway = Running::before(&upstream);
    let [method, scheme, authority, path] = GET;
    for lines in [
        vec![scheme, authority, path],
        vec![method, authority, path],
        vec![method, scheme, authority],
        vec![method, scheme, path],
        vec![method, scheme, authority, (":path", "")],
        vec![method, scheme, authority, (":path", "api")],
        vec![method, scheme, authority, (":path", "*")],
        vec![
            method,
            scheme,
            authority,
            (":path", "/api HTTP/1.1\r\nx: y"),
        ],
        vec![
            method,
            scheme,
            authority,
            (":path", "/api\r\n\r\nGET /smuggled"),
        ],
        vec![method, scheme, authority, (":path", "/api x")],
        vec![method, scheme, authority, (":path", "http://b/api")],
        vec![(":method", "GET /x HTTP/1.1\r\n"), scheme, authority, path],
        vec![(":method", ""), scheme, authority, path],
        vec![(":method", "CONNECT"), authority],
        vec![
            (":method", "CONNECT"),
            scheme,
            authority,
            path,
            (":protocol", "websocket"),
        ],
        vec![(":method", "TRACE"), scheme, authority, path],
        vec![method, (":scheme", "h\r\ntp"), authority, path],
        vec![method, (":scheme", "ftp"), authority, path],
        vec![method, scheme, (":authority", ""), path],
        vec![method, scheme, (":authority", "u@a"), path],
        vec![method, scheme, (":authority", "a/b"), path],
        vec![method, scheme, (":authority", "a\r\nx: y"), path],
        vec![method, scheme, (":authority", "a,b"), path],
        vec![(":method", " GET"), scheme, authority, path],
        vec![(":method", "GET\t"), scheme, authority, path],
        vec![method, (":scheme", " http"), authority, path],
        vec![method, (":scheme", "http "), authority, path],
        vec![method, scheme, (":authority", " a"), path],
        vec![method, scheme, (":authority", "a\t"), path],
        vec![method, scheme, authority, (":path", " /api")],
        vec![method, scheme, authority, (":path", "/api ")],
        vec![method, scheme, authority, (":path", "/api\t")],
        vec![("x", "y"), method, scheme, authority, path],
        vec![method, scheme, ("x", "y"), authority, path],
    ] {
        let mut client = Http2::connect(&gateway);
        client.headers(1, END_STREAM, &block(&lines));
        assert_ne!(client.outcome(1), Outcome::Served, "{lines:?}");
        upstream.got_nothing_by(&gateway);
    }
}

#[test]
fn a_body_of_another_length_than_declared_is_never_complete_upstream() {
    let upstream = Upstream::repeating();
    let gateway = Running::before(&upstream);
    for (declared, body) in [
        ("5", &b"hello, more"[..]),
        ("50", b"hello"),
        ("0", b"hello"),
        ("5", b""),
    ] {
        let lines = [&GET[..], &[("content-length", declared)]].concat();
        let mut client = Http2::connect(&gateway);
        client.headers(1, 0, &block(&lines));
        client.data(1, END_STREAM, body);
        assert_ne!(client.outcome(1), Outcome::Served, "{declared}");
        // Had upstream taken it for complete, it would have answered, and the next request would be
        // on the same connection behind it.
        let mut after = gateway.client();
        after.send("GET /api/after HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(after.answer().body, b"GET /api/after HTTP/1.1");
        let received = upstream.received();
        let early = received.matches("hello").count();
        assert!(!received.contains("hello, more"), "{received}");
        assert!(early <= 1, "{received}");
        upstream.forget();
    }
}

#[test]
fn trailers_are_dropped() {
    let upstream = Upstream::scripted(|conversation| {
        while let Some(request) = conversation.request() {
            conversation.send(ok(request.line()));
        }
    });
    let gateway = Running::before(&upstream);
    let mut client = Http2::connect(&gateway);
    client.headers(1, 0, &get_with(&[]));
    client.data(1, 0, b"hello");
    let trailers = block(&[("x-late", "evil"), ("authorization", " evil")]);
    client.headers(1, END_STREAM, &trailers);
    assert_eq!(client.outcome(1), Outcome::Served);
    let received = upstream.received();
    assert!(received.contains("hello"));
    assert!(!received.contains("evil"), "{received}");
}

#[test]
fn a_header_list_over_the_cap_is_refused() {
    let upstream = Upstream::repeating();
    let gateway = Running::before(&upstream);
    let long: &'static str = "x".repeat(15_000).leak();
    let mut client = Http2::connect(&gateway);
    let whole = get_with(&[("a", long), ("b", long), ("c", long)]);
    let mut parts = whole.chunks(16_000).peekable();
    let first = parts.next().expect("a part");
    client.0.send(frame(HEADERS, END_STREAM, 1, first));
    while let Some(part) = parts.next() {
        let flags = if parts.peek().is_none() {
            END_HEADERS
        } else {
            0
        };
        client.0.send(frame(CONTINUATION, flags, 1, part));
    }
    assert_ne!(client.outcome(1), Outcome::Served);
    upstream.got_nothing_by(&gateway);
}

#[test]
fn an_hpack_bomb_is_refused() {
    let upstream = Upstream::repeating();
    let gateway = Running::before(&upstream);
    let mut client = Http2::connect(&gateway);
    // One large line put into the table, then named by one byte each time.
    let mut bomb = get_with(&[]);
    bomb.push(0x40);
    length(&mut bomb, 1);
    bomb.push(b'x');
    length(&mut bomb, 4000);
    bomb.extend([b'y'; 4000]);
    bomb.extend([0x80 | 0x3e; 10_000]);
    client.headers(1, END_STREAM, &bomb);
    assert_ne!(client.outcome(1), Outcome::Served);
    upstream.got_nothing_by(&gateway);
}

/// Sends `flood` over and over until the gateway has had enough or `most` were sent; whether it had.
fn is_stopped(
    gateway: &Running,
    begin: &[u8],
    most: usize,
    mut flood: impl FnMut(usize) -> Vec<u8>,
) -> bool {
    let mut client = Http2::connect(gateway);
    client.0.send(begin);
    let reader = client.0.stream.try_clone().expect("an open socket");
    let reading = std::thread::spawn(move || {
        let mut client = Http2(Client::of(reader));
        while let Some(frame) = client.next() {
            if frame.kind == GOAWAY {
                return true;
            }
        }
        true
    });
    let started = Instant::now();
    for n in 0..most {
        if reading.is_finished() || client.0.stream.write_all(&flood(n)).is_err() {
            return true;
        }
        assert!(started.elapsed() < PATIENCE * 3, "takes forever");
    }
    // What was sent may not have been read yet.
    let grace = Instant::now() + Duration::from_secs(2);
    while !reading.is_finished() && Instant::now() < grace {
        std::thread::sleep(Duration::from_millis(5));
    }
    let stopped = reading.is_finished();
    let _ = client.0.stream.shutdown(std::net::Shutdown::Both);
    stopped
}

#[test]
fn streams_reset_as_fast_as_they_are_opened_end_the_connection_and_little_reaches_upstream() {
    let upstream = Upstream::repeating();
    let gateway = Running::before(&upstream);
    let request = get_with(&[]);
    let stopped = is_stopped(&gateway, &[], 20_000, |n| {
        let stream = u32::try_from(n).expect("few") * 2 + 1;
        let mut both = frame(HEADERS, END_STREAM | END_HEADERS, stream, &request);
        both.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        both
    });
    let reached = upstream.received().matches(" HTTP/1.1\r\n").count();
    println!("of 20,000 streams reset at once {reached} reached upstream");
    assert!(stopped);
    assert!(reached < 2_000, "{reached}");
    // Nobody else is any the worse for it.
    let mut after = gateway.client();
    after.send("GET /api HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(after.answer().status, 200);
}

#[test]
fn header_continuations_without_an_end_end_the_connection() {
    let upstream = Upstream::repeating();
    let gateway = Running::before(&upstream);
    let begin = frame(HEADERS, 0, 1, &block(&GET));
    let more = frame(CONTINUATION, 0, 1, &block(&[("x", "y")]));
    assert!(is_stopped(&gateway, &begin, 100_000, |_| more.clone()));
    let empty = frame(CONTINUATION, 0, 1, &[]);
    assert!(is_stopped(&gateway, &begin, 100_000, |_| empty.clone()));
    upstream.got_nothing_by(&gateway);
}

#[test]
fn floods_of_frames_that_ask_for_nothing_leave_the_others_served() {
    let upstream = Upstream::repeating();
    let gateway = Running::before(&upstream);
    let begin = frame(HEADERS, END_HEADERS, 1, &get_with(&[]));
    for flood in [
        frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]),
        frame(PING, 0, 0, &[0; 8]),
        frame(DATA, 0, 1, &[]),
    ] {
        let stopped = is_stopped(&gateway, &begin, 50_000, |_| flood.clone());
        println!(
            "50,000 frames of kind {} end the connection: {stopped}",
            flood[3]
        );
        let mut after = gateway.client();
        after.send("GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(after.answer().status, 404);
    }
}

#[test]
fn an_idle_connection_is_closed_although_its_client_does_not_acknowledge_the_shutdown() {
    let upstream = Upstream::repeating();
    let hasty = "idle_timeout = \"300ms\"\nheader_timeout = \"300ms\"";
    let gateway = Running::with(upstream.address, hasty, "");
    let started = Instant::now();
    let mut client = Http2::connect(&gateway);
    while client.next().is_some() {}
    assert!(started.elapsed() >= Duration::from_millis(300));
}

#[test]
fn a_stream_whose_client_grants_no_window_is_reset() {
    let upstream = Upstream::repeating();
    let gateway = Running::with(upstream.address, "write_timeout = \"300ms\"", "");
    let mut client = gateway.client();
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    // SETTINGS_INITIAL_WINDOW_SIZE (4): 0.
    client.send(frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
    let mut client = Http2(client);
    client.headers(1, END_STREAM, &block(&GET));
    let started = Instant::now();
    let reset = std::iter::from_fn(|| client.next())
        .inspect(|frame| assert_ne!(frame.kind, DATA, "there is no window for it"))
        .find(|frame| frame.kind == RST_STREAM);
    assert_eq!(reset.expect("a reset").stream, 1);
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert!(started.elapsed() < PATIENCE);
}

#[test]
fn an_upload_that_stalls_is_the_clients_fault_whatever_the_upstream_is_waited_for() {
    let upstream = Upstream::scripted(Conversation::until_closed);
    let gateway = Running::with(
        upstream.address,
        "body_timeout = \"300ms\"",
        "first_byte_timeout = \"300ms\"",
    );
    let mut http1 = gateway.client();
    http1.send("POST /api HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhello");
    assert_eq!(http1.answer().status, 408);

    let mut http2 = Http2::connect(&gateway);
    let post = block(&[&[(":method", "POST")], &GET[1..]].concat());
    http2.headers(1, 0, &post).data(1, 0, b"hello");
    let head = std::iter::from_fn(|| http2.next()).find(|frame| frame.kind == HEADERS);
    let head = head.expect("an answer").payload;
    assert!(head.windows(3).any(|code| code == STATUS_408), "{head:?}");
}
