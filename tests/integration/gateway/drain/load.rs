//! Drains of a gateway under load. Every request that a client writes on an open connection must get a response.
//!
//! In each round, clients send requests on keep-alive connections, and the gateway receives SIGTERM at a random time. A
//! client stops when a response has `Connection: close`, as a real client would then use another gateway.
//!
//! The environment variable `DRAIN_ROUNDS` sets the number of drains, and `DRAIN_TIDEGATE` the path of the gateway
//! binary.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::support::{Process, TEST_TIMEOUT, Upstream, env_number, eventually, full};

const DEFAULT_ROUNDS: u64 = 3;

/// Requests per second of all clients together.
const RATE: u32 = 2_000;

/// Number of clients, each with one connection.
const CLIENTS: u32 = 100;

/// Maximum time under load before SIGTERM, in milliseconds. The minimum is half of it.
const MAX_LOAD_MILLIS: u64 = 400;

const REQUEST: &[u8] = b"GET /drained HTTP/1.1\r\nHost: a\r\n\r\n";

/// Requests of one or more clients, and how their connections ended.
#[derive(Debug, Default)]
struct Tally {
    requests: usize,
    /// Connections that ended with a response with `Connection: close`.
    announced: usize,
    /// Connections that the gateway closed while they had no request in flight.
    unannounced: usize,
    /// Why requests got no response.
    unanswered: Vec<String>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_under_load_answers_every_request_on_an_open_connection() {
    let rounds = env_number("DRAIN_ROUNDS").unwrap_or(DEFAULT_ROUNDS);
    let upstream = Upstream::with(|_| async { full("drained") });
    let gateway = Process::serving(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[log]\naccess = false\n\
         [upstream.api]\nservers = [\"{}\"]\n[[route]]\nname = \"all\"\npath = \"/\"\n",
        upstream.url()
    ))
    .binary_from_env("DRAIN_TIDEGATE");
    let mut total = Tally::default();
    let mut loaded = Duration::ZERO;
    for _ in 0..rounds {
        let mut process = gateway.start();
        let address = process.address();
        let began = Instant::now();
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            clients.spawn(send_until_closed(address));
        }
        let millis = fastrand::u64(MAX_LOAD_MILLIS / 2..=MAX_LOAD_MILLIS);
        sleep(Duration::from_millis(millis)).await;
        process.signal(Signal::TERM);
        loaded += began.elapsed();
        for tally in clients.join_all().await {
            total.requests += tally.requests;
            total.announced += tally.announced;
            total.unannounced += tally.unannounced;
            total.unanswered.extend(tally.unanswered);
        }
        eventually("the process exits", async || !process.is_running()).await;
        assert!(process.wait_for_exit().success(), "{}", process.log());
    }
    println!(
        "drain: {rounds} drains, {} requests ({} per second before the signal), {} connections closed after a \
         response with Connection: close, {} without, {} requests unanswered",
        total.requests,
        1_000 * total.requests as u128 / loaded.as_millis(),
        total.announced,
        total.unannounced,
        total.unanswered.len()
    );
    assert!(total.unanswered.is_empty(), "{:#?}", total.unanswered);
    // A client sends again within 100 ms, so almost every connection has a request after the signal.
    assert!(
        total.announced > 9 * total.unannounced,
        "the gateway closed most connections without a response that announces it: {total:?}"
    );
}

/// Sends requests on one connection until the gateway closes it or announces the close.
async fn send_until_closed(address: SocketAddr) -> Tally {
    let mut tally = Tally::default();
    let mut stream = TcpStream::connect(address)
        .await
        .expect("the gateway accepts");
    // Each pause is random between zero and twice the mean, so that the clients do not send in step.
    let mean = Duration::from_secs(1) * CLIENTS / RATE;
    let mut next = Instant::now();
    loop {
        next += mean.mul_f64(2.0 * fastrand::f64());
        sleep_until(next).await;
        if is_closed(&stream) {
            tally.unannounced += 1;
            return tally;
        }
        tally.requests += 1;
        match timeout(TEST_TIMEOUT, exchange(&mut stream)).await {
            Ok(Ok(head)) if head.contains("connection: close\r\n") => {
                tally.announced += 1;
                return tally;
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tally.unanswered.push(error.to_string());
                return tally;
            }
            Err(_elapsed) => {
                tally.unanswered.push("timed out".to_owned());
                return tally;
            }
        }
    }
}

/// Whether the gateway has closed its side of an idle connection.
fn is_closed(stream: &TcpStream) -> bool {
    let read = stream.try_read(&mut [0]);
    !read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Sends a request and receives its response. Returns the head of the response in lower case.
async fn exchange(stream: &mut TcpStream) -> io::Result<String> {
    stream.write_all(REQUEST).await?;
    let mut received = Vec::new();
    loop {
        if stream.read_buf(&mut received).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if received.ends_with(b"\r\n\r\ndrained") {
            let head = String::from_utf8_lossy(&received).to_ascii_lowercase();
            assert!(head.starts_with("http/1.1 200"), "{head}");
            return Ok(head);
        }
    }
}
