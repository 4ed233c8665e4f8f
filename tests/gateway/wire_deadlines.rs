//! Clients that take their time: each wait has an end.

use std::io::Read as _;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::harness::Certificates;
use crate::wire_raw::{PATIENCE, Running, Upstream, eventually};

const GET: &str = "GET /api HTTP/1.1\r\nHost: a\r\n\r\n";

/// All deadlines short.
const HASTY: &str = r#"
    handshake_timeout = "300ms"
    header_timeout = "300ms"
    body_timeout = "300ms"
    idle_timeout = "300ms"
    write_timeout = "300ms"
"#;

/// Less than this is not the deadline but a mistake.
const SOONEST: Duration = Duration::from_millis(250);

#[test]
fn a_head_that_comes_byte_by_byte_is_ended() {
    let upstream = Upstream::repeating();
    let gateway = Running::with(upstream.address, HASTY, "");
    let mut client = gateway.client();
    let started = Instant::now();
    let mut stream = client.stream.try_clone().unwrap();
    let slow = thread::spawn(move || {
        let head = "GET /api HTTP/1.1\r\nHost: a\r\nX: "
            .bytes()
            .chain(std::iter::repeat(b'x'));
        for byte in head {
            if std::io::Write::write_all(&mut stream, &[byte]).is_err() {
                return;
            }
            assert!(started.elapsed() < PATIENCE, "never ended");
            thread::sleep(Duration::from_millis(10));
        }
    });
    assert_eq!(client.answer().status, 408);
    assert!(started.elapsed() >= SOONEST);
    client.is_hung_up();
    drop(client);
    slow.join().unwrap();
    upstream.got_nothing_by(&gateway);
}

#[test]
fn a_client_that_says_nothing_at_all_is_hung_up_on() {
    let upstream = Upstream::repeating();
    let gateway = Running::with(upstream.address, HASTY, "");
    let mut client = gateway.client();
    let started = Instant::now();
    client.is_hung_up();
    assert!(started.elapsed() >= SOONEST);
}

#[test]
fn a_connection_at_rest_is_closed() {
    let upstream = Upstream::repeating();
    let gateway = Running::with(upstream.address, HASTY, "");
    let mut client = gateway.client();
    for _ in 0..3 {
        client.send(GET);
        assert_eq!(client.answer().status, 200);
    }
    let started = Instant::now();
    client.is_hung_up();
    assert!(started.elapsed() >= SOONEST);
}

#[test]
fn a_body_that_stops_coming_is_ended() {
    let upstream = Upstream::repeating();
    let gateway = Running::with(upstream.address, HASTY, "");
    for (framing, part) in [
        ("Content-Length: 100", "hello"),
        ("Transfer-Encoding: chunked", "5\r\nhel"),
        ("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n"),
        ("Content-Length: 100", ""),
    ] {
        let mut client = gateway.client();
        let started = Instant::now();
        client.send(format!(
            "POST /api HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n{part}"
        ));
        assert_eq!(client.answer().status, 408, "{framing}");
        assert!(started.elapsed() >= SOONEST);
        client.is_hung_up();
    }
}

#[test]
fn a_silent_tls_handshake_is_ended() {
    let certificates = Certificates::for_localhost();
    let tls = format!(
        "{HASTY}\ntls = {{ cert = {:?}, key = {:?} }}",
        certificates.cert_file(),
        certificates.key_file()
    );
    let upstream = Upstream::repeating();
    let gateway = Running::with(upstream.address, &tls, "");
    let started = Instant::now();
    gateway.client().is_hung_up();
    assert!(started.elapsed() >= SOONEST);
    // The beginning of a record that is never finished.
    let mut client = gateway.client();
    client.send([0x16, 3, 1, 2, 0, 1]);
    client.is_hung_up();
}

/// An upstream whose answer has no end, and how much of it was taken so far.
fn endless() -> (Upstream, Arc<AtomicU64>, Arc<AtomicBool>) {
    let (taken, ended) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let (count, over) = (Arc::clone(&taken), Arc::clone(&ended));
    let upstream = Upstream::scripted(move |conversation| {
        conversation.head();
        conversation.send(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
            1_u64 << 40
        ));
        let part = vec![b'x'; 64 * 1024];
        while let Ok(n) = std::io::Write::write(&mut conversation.stream, &part) {
            count.fetch_add(n as u64, Ordering::SeqCst);
        }
        over.store(true, Ordering::SeqCst);
    });
    (upstream, taken, ended)
}

#[test]
fn a_client_that_takes_nothing_of_its_answer_is_given_up() {
    let (upstream, _, ended) = endless();
    let gateway = Running::with(upstream.address, HASTY, "");
    let mut client = gateway.client();
    client.send(GET);
    eventually("upstream is hung up on", || ended.load(Ordering::SeqCst));
}

#[test]
fn a_client_that_stops_reading_stops_upstream_from_being_read() {
    let (upstream, taken, ended) = endless();
    let gateway = Running::before(&upstream);
    let mut client = gateway.client();
    client.send(GET);
    // Until nothing has moved for a while: all buffers in between are full.
    let settled = {
        let mut last = 0;
        let mut since = Instant::now();
        loop {
            let now = taken.load(Ordering::SeqCst);
            if now != last || now == 0 {
                (last, since) = (now, Instant::now());
            }
            if since.elapsed() > Duration::from_secs(1) {
                break last;
            }
            thread::sleep(Duration::from_millis(10));
        }
    };
    println!("taken from upstream for a client that does not read: {settled} bytes");
    // The kernel's buffers on both connections are most of it.
    assert!(settled < 32 << 20, "{settled}");
    assert!(!ended.load(Ordering::SeqCst));
    // And it goes on as soon as the client does.
    let mut buf = vec![0; 1 << 20];
    let mut read = 0;
    while read < settled + (1 << 20) {
        read += client.stream.read(&mut buf).unwrap() as u64;
    }
    assert!(taken.load(Ordering::SeqCst) > settled);
}

#[test]
fn slow_clients_do_not_hold_up_the_others() {
    let upstream = Upstream::repeating();
    let gateway = Running::before(&upstream);
    let slow: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut client = gateway.client();
            client.send("POST /api HTTP/1.1\r\nHost: a\r\nX: ");
            client.stream
        })
        .collect();
    let (done, is_done) = mpsc::channel();
    let address = gateway.address;
    thread::spawn(move || {
        let mut client = crate::wire_raw::Client::connect(address);
        for _ in 0..100 {
            client.send(GET);
            assert_eq!(client.answer().status, 200);
        }
        done.send(()).unwrap();
    });
    is_done.recv_timeout(PATIENCE).unwrap();
    drop(slow);
}
