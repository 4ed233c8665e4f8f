//! Tests of HTTP/2 with raw frames. Header fields that HTTP/1 would parse differently never reach upstream, and floods
//! of frames end the connection.

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use crate::gateway::http2::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, PREFACE, RST_STREAM,
    SETTINGS, block, frame, length,
};
use crate::support::TEST_TIMEOUT;
use crate::support::raw_http::{RawClient, RawUpstream, UpstreamConnection, WireGateway, ok};

/// HPACK code of the field `:status: 200`, from the static table (RFC 7541).
const STATUS_200: u8 = 0x88;

/// The text `408` in the Huffman code of RFC 7541: 011010, 00000, 011110, and then ones as padding.
const STATUS_408: [u8; 3] = [0b0110_1000, 0b0000_1111, 0b0111_1111];

const GET: [(&str, &str); 4] = [
    (":method", "GET"),
    (":scheme", "http"),
    (":authority", "a"),
    (":path", "/api"),
];

/// Returns the header block of [`GET`] with these additional header fields.
fn get_with(lines: &[(&'static str, &'static str)]) -> Vec<u8> {
    block(&[&GET[..], lines].concat())
}

/// HTTP/2 client connection on which the connection preface was sent.
struct Http2(RawClient);

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Http2 {
    fn connect(gateway: &WireGateway) -> Self {
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

    /// Reads the next frame. Returns `None` if the gateway closes the connection.
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

    /// Reads frames until the exchange on `stream` ends, and returns its outcome.
    fn outcome(&mut self, stream: u32) -> StreamOutcome {
        let mut status = None;
        while let Some(frame) = self.next() {
            match frame.kind {
                GOAWAY => return StreamOutcome::ConnectionError,
                RST_STREAM if frame.stream == stream => return StreamOutcome::StreamError,
                HEADERS if frame.stream == stream => status = Some(frame.payload[0]),
                _ => {}
            }
            if frame.stream == stream && frame.flags & END_STREAM != 0 {
                match status {
                    Some(STATUS_200) => return StreamOutcome::Served,
                    _ => return StreamOutcome::Rejected,
                }
            }
        }
        StreamOutcome::ConnectionError
    }
}

#[derive(Debug, PartialEq, Eq)]
enum StreamOutcome {
    Served,
    /// The gateway sent a response with a status other than 200.
    Rejected,
    StreamError,
    ConnectionError,
}

#[test]
fn a_plain_request_is_served() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = WireGateway::forwarding_to(&upstream);
    let mut client = Http2::connect(&gateway);
    for stream in [1, 3, 5] {
        client.headers(stream, END_STREAM, &get_with(&[]));
        assert_eq!(client.outcome(stream), StreamOutcome::Served);
    }
    let post = get_with(&[("content-length", "5")]);
    client.headers(7, 0, &post).data(7, END_STREAM, b"hello");
    assert_eq!(client.outcome(7), StreamOutcome::Served);
    // A client can send the host in `host` instead of `:authority`.
    let [method, scheme, _, path] = GET;
    let lines = block(&[method, scheme, path, ("host", "a")]);
    client.headers(9, END_STREAM, &lines);
    assert_eq!(client.outcome(9), StreamOutcome::Served);
}

#[test]
fn a_header_that_http_1_would_parse_differently_never_reaches_upstream() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = WireGateway::forwarding_to(&upstream);
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
        assert_ne!(outcome, StreamOutcome::Served, "{name:?}: {value:?}");
        upstream.assert_received_nothing(&gateway);
    }
}

#[test]
fn invalid_pseudo_headers_are_rejected() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = WireGateway::forwarding_to(&upstream);
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
        vec![(":method", "OPTIONS"), scheme, authority, (":path", "*")],
        vec![(":method", "get"), scheme, authority, path],
        vec![
            method,
            scheme,
            authority,
            path,
            ("host", "a"),
            ("host", "a"),
        ],
        vec![method, scheme, path, ("host", "a"), ("host", "a")],
        vec![method, scheme, path, ("host", "")],
        vec![method, scheme, path, ("host", "a,b")],
        vec![method, scheme, path, ("host", "u@a")],
        vec![method, scheme, path, ("host", "a/b")],
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
        assert_ne!(client.outcome(1), StreamOutcome::Served, "{lines:?}");
        upstream.assert_received_nothing(&gateway);
    }
}

