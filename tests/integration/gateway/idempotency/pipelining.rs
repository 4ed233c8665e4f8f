//! Tests of pipelined requests that follow a request with an idempotency key. The gateway never parses the body of the
//! first request as another request.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::mpsc;

use super::url;
use crate::support::Gateway;
use crate::support::raw_http::{RawClient, RawUpstream, ok};
use crate::support::wait_until;

const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
const NEXT: &str = "GET /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

fn gateway(rule: &str, upstream: &RawUpstream) -> Gateway {
    Gateway::keyed(rule)
        .with_section("[server]\nworkers = 1")
        .upstream_url(&url(upstream.address))
        .start()
}

/// Returns two requests with `key` and `body`: one with `Content-Length` and one with chunked encoding.
fn requests(key: &str, body: &str) -> [String; 2] {
    let head = format!("POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: {key}\r\n");
    let mut chunks = String::new();
    for chunk in body.as_bytes().chunks(4000) {
        let text = String::from_utf8_lossy(chunk);
        write!(chunks, "{:x}\r\n{text}\r\n", chunk.len())
            .expect("writing to a string should not fail");
    }
    [
        format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()),
        format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"),
    ]
}

/// Sends `request` and [`NEXT`] directly after it, and asserts that the response to `request` has `status`. Then the
/// gateway must either forward only [`NEXT`], or close the connection and forward nothing.
#[track_caller]
fn assert_next_response_or_closed(
    gateway: &Gateway,
    upstream: &RawUpstream,
    request: &str,
    status: u16,
    replayed: bool,
) {
    upstream.clear_received();
    let mut client = RawClient::connect(gateway.address());
    let sending = client.send_in_background(format!("{request}{NEXT}").into_bytes());
    let response = client.response();
    assert_eq!(response.status, status, "{}", response.head);
    let is_replay = response.header("idempotent-replayed").is_some();
    assert_eq!(is_replay, replayed, "{}", response.head);
    let (rest, _) = client.read_to_end();
    let rest = String::from_utf8_lossy(&rest);
    let served = rest.starts_with("HTTP/1.1 200 ") && rest.ends_with("GET /next HTTP/1.1");
    assert!(rest.is_empty() || served, "{rest}");
    sending.join().expect("the task should not panic");
    let received = upstream.received();
    let lines: Vec<_> = received
        .lines()
        .filter(|line| line.ends_with(" HTTP/1.1"))
        .collect();
    let expected: &[&str] = if served { &["GET /next HTTP/1.1"] } else { &[] };
    assert_eq!(lines, expected);
}

#[test]
fn after_a_replay_the_next_request_is_read() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = gateway("", &upstream);
    for count in [1, 100] {
        let body = SMUGGLED.repeat(count);
        let key = format!("key-{count}");
        let mut client = RawClient::connect(gateway.address());
        client.send(&requests(&key, &body)[0]);
        assert_eq!(client.response().status, 200);
        for request in requests(&key, &body) {
            assert_next_response_or_closed(&gateway, &upstream, &request, 200, true);
        }
    }
}

#[test]
fn after_a_reused_key_the_next_request_is_read() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = gateway("", &upstream);
    let mut client = RawClient::connect(gateway.address());
    client.send(&requests("k1", "the original")[0]);
    assert_eq!(client.response().status, 200);
    for count in [1, 100] {
        for request in requests("k1", &SMUGGLED.repeat(count)) {
            assert_next_response_or_closed(&gateway, &upstream, &request, 422, false);
        }
    }
}

#[test]
fn after_an_invalid_key_the_next_request_is_read_or_the_connection_closes() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = gateway("", &upstream);
    for count in [1, 100, 100_000] {
        for request in requests("no key", &SMUGGLED.repeat(count)) {
            assert_next_response_or_closed(&gateway, &upstream, &request, 400, false);
        }
    }
}

#[test]
fn after_a_body_above_max_request_the_next_request_is_read_or_the_connection_closes() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = gateway("max_request = \"1KiB\"", &upstream);
    for count in [100, 1000, 100_000] {
        for request in requests("k1", &SMUGGLED.repeat(count)) {
            assert_next_response_or_closed(&gateway, &upstream, &request, 413, false);
        }
    }
}

#[test]
fn after_a_conflict_the_next_request_is_read() {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let upstream = RawUpstream::scripted(move |connection| {
        while let Some(request) = connection.request() {
            if request.head.starts_with("POST") {
                let held = released
                    .lock()
                    .expect("no thread should panic while it holds the lock");
                let _ = held.recv();
            }
            connection.send(ok(request.line()));
        }
    });
    let gateway = gateway("in_flight = \"conflict\"", &upstream);
    for count in [1, 100] {
        let body = SMUGGLED.repeat(count);
        let key = format!("key-{count}");
        upstream.clear_received();
        let mut first = RawClient::connect(gateway.address());
        first.send(&requests(&key, &body)[0]);
        wait_until("upstream has the first request", || {
            upstream.received().contains(&body)
        });
        for request in requests(&key, &body) {
            assert_next_response_or_closed(&gateway, &upstream, &request, 409, false);
        }
        release
            .send(())
            .expect("the upstream should still wait for the signal");
        assert_eq!(first.response().status, 200);
    }
}

#[test]
fn pipelined_requests_of_all_kinds_get_their_responses_in_order() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = gateway("", &upstream);
    let mut all = String::new();
    for n in 0..50 {
        let key = format!("key-{n}");
        let [sized, chunked] = requests(&key, SMUGGLED);
        all += &sized;
        all += &chunked;
        all += &requests(&key, "another")[n % 2];
        all += &requests("no key", SMUGGLED)[n % 2];
        write!(all, "GET /{n} HTTP/1.1\r\nHost: a\r\n\r\n")
            .expect("writing to a string should not fail");
    }
    let mut client = RawClient::connect(gateway.address());
    let sending = client.send_in_background(all.into_bytes());
    for n in 0..50 {
        for (status, replayed) in [(200, false), (200, true), (422, false), (400, false)] {
            let response = client.response();
            assert_eq!(response.status, status, "{n}");
            let is_replay = response.header("idempotent-replayed").is_some();
            assert_eq!(is_replay, replayed, "{n}");
        }
        let expected = format!("GET /{n} HTTP/1.1");
        assert_eq!(client.response().body, expected.as_bytes());
    }
    sending.join().expect("the task should not panic");
    let received = upstream.received();
    assert_eq!(received.matches("POST /pay ").count(), 50);
    // Upstream received these 50 request lines as parts of bodies. The gateway parsed none of them as a request.
    assert_eq!(received.matches("GET /smuggled ").count(), 50);
}

#[test]
fn a_keyed_request_gets_100_continue_before_its_key_is_claimed() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = gateway("", &upstream);
    let head = |key: &str| {
        format!(
            "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: {key}\r\nContent-Length: 2\r\n\
             Expect: 100-continue\r\n\r\n"
        )
    };
    // The first request is executed and the second request is replayed. The gateway sends `100 Continue` to both.
    for replayed in [false, true] {
        let mut client = RawClient::connect(gateway.address());
        client.send(head("k1"));
        client.read_until(b"HTTP/1.1 100 Continue\r\n\r\n");
        assert_eq!(upstream.received().contains("POST"), replayed);
        client.send("hi");
        let response = client.response();
        assert_eq!(response.status, 200);
        assert_eq!(response.header("idempotent-replayed").is_some(), replayed);
    }
    let mut client = RawClient::connect(gateway.address());
    client.send(head("no key"));
    assert_eq!(client.response().status, 400);
    assert_eq!(upstream.received().matches("POST").count(), 1);
}
