//! Tests of the timeouts for slow clients.

use std::io::Read as _;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::raw_http::{RawUpstream, WireGateway};
use crate::support::{Certificates, TEST_TIMEOUT};

const GET: &str = "GET /api HTTP/1.1\r\nHost: a\r\n\r\n";

/// Lines for `[server]` that set all client timeouts to 300 ms.
const SHORT_TIMEOUTS: &str = r#"
    handshake_timeout = "300ms"
    header_timeout = "300ms"
    body_timeout = "300ms"
    idle_timeout = "300ms"
    write_timeout = "300ms"
"#;

/// Minimum time that a test measures until a timeout of 300 ms expires. The tolerance is 50 ms, because the timeout can
/// start before the measurement.
const EARLIEST: Duration = Duration::from_millis(250);

#[test]
fn an_idle_connection_is_closed() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = WireGateway::with(upstream.address, SHORT_TIMEOUTS, "");
    let mut client = gateway.client();
    for _ in 0..3 {
        client.send(GET);
        assert_eq!(client.response().status, 200);
    }
    let started = Instant::now();
    client.assert_closed();
    assert!(started.elapsed() >= EARLIEST);
}

#[test]
fn a_stalled_body_returns_408() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = WireGateway::with(upstream.address, SHORT_TIMEOUTS, "");
    for (framing, part) in [
        ("Content-Length: 100", "hello"),
        ("Transfer-Encoding: chunked", "5\r\nhel"),
    ] {
        let mut client = gateway.client();
        let started = Instant::now();
        client.send(format!(
            "POST /api HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n{part}"
        ));
        assert_eq!(client.response().status, 408, "{framing}");
        assert!(started.elapsed() >= EARLIEST);
        client.assert_closed();
    }
}

#[test]
fn a_silent_tls_handshake_is_closed() {
    let certificates = Certificates::for_localhost();
    let tls = format!(
        "{SHORT_TIMEOUTS}\ntls = {{ cert = {:?}, key = {:?} }}",
        certificates.cert_file(),
        certificates.key_file()
    );
    let upstream = RawUpstream::echoing_request_line();
    let gateway = WireGateway::with(upstream.address, &tls, "");
    let started = Instant::now();
    gateway.client().assert_closed();
    assert!(started.elapsed() >= EARLIEST);
    // The client sends only the start of a TLS record, so the handshake never finishes.
    let mut client = gateway.client();
    let started = Instant::now();
    client.send([0x16, 3, 1, 2, 0, 1]);
    client.assert_closed();
    assert!(started.elapsed() >= EARLIEST);
}

/// Creates an upstream whose response never ends. Returns it with the number of bytes sent and whether its connection
/// has ended.
fn endless() -> (RawUpstream, Arc<AtomicU64>, Arc<AtomicBool>) {
    let (sent_bytes, ended) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let (count, connection_ended) = (Arc::clone(&sent_bytes), Arc::clone(&ended));
    let upstream = RawUpstream::scripted(move |connection| {
        connection.head();
        connection.send(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
            1_u64 << 40
        ));
        let part = vec![b'x'; 64 * 1024];
        while let Ok(n) = std::io::Write::write(&mut connection.stream, &part) {
            count.fetch_add(n as u64, Ordering::SeqCst);
        }
        connection_ended.store(true, Ordering::SeqCst);
    });
    (upstream, sent_bytes, ended)
}

#[test]
fn the_gateway_stops_reading_from_upstream_if_the_client_stops_reading() {
    let (upstream, sent_bytes, ended) = endless();
    let gateway = WireGateway::forwarding_to(&upstream);
    let mut client = gateway.client();
    client.send(GET);
    // If upstream could send nothing for one second, all buffers between upstream and client are full.
    let settled = {
        let mut last = 0;
        let mut since = Instant::now();
        loop {
            let now = sent_bytes.load(Ordering::SeqCst);
            if now != last || now == 0 {
                (last, since) = (now, Instant::now());
            }
            if since.elapsed() > Duration::from_secs(1) {
                break last;
            }
            thread::sleep(Duration::from_millis(10));
        }
    };
    println!("the gateway read {settled} bytes from upstream for a client that does not read");
    // The limit of 32 MiB includes the kernel's socket buffers of both connections, which contain most of the bytes.
    assert!(settled < 32 << 20, "{settled}");
    assert!(!ended.load(Ordering::SeqCst));
    // The transfer continues as soon as the client reads again.
    let mut buf = vec![0; 1 << 20];
    let mut read = 0;
    while read < settled + (1 << 20) {
        read += client.stream.read(&mut buf).unwrap() as u64;
    }
    assert!(sent_bytes.load(Ordering::SeqCst) > settled);
}

#[test]
fn slow_clients_do_not_delay_others() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = WireGateway::forwarding_to(&upstream);
    let slow: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut client = gateway.client();
            client.send("POST /api HTTP/1.1\r\nHost: a\r\nX: ");
            client.stream
        })
        .collect();
    let (done, is_done) = mpsc::channel();
    let address = gateway.address();
    thread::spawn(move || {
        let mut client = crate::support::raw_http::RawClient::connect(address);
        for _ in 0..100 {
            client.send(GET);
            assert_eq!(client.response().status, 200);
        }
        done.send(()).unwrap();
    });
    is_done.recv_timeout(TEST_TIMEOUT).unwrap();
    drop(slow);
}
