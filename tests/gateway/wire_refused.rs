//! What follows a request that was refused before its body was read.
//!
//! The body is either read and thrown away, or the connection ends; never is any of it read as a
//! request. And the refusal arrives, however much the client was still sending.

use std::fmt::Write as _;

use crate::wire_raw::{Client, End, Running, Upstream};

const SMUGGLED: &str = "GET /api/smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
const NEXT: &str = "GET /api/next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

/// Paths that are refused, each for its reason.
const REFUSED: [(&str, u16); 3] = [("/nowhere", 404), ("/limited", 429), ("/api/large", 413)];

/// A gateway that refuses all of [`REFUSED`], the last of them for bodies over 32 KiB.
fn refusing(upstream: &Upstream) -> Running {
    let gateway = Running::with(upstream.address, "max_body = \"32KiB\"", "");
    let mut client = gateway.client();
    client.send("GET /limited HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.answer().status, 200);
    upstream.forget();
    gateway
}

fn sized(path: &str, body: &str) -> String {
    let len = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n{body}")
}

fn chunked(path: &str, body: &str) -> String {
    let mut chunks = String::new();
    for chunk in body.as_bytes().chunks(4000) {
        write!(chunks, "{:x}\r\n", chunk.len()).expect("a string takes all");
        chunks.push_str(&String::from_utf8_lossy(chunk));
        chunks.push_str("\r\n");
    }
    format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"
    )
}

/// Holds that `client` was refused, and then either answered its next request or closed on.
#[track_caller]
fn is_refused_then_served_or_closed(client: &mut Client, status: u16, upstream: &Upstream) {
    let answer = client.answer();
    assert_eq!(answer.status, status);
    assert!(!answer.body.is_empty());
    let (rest, _) = client.rest();
    let rest = String::from_utf8_lossy(&rest);
    let served = rest.starts_with("HTTP/1.1 200 ") && rest.ends_with("GET /api/next HTTP/1.1");
    assert!(rest.is_empty() || served, "{rest}");
    let received = upstream.received();
    let requests = received.matches("GET /api/next ").count();
    assert_eq!(requests, usize::from(served), "{received:?}");
    assert!(
        !received.contains("\r\n\r\nGET /api/smuggled"),
        "{received:?}"
    );
    assert!(!received.starts_with("GET /api/smuggled"), "{received:?}");
    upstream.forget();
}

#[test]
fn the_body_of_a_refused_request_is_never_read_as_a_request() {
    let upstream = Upstream::repeating();
    let gateway = refusing(&upstream);
    for (path, status) in REFUSED {
        // The cap is on the body, so what is refused for its size is never small.
        let counts: &[usize] = if status == 413 { &[1000] } else { &[1, 100] };
        for &count in counts {
            let body = SMUGGLED.repeat(count);
            let requests = if path == "/api/large" {
                vec![sized(path, &body)]
            } else {
                vec![sized(path, &body), chunked(path, &body)]
            };
            for request in requests {
                let mut client = gateway.client();
                client.send(format!("{request}{NEXT}"));
                is_refused_then_served_or_closed(&mut client, status, &upstream);
            }
        }
    }
}

#[test]
fn a_refusal_reaches_a_client_that_is_still_sending_a_huge_body() {
    let upstream = Upstream::repeating();
    let gateway = refusing(&upstream);
    let body = SMUGGLED.repeat(400_000);
    for (request, status) in [
        (sized("/api/large", &body), 413),
        (chunked("/nowhere", &body), 404),
        (chunked("/limited", &body), 429),
    ] {
        for _ in 0..10 {
            let mut client = gateway.client();
            let sending = client.send_meanwhile(format!("{request}{NEXT}").into_bytes());
            is_refused_then_served_or_closed(&mut client, status, &upstream);
            sending.join().unwrap();
        }
    }
}

#[test]
fn a_refusal_reaches_a_client_that_reads_only_after_it_has_sent_everything() {
    let upstream = Upstream::repeating();
    let gateway = refusing(&upstream);
    let body = SMUGGLED.repeat((4 << 20) / SMUGGLED.len());
    for (request, status) in [
        (sized("/api/large", &body), 413),
        (chunked("/nowhere", &body), 404),
        (chunked("/limited", &body), 429),
    ] {
        for _ in 0..10 {
            let mut client = gateway.client();
            client.send(&request);
            assert_eq!(client.answer().status, status);
            let (rest, end) = client.rest();
            assert!(rest.is_empty() && end == End::Closed, "{rest:?} {end:?}");
        }
    }
    upstream.got_nothing_by(&gateway);
}

#[test]
fn a_chunked_body_that_grows_too_large_is_refused_and_never_completed_upstream() {
    let upstream = Upstream::repeating();
    let gateway = refusing(&upstream);
    let mut client = gateway.client();
    // So much that what is left of it is not read for the sake of the connection.
    let request = chunked("/api/large", &SMUGGLED.repeat(10_000));
    let sending = client.send_meanwhile(format!("{request}{NEXT}").into_bytes());
    let answer = client.answer();
    assert_eq!(answer.status, 413);
    client.is_hung_up();
    sending.join().unwrap();
    let mut client = gateway.client();
    client.send(NEXT);
    assert_eq!(client.answer().body, b"GET /api/next HTTP/1.1");
    let received = upstream.received();
    assert!(!received.contains("\r\n0\r\n\r\n"));
    assert_eq!(received.matches("GET /api/next ").count(), 1);
}

#[test]
fn many_pipelined_requests_are_answered_each_and_in_order() {
    let upstream = Upstream::repeating();
    let gateway = refusing(&upstream);
    let mut client = gateway.client();
    let mut all = String::new();
    for n in 0..50 {
        write!(all, "GET /api/{n} HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        all += &sized("/limited", SMUGGLED);
        all += &chunked(&format!("/api/{n}"), SMUGGLED);
        all += &chunked("/nowhere", SMUGGLED);
    }
    let sending = client.send_meanwhile(all.into_bytes());
    for n in 0..50 {
        let expected = format!("GET /api/{n} HTTP/1.1");
        assert_eq!(client.answer().body, expected.as_bytes());
        assert_eq!(client.answer().status, 429);
        let expected = format!("POST /api/{n} HTTP/1.1");
        assert_eq!(client.answer().body, expected.as_bytes());
        assert_eq!(client.answer().status, 404);
    }
    sending.join().unwrap();
}
