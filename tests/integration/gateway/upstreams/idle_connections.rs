//! Tests of how long idle connections to upstream servers stay open.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::support::raw_http::{RawClient, RawUpstream, WireGateway, ok};
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

/// Creates a server that responds to the first request of a connection, and closes the connection when it receives the
/// second.
fn closing_at_the_second_request() -> RawUpstream {
    RawUpstream::scripted(|connection| {
        if let Some(request) = connection.request() {
            connection.send(ok(request.line()));
            connection.request();
        }
    })
}

#[test]
fn an_idempotent_request_is_sent_once_more_if_its_reused_connection_closes() {
    let upstream = closing_at_the_second_request();
    let gateway = WireGateway::forwarding_to(&upstream);
    let mut client = gateway.client();
    let requests = [
        ("GET", 200),
        ("GET", 200),
        ("PUT", 200),
        ("DELETE", 200),
        ("POST", 502),
        ("POST", 200),
        ("PATCH", 502),
    ];
    for (number, (method, status)) in requests.into_iter().enumerate() {
        client.send(format!(
            "{method} /api/{number} HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
        ));
        assert_eq!(client.response().status, status, "{method} {number}");
    }
    let received = upstream.received();
    for (line, copies) in [
        ("GET /api/0 ", 1),
        ("GET /api/1 ", 2),
        ("PUT /api/2 ", 2),
        ("DELETE /api/3 ", 2),
        ("POST /api/4 ", 1),
        ("POST /api/5 ", 1),
    ] {
        assert_eq!(received.matches(line).count(), copies, "{line}");
    }
}

#[test]
fn a_request_that_gets_a_part_of_a_response_is_not_sent_once_more() {
    let upstream = RawUpstream::scripted(|connection| {
        if connection.request().is_some() {
            connection.send(ok("first"));
            connection.request();
            connection.send("HTTP/1.1 200");
        }
    });
    let gateway = WireGateway::forwarding_to(&upstream);
    let mut client = gateway.client();
    assert_eq!(client.send(GET).response().status, 200);
    assert_eq!(client.send(GET).response().status, 502);
    assert_eq!(upstream.connections(), 1);
}
