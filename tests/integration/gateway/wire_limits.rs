//! Tests of the memory that one client can make the gateway use. The size of heads is limited, bodies are streamed, and
//! idle connections use little memory.
//!
//! The tests start the gateway as a separate process, so that they can measure its memory.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::support::Process;
use crate::support::raw_http::{RawClient, RawUpstream, WireGateway, configuration, contains, ok};

#[test]
fn a_head_that_is_too_large_returns_431() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = WireGateway::forwarding_to(&upstream);
    for head in [
        format!("X: {}\r\n", "x".repeat(1 << 20)),
        "X: y\r\n".repeat(10_000),
        "X: y\r\n".repeat(101),
        format!("{}: y\r\n", "x".repeat(1 << 20)),
    ] {
        let mut client = gateway.client();
        let request = format!("GET /api HTTP/1.1\r\nHost: a\r\n{head}\r\n");
        let sending = client.send_in_background(request.into_bytes());
        assert_eq!(client.response().status, 431);
        client.assert_closed();
        sending.join().unwrap();
    }
    let mut client = gateway.client();
    let target = format!(
        "GET /api/{} HTTP/1.1\r\nHost: a\r\n\r\n",
        "x".repeat(1 << 20)
    );
    let sending = client.send_in_background(target.into_bytes());
    assert!(matches!(client.response().status, 414 | 431));
    client.assert_closed();
    sending.join().unwrap();
    upstream.assert_received_nothing(&gateway);
}

#[test]
fn a_forwarded_for_header_with_ten_thousand_hops_is_rejected() {
    let upstream = RawUpstream::echoing_request_line();
    let server = "max_header_bytes = \"256KiB\"\n[client]\ntrusted_proxies = [\"127.0.0.0/8\"]";
    let gateway = WireGateway::with(upstream.address, server, "");
    let mut client = gateway.client();
    let hops = vec!["127.0.0.1"; 10_000].join(", ");
    client.send(format!(
        "GET /api HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {hops}\r\n\r\n"
    ));
    assert!(matches!(client.response().status, 400 | 431));
    upstream.assert_received_nothing(&gateway);
}

/// Starts a gateway process that forwards to `upstream`. Sends one request, so that a later measurement does not include
/// one-time allocations.
fn gateway_process(upstream: SocketAddr) -> Process {
    let process = Process::serving(&configuration(upstream, "", "")).start();
    let mut client = RawClient::connect(process.address());
    client.send("GET /api HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.response().status, 200);
    process
}

/// Returns the number of bytes to stream: 1 GiB if `TIDEGATE_FULL` is 1, otherwise 256 MiB.
fn stream_length() -> u64 {
    if std::env::var_os("TIDEGATE_FULL").is_some_and(|full| full == "1") {
        1 << 30
    } else {
        256 << 20
    }
}

/// Starts an upstream that discards request bodies. It responds to `/api/down` with [`stream_length`] bytes, and to
/// other requests with the length of their body. Returns its address.
fn streaming_upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port should be available");
    let address = listener
        .local_addr()
        .expect("the listener should have an address");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("the connection should be established");
            thread::spawn(move || while serve(&mut stream).is_some() {});
        }
    });
    address
}

fn serve(stream: &mut TcpStream) -> Option<()> {
    let mut buf = vec![0; 256 * 1024];
    let mut head = Vec::new();
    while !contains(&head, b"\r\n\r\n") {
        let n = stream.read(&mut buf[..1]).ok().filter(|&n| n > 0)?;
        head.extend_from_slice(&buf[..n]);
    }
    let head = String::from_utf8(head).ok()?.to_ascii_lowercase();
    if head.starts_with("get /api/down ") {
        let len = stream_length();
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n").ok()?;
        return write_zeros(stream, len).ok();
    }
    let len = head.split("\r\ncontent-length: ").nth(1);
    let len: u64 = len.map_or(Some(0), |rest| rest.split("\r\n").next()?.parse().ok())?;
    let mut left = len;
    while left > 0 {
        let most = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let n = stream.read(&mut buf[..most]).ok().filter(|&n| n > 0)?;
        left -= n as u64;
    }
    stream.write_all(ok(&len.to_string()).as_bytes()).ok()
}

fn write_zeros(stream: &mut TcpStream, mut left: u64) -> std::io::Result<()> {
    let zeros = vec![0; 256 * 1024];
    while left > 0 {
        let most = zeros.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        stream.write_all(&zeros[..most])?;
        left -= most as u64;
    }
    Ok(())
}

const MAX_GROWTH: u64 = 32 * 1024;

#[test]
fn a_huge_request_body_is_streamed_in_bounded_memory() {
    let gateway = gateway_process(streaming_upstream());
    let before = gateway.memory("VmRSS");
    let mut client = RawClient::connect(gateway.address());
    let len = stream_length();
    client.send(format!(
        "POST /api/up HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n"
    ));
    write_zeros(&mut client.stream, len).unwrap();
    assert_eq!(client.response().body, len.to_string().as_bytes());
    let growth = gateway.memory("VmHWM").saturating_sub(before);
    println!(
        "the gateway used {growth} KiB more memory for a request body of {} MiB",
        len >> 20
    );
    assert!(growth < MAX_GROWTH, "{growth} KiB");
}

#[test]
fn a_huge_response_body_is_streamed_in_bounded_memory() {
    let gateway = gateway_process(streaming_upstream());
    let before = gateway.memory("VmRSS");
    let mut client = RawClient::connect(gateway.address());
    client.send("GET /api/down HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let mut buf = vec![0; 256 * 1024];
    let mut received = 0;
    while let n @ 1.. = client.stream.read(&mut buf).unwrap() {
        received += n as u64;
    }
    assert!(
        (stream_length()..stream_length() + 1024).contains(&received),
        "{received}"
    );
    let growth = gateway.memory("VmHWM").saturating_sub(before);
    println!(
        "the gateway used {growth} KiB more memory for a response body of {} MiB",
        stream_length() >> 20
    );
    assert!(growth < MAX_GROWTH, "{growth} KiB");
}

#[test]
fn ten_thousand_idle_connections_use_little_memory() {
    const CONNECTIONS: u64 = 10_000;
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)
        .expect("raising RLIMIT_NOFILE to its hard limit should succeed");
    if limit.maximum.is_some_and(|most| most < CONNECTIONS + 1_000) {
        println!(
            "skipped: RLIMIT_NOFILE is {:?}, which is too low for {CONNECTIONS} connections",
            limit.maximum
        );
        return;
    }
    let gateway = gateway_process(streaming_upstream());
    let before = gateway.memory("VmRSS");
    let clients: Vec<RawClient> = (0..CONNECTIONS)
        .map(|_| {
            let mut client = RawClient::connect(gateway.address());
            client.send("GET /api HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(client.response().status, 200);
            client
        })
        .collect();
    let each = gateway.memory("VmRSS").saturating_sub(before) * 1024 / CONNECTIONS;
    println!("each of {CONNECTIONS} idle connections uses {each} bytes of memory");
    assert!(each <= 16 * 1024, "{each} bytes");
    drop(clients);
}