/// Sends requests whose `content-length` differs from the length of the body, and checks that none is executed.
/// `extra` contains further header fields.
fn assert_wrong_lengths_are_rejected(
    upstream: &RawUpstream,
    gateway: &WireGateway,
    extra: &[(&'static str, &'static str)],
) {
    for (declared, body, has_trailers) in [
        ("5", &b"hello, more"[..], false),
        ("50", b"hello", false),
        ("0", b"hello", false),
        ("5", b"", false),
        ("50", b"hello", true),
        ("0", b"hello", true),
        ("5", b"", true),
    ] {
        let lines = [
            &[(":method", "POST")],
            &GET[1..],
            &[("content-length", declared)],
            extra,
        ]
        .concat();
        let mut client = Http2::connect(gateway);
        client.headers(1, 0, &block(&lines));
        if has_trailers {
            client.data(1, 0, body);
            client.headers(1, END_STREAM, &block(&[("x-trailer", "a")]));
        } else {
            client.data(1, END_STREAM, body);
        }
        let outcome = client.outcome(1);
        assert_eq!(outcome, StreamOutcome::StreamError, "{declared}");
        // The gateway must not reuse an upstream connection on which a body is incomplete. Otherwise upstream would
        // read this request as the rest of that body.
        let mut after = gateway.client();
        after.send("GET /api/after HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(after.response().body, b"GET /api/after HTTP/1.1");
        let received = upstream.received();
        let early = received.matches("hello").count();
        assert!(!received.contains("hello, more"), "{received}");
        assert!(early <= 1, "{received}");
        if declared == "0" {
            assert!(!received.contains("POST"), "{received}");
        }
        upstream.clear_received();
    }
}

#[test]
fn a_body_with_a_wrong_content_length_is_never_complete_at_upstream() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = WireGateway::forwarding_to(&upstream);
    assert_wrong_lengths_are_rejected(&upstream, &gateway, &[]);
}

#[test]
fn a_keyed_body_with_a_wrong_content_length_never_reaches_upstream() {
    let upstream = RawUpstream::echoing_request_line();
    let keyed =
        "[[route]]\nname = \"keyed\"\npath = \"/api$\"\nidempotency = { mode = \"required\" }";
    let gateway = WireGateway::with(upstream.address, "", keyed);
    let key = ("idempotency-key", "k1");
    assert_wrong_lengths_are_rejected(&upstream, &gateway, &[key]);
    // The rejected requests have not claimed the key.
    let mut client = Http2::connect(&gateway);
    let post = [&[(":method", "POST")], &GET[1..], &[key]].concat();
    client.headers(1, END_STREAM, &block(&post));
    assert_eq!(client.outcome(1), StreamOutcome::Served);
}

#[test]
fn trailers_are_dropped() {
    let upstream = RawUpstream::scripted(|connection| {
        while let Some(request) = connection.request() {
            connection.send(ok(request.line()));
        }
    });
    let gateway = WireGateway::forwarding_to(&upstream);
    let mut client = Http2::connect(&gateway);
    client.headers(1, 0, &get_with(&[]));
    client.data(1, 0, b"hello");
    let trailers = block(&[("x-late", "evil"), ("authorization", " evil")]);
    client.headers(1, END_STREAM, &trailers);
    assert_eq!(client.outcome(1), StreamOutcome::Served);
    let received = upstream.received();
    assert!(received.contains("hello"));
    assert!(!received.contains("evil"), "{received}");
}

