//! Tests of how long idle connections to upstream servers stay open.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::support::raw_http::{RawClient, RawUpstream, WireGateway};
use crate::support::wait_until;

const GET: &str = "GET /api HTTP/1.1\r\nHost: a\r\n\r\n";

/// Number of concurrent requests. Each uses its own connection to the server.
const BURST: usize = 100;

#[test]
fn idle_connections_close_before_the_announced_keep_alive_timeout() {
    let all_sent = Arc::new(Barrier::new(BURST));
    let closed = Arc::new(AtomicUsize::new(0));
    let closed_count = Arc::clone(&closed);
    let upstream = RawUpstream::scripted(move |connection| {
        connection.request();
        all_sent.wait();
        connection.send(
            "HTTP/1.1 200 OK\r\nKeep-Alive: max=100, timeout=3\r\nContent-Length: 2\r\n\r\nok",
        );
        connection.read_to_close();
        closed_count.fetch_add(1, Ordering::SeqCst);
    });
    let gateway = WireGateway::forwarding_to(&upstream);
    let mut clients: Vec<RawClient> = (0..BURST).map(|_| gateway.client()).collect();
    for client in &mut clients {
        client.send(GET);
    }
    for client in &mut clients {
        assert_eq!(client.response().status, 200);
    }
    let idle = Instant::now();
    assert_eq!(upstream.connections(), BURST);
    assert_eq!(
        closed.load(Ordering::SeqCst),
        0,
        "the gateway closed idle connections too early"
    );
    wait_until("all idle connections are closed", || {
        closed.load(Ordering::SeqCst) == BURST
    });
    // The server announces a keep-alive timeout of 3 s. The connections expire one second earlier, after 2 s, and the
    // gateway closes expired connections once a second, so all are closed after about 3 s. The limit of 10 s allows for
    // a busy machine.
    let elapsed = idle.elapsed();
    assert!(elapsed < Duration::from_secs(10), "{elapsed:?}");
}

#[test]
fn a_connection_is_reused_within_the_announced_time_and_not_after_it() {
    for (keep_alive, connections) in [
        ("timeout=60", 1),
        ("max=5", 1),
        ("timeout=1", 3),
        ("timeout=0", 3),
        ("timeout=abc", 1),
    ] {
        let upstream = RawUpstream::scripted(move |connection| {
            while connection.request().is_some() {
                connection.send(format!(
                    "HTTP/1.1 200 OK\r\nKeep-Alive: {keep_alive}\r\nContent-Length: 2\r\n\r\nok"
                ));
            }
        });
        let gateway = WireGateway::forwarding_to(&upstream);
        let mut client = gateway.client();
        for _ in 0..3 {
            client.send(GET);
            assert_eq!(client.response().status, 200);
        }
        assert_eq!(upstream.connections(), connections, "{keep_alive}");
    }
}
