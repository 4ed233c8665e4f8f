//! What follows a request with a key on its connection: its body is never read as a request.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::mpsc;

use super::url;
use crate::harness::Gateway;
use crate::wire_raw::{Client, Upstream, eventually, ok};

const SMUGGLED: &str = "GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
const NEXT: &str = "GET /next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

fn gateway(rule: &str, upstream: &Upstream) -> Gateway {
    Gateway::keyed(rule)
        .and("[server]\nworkers = 1")
        .upstream_url(&url(upstream.address))
        .start()
}

/// A request under `key` with `body`, framed in each of the two ways.
fn requests(key: &str, body: &str) -> [String; 2] {
    let head = format!("POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: {key}\r\n");
    let mut chunks = String::new();
    for chunk in body.as_bytes().chunks(4000) {
        let text = String::from_utf8_lossy(chunk);
        write!(chunks, "{:x}\r\n{text}\r\n", chunk.len()).expect("a string takes all");
    }
    [
        format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()),
        format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"),
    ]
}

/// Sends `request` and another right behind it, and holds that the first is answered with `status`; then
/// either the other one is, or the connection ends; and upstream got that one and no more.
#[track_caller]
fn is_followed_by_the_next_or_by_nothing(
    gateway: &Gateway,
    upstream: &Upstream,
    request: &str,
    status: u16,
    replayed: bool,
) {
    upstream.forget();
    let mut client = Client::connect(gateway.address());
    let sending = client.send_meanwhile(format!("{request}{NEXT}").into_bytes());
    let answer = client.answer();
    assert_eq!(answer.status, status, "{}", answer.head);
    let marked = answer.header("idempotent-replayed").is_some();
    assert_eq!(marked, replayed, "{}", answer.head);
    let (rest, _) = client.rest();
    let rest = String::from_utf8_lossy(&rest);
    let served = rest.starts_with("HTTP/1.1 200 ") && rest.ends_with("GET /next HTTP/1.1");
    assert!(rest.is_empty() || served, "{rest}");
    sending.join().expect("no panic");
    let received = upstream.received();
    let lines: Vec<_> = received
        .lines()
        .filter(|line| line.ends_with(" HTTP/1.1"))
        .collect();
    let expected: &[&str] = if served { &["GET /next HTTP/1.1"] } else { &[] };
    assert_eq!(lines, expected);
}

#[test]
fn behind_a_replay_comes_the_next_request() {
    let upstream = Upstream::repeating();
    let gateway = gateway("", &upstream);
    for count in [1, 100] {
        let body = SMUGGLED.repeat(count);
        let key = format!("key-{count}");
        let mut client = Client::connect(gateway.address());
        client.send(&requests(&key, &body)[0]);
        assert_eq!(client.answer().status, 200);
        for request in requests(&key, &body) {
            is_followed_by_the_next_or_by_nothing(&gateway, &upstream, &request, 200, true);
        }
    }
}

#[test]
fn behind_a_key_that_was_reused_comes_the_next_request() {
    let upstream = Upstream::repeating();
    let gateway = gateway("", &upstream);
    let mut client = Client::connect(gateway.address());
    client.send(&requests("k1", "the original")[0]);
    assert_eq!(client.answer().status, 200);
    for count in [1, 100] {
        for request in requests("k1", &SMUGGLED.repeat(count)) {
            is_followed_by_the_next_or_by_nothing(&gateway, &upstream, &request, 422, false);
        }
    }
}

#[test]
fn behind_what_is_no_key_comes_the_next_request_or_nothing() {
    let upstream = Upstream::repeating();
    let gateway = gateway("", &upstream);
    for count in [1, 100, 100_000] {
        for request in requests("no key", &SMUGGLED.repeat(count)) {
            is_followed_by_the_next_or_by_nothing(&gateway, &upstream, &request, 400, false);
        }
    }
}