#[test]
fn a_header_list_above_the_limit_is_rejected() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = WireGateway::forwarding_to(&upstream);
    let long: &'static str = "x".repeat(15_000).leak();
    let mut client = Http2::connect(&gateway);
    let complete_block = get_with(&[("a", long), ("b", long), ("c", long)]);
    let mut parts = complete_block.chunks(16_000).peekable();
    let first = parts
        .next()
        .expect("the header block should have a first part");
    client.0.send(frame(HEADERS, END_STREAM, 1, first));
    while let Some(part) = parts.next() {
        let flags = if parts.peek().is_none() {
            END_HEADERS
        } else {
            0
        };
        client.0.send(frame(CONTINUATION, flags, 1, part));
    }
    assert_ne!(client.outcome(1), StreamOutcome::Served);
    upstream.assert_received_nothing(&gateway);
}

#[test]
fn an_hpack_bomb_is_rejected() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = WireGateway::forwarding_to(&upstream);
    let mut client = Http2::connect(&gateway);
    // The block adds one field of 4000 bytes to the dynamic table. Each of the following 10,000 bytes refers to that
    // field.
    let mut header_block = get_with(&[]);
    header_block.push(0x40);
    length(&mut header_block, 1);
    header_block.push(b'x');
    length(&mut header_block, 4000);
    header_block.extend([b'y'; 4000]);
    header_block.extend([0x80 | 0x3e; 10_000]);
    client.headers(1, END_STREAM, &header_block);
    assert_ne!(client.outcome(1), StreamOutcome::Served);
    upstream.assert_received_nothing(&gateway);
}

/// Sends `begin`. Then calls `flood` up to `most` times, and sends the frames that each call returns. Returns whether
/// the gateway ended the connection.
fn ends_connection(
    gateway: &WireGateway,
    begin: &[u8],
    most: usize,
    mut flood: impl FnMut(usize) -> Vec<u8>,
) -> bool {
    let mut client = Http2::connect(gateway);
    client.0.send(begin);
    let reader = client
        .0
        .stream
        .try_clone()
        .expect("the socket should be open");
    let reading = std::thread::spawn(move || {
        let mut client = Http2(RawClient::of(reader));
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
        assert!(
            started.elapsed() < TEST_TIMEOUT * 3,
            "sending the flood of frames takes too long"
        );
    }
    // The gateway gets two more seconds, because it has possibly not read all frames yet.
    let grace = Instant::now() + Duration::from_secs(2);
    while !reading.is_finished() && Instant::now() < grace {
        std::thread::sleep(Duration::from_millis(5));
    }
    let stopped = reading.is_finished();
    let _ = client.0.stream.shutdown(std::net::Shutdown::Both);
    stopped
}

#[test]
fn a_rapid_reset_flood_ends_the_connection_and_few_requests_reach_upstream() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = WireGateway::forwarding_to(&upstream);
    let request = get_with(&[]);
    let stopped = ends_connection(&gateway, &[], 20_000, |n| {
        let stream = u32::try_from(n).expect("the stream number should fit in 32 bits") * 2 + 1;
        let mut frames = frame(HEADERS, END_STREAM | END_HEADERS, stream, &request);
        frames.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        frames
    });
    let reached = upstream.received().matches(" HTTP/1.1\r\n").count();
    println!("of 20,000 streams that were reset immediately, {reached} reached upstream");
    assert!(stopped);
    assert!(reached < 2_000, "{reached}");
    // The flood of one client does not affect other clients.
    let mut after = gateway.client();
    after.send("GET /api HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(after.response().status, 200);
}

#[test]
fn endless_continuation_frames_end_the_connection() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = WireGateway::forwarding_to(&upstream);
    let begin = frame(HEADERS, 0, 1, &block(&GET));
    let more = frame(CONTINUATION, 0, 1, &block(&[("x", "y")]));
    assert!(ends_connection(&gateway, &begin, 100_000, |_| more.clone()));
    let empty = frame(CONTINUATION, 0, 1, &[]);
    assert!(ends_connection(&gateway, &begin, 100_000, |_| empty.clone()));
    upstream.assert_received_nothing(&gateway);
}

