//! How long unused connections to servers stay open.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::wire_raw::{Client, Running, Upstream, eventually};

const GET: &str = "GET /api HTTP/1.1\r\nHost: a\r\n\r\n";

/// Requests in the burst, each on a connection of its own.
const BURST: usize = 100;

#[test]
fn idle_connections_of_a_burst_close_before_the_time_their_server_announced() {
    let all_sent = Arc::new(Barrier::new(BURST));
    let closed = Arc::new(AtomicUsize::new(0));
    let ends = Arc::clone(&closed);
    let upstream = Upstream::scripted(move |conversation| {
        conversation.request();
        all_sent.wait();
        conversation.send(
            "HTTP/1.1 200 OK\r\nKeep-Alive: max=100, timeout=3\r\nContent-Length: 2\r\n\r\nok",
        );
        conversation.until_closed();
        ends.fetch_add(1, Ordering::SeqCst);
    });
    let gateway = Running::before(&upstream);
    let mut clients: Vec<Client> = (0..BURST).map(|_| gateway.client()).collect();
    for client in &mut clients {
        client.send(GET);
    }
    for client in &mut clients {
        assert_eq!(client.answer().status, 200);
    }
    let idle = Instant::now();
    assert_eq!(upstream.connections(), BURST);
    assert_eq!(
        closed.load(Ordering::SeqCst),
        0,
        "they are kept for a while"
    );
    eventually("all idle connections are closed", || {
        closed.load(Ordering::SeqCst) == BURST
    });
    // Two of the three seconds, and the interval between two sweeps.
    let took = idle.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
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
        let upstream = Upstream::scripted(move |conversation| {
            while conversation.request().is_some() {
                conversation.send(format!(
                    "HTTP/1.1 200 OK\r\nKeep-Alive: {keep_alive}\r\nContent-Length: 2\r\n\r\nok"
                ));
            }
        });
        let gateway = Running::before(&upstream);
        let mut client = gateway.client();
        for _ in 0..3 {
            client.send(GET);
            assert_eq!(client.answer().status, 200);
        }
        assert_eq!(upstream.connections(), connections, "{keep_alive}");
    }
}