#[test]
fn behind_a_body_that_is_too_large_comes_the_next_request_or_nothing() {
    let upstream = Upstream::repeating();
    let gateway = gateway("max_request = \"1KiB\"", &upstream);
    for count in [100, 1000, 100_000] {
        for request in requests("k1", &SMUGGLED.repeat(count)) {
            is_followed_by_the_next_or_by_nothing(&gateway, &upstream, &request, 413, false);
        }
    }
}

#[test]
fn behind_a_conflict_comes_the_next_request() {
    let (release, released) = mpsc::channel::<()>();
    let released = Mutex::new(released);
    let upstream = Upstream::scripted(move |conversation| {
        while let Some(request) = conversation.request() {
            if request.head.starts_with("POST") {
                let held = released.lock().expect("no test panics holding it");
                let _ = held.recv();
            }
            conversation.send(ok(request.line()));
        }
    });
    let gateway = gateway("in_flight = \"conflict\"", &upstream);
    for count in [1, 100] {
        let body = SMUGGLED.repeat(count);
        let key = format!("key-{count}");
        upstream.forget();
        let mut first = Client::connect(gateway.address());
        first.send(&requests(&key, &body)[0]);
        eventually("the first is running", || {
            upstream.received().contains(&body)
        });
        for request in requests(&key, &body) {
            is_followed_by_the_next_or_by_nothing(&gateway, &upstream, &request, 409, false);
        }
        release.send(()).expect("an upstream that waits");
        assert_eq!(first.answer().status, 200);
    }
}

#[test]
fn many_of_all_kinds_are_answered_each_and_in_order() {
    let upstream = Upstream::repeating();
    let gateway = gateway("", &upstream);
    let mut all = String::new();
    for n in 0..50 {
        let key = format!("key-{n}");
        let [sized, chunked] = requests(&key, SMUGGLED);
        all += &sized;
        all += &chunked;
        all += &requests(&key, "another")[n % 2];
        all += &requests("no key", SMUGGLED)[n % 2];
        write!(all, "GET /{n} HTTP/1.1\r\nHost: a\r\n\r\n").expect("a string takes all");
    }
    let mut client = Client::connect(gateway.address());
    let sending = client.send_meanwhile(all.into_bytes());
    for n in 0..50 {
        for (status, replayed) in [(200, false), (200, true), (422, false), (400, false)] {
            let answer = client.answer();
            assert_eq!(answer.status, status, "{n}");
            let marked = answer.header("idempotent-replayed").is_some();
            assert_eq!(marked, replayed, "{n}");
        }
        let expected = format!("GET /{n} HTTP/1.1");
        assert_eq!(client.answer().body, expected.as_bytes());
    }
    sending.join().expect("no panic");
    let received = upstream.received();
    assert_eq!(received.matches("POST /pay ").count(), 50);
    // Each is a body, and there is none besides.
    assert_eq!(received.matches("GET /smuggled ").count(), 50);
}

#[test]
fn a_client_that_waits_for_leave_to_send_gets_it_before_anything_is_claimed() {
    let upstream = Upstream::repeating();
    let gateway = gateway("", &upstream);
    let head = |key: &str| {
        format!(
            "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: {key}\r\nContent-Length: 2\r\n\
             Expect: 100-continue\r\n\r\n"
        )
    };
    // Leave is given, and used: the first time it is carried out, the second time replayed.
    for replayed in [false, true] {
        let mut client = Client::connect(gateway.address());
        client.send(head("k1"));
        client.until(b"HTTP/1.1 100 Continue\r\n\r\n");
        assert_eq!(upstream.received().contains("POST"), replayed);
        client.send("hi");
        let answer = client.answer();
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("idempotent-replayed").is_some(), replayed);
    }
    let mut client = Client::connect(gateway.address());
    client.send(head("no key"));
    assert_eq!(client.answer().status, 400);
    assert_eq!(upstream.received().matches("POST").count(), 1);
}