#[test]
fn floods_of_control_frames_do_not_affect_other_clients() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = WireGateway::forwarding_to(&upstream);
    let begin = frame(HEADERS, END_HEADERS, 1, &get_with(&[]));
    for flood in [
        frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]),
        frame(PING, 0, 0, &[0; 8]),
        frame(DATA, 0, 1, &[]),
    ] {
        let stopped = ends_connection(&gateway, &begin, 50_000, |_| flood.clone());
        println!(
            "the gateway closed the connection after at most 50,000 frames of type {}: {stopped}",
            flood[3]
        );
        let mut after = gateway.client();
        after.send("GET /nowhere HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(after.response().status, 404);
    }
}

#[test]
fn an_idle_connection_is_closed_although_its_client_does_not_acknowledge_the_shutdown() {
    let upstream = RawUpstream::echoing_request_line();
    let timeouts = "idle_timeout = \"300ms\"\nheader_timeout = \"300ms\"";
    let gateway = WireGateway::with(upstream.address, timeouts, "");
    let started = Instant::now();
    let mut client = Http2::connect(&gateway);
    while client.next().is_some() {}
    assert!(started.elapsed() >= Duration::from_millis(300));
}

#[test]
fn a_preface_or_head_that_never_ends_closes_the_connection() {
    let upstream = RawUpstream::echoing_request_line();
    let timeouts = "idle_timeout = \"300ms\"\nheader_timeout = \"300ms\"";
    let gateway = WireGateway::with(upstream.address, timeouts, "");
    let settings = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    let head = frame(HEADERS, END_STREAM, 1, &block(&GET));
    for sent in [
        PREFACE[..10].to_vec(),
        PREFACE.to_vec(),
        [&settings[..], &head[..20]].concat(),
        // The flag END_HEADERS is missing, so the head ends with a CONTINUATION frame.
        [&settings[..], &head].concat(),
    ] {
        let started = Instant::now();
        let mut client = gateway.client();
        client.send(sent);
        let (_frames, _end) = client.read_to_end();
        assert!(started.elapsed() >= Duration::from_millis(250));
    }
    upstream.assert_received_nothing(&gateway);
}

#[test]
fn a_stream_whose_client_grants_no_window_is_reset() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = WireGateway::with(upstream.address, "write_timeout = \"300ms\"", "");
    let mut client = gateway.client();
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    // The client sets SETTINGS_INITIAL_WINDOW_SIZE (4) to 0, so the gateway must not send any body data.
    client.send(frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
    let mut client = Http2(client);
    client.headers(1, END_STREAM, &block(&GET));
    let started = Instant::now();
    let reset = std::iter::from_fn(|| client.next())
        .inspect(|frame| assert_ne!(frame.kind, DATA, "the gateway sent DATA with a window of 0"))
        .find(|frame| frame.kind == RST_STREAM);
    assert_eq!(
        reset.expect("the gateway should reset the stream").stream,
        1
    );
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert!(started.elapsed() < TEST_TIMEOUT);
}

#[test]
fn a_stalled_upload_returns_408_although_first_byte_timeout_expires_too() {
    let upstream = RawUpstream::scripted(UpstreamConnection::read_to_close);
    let gateway = WireGateway::with(
        upstream.address,
        "body_timeout = \"300ms\"",
        "first_byte_timeout = \"300ms\"",
    );
    let mut http1 = gateway.client();
    http1.send("POST /api HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nhello");
    assert_eq!(http1.response().status, 408);

    let mut http2 = Http2::connect(&gateway);
    let post = block(&[&[(":method", "POST")], &GET[1..]].concat());
    http2.headers(1, 0, &post).data(1, 0, b"hello");
    let head = std::iter::from_fn(|| http2.next()).find(|frame| frame.kind == HEADERS);
    let head = head.expect("the request should get a response").payload;
    assert!(head.windows(3).any(|code| code == STATUS_408), "{head:?}");
}
