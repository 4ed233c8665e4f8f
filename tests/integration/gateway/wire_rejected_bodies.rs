//! Tests of requests that the gateway rejects before it reads their body.
//!
//! The gateway either reads and discards the body, or closes the connection. It never parses any part of the body as a
//! request. The client gets the rejection even if it is still sending the body.

use std::fmt::Write as _;

use crate::support::raw_http::{End, RawClient, RawUpstream, WireGateway};

const SMUGGLED: &str = "GET /api/smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
const NEXT: &str = "GET /api/next HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

/// Paths that the gateway rejects, each for a different reason, and the status of the rejection.
const REJECTED: [(&str, u16); 3] = [("/nowhere", 404), ("/limited", 429), ("/api/large", 413)];

/// Starts a gateway that rejects all paths of [`REJECTED`]. It rejects `/api/large` only with bodies above 32 KiB.
fn rejecting(upstream: &RawUpstream) -> WireGateway {
    let gateway = WireGateway::with(upstream.address, "max_body = \"32KiB\"", "");
    let mut client = gateway.client();
    client.send("GET /limited HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.response().status, 200);
    upstream.clear_received();
    gateway
}

fn sized(path: &str, body: &str) -> String {
    let len = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n{body}")
}

fn chunked(path: &str, body: &str) -> String {
    let mut chunks = String::new();
    for chunk in body.as_bytes().chunks(4000) {
        write!(chunks, "{:x}\r\n", chunk.len()).expect("writing to a string should not fail");
        chunks.push_str(&String::from_utf8_lossy(chunk));
        chunks.push_str("\r\n");
    }
    format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n"
    )
}

/// Asserts that `client` gets a rejection with `status`. The gateway must then either respond to the next request or
/// close the connection.
#[track_caller]
fn assert_rejected_then_served_or_closed(
    client: &mut RawClient,
    status: u16,
    upstream: &RawUpstream,
) {
    let response = client.response();
    assert_eq!(response.status, status);
    assert!(!response.body.is_empty());
    let (rest, _) = client.read_to_end();
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
    upstream.clear_received();
}

#[test]
fn the_body_of_a_rejected_request_is_never_read_as_a_request() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = rejecting(&upstream);
    for (path, status) in REJECTED {
        // The gateway rejects a request for `/api/large` only if the body is larger than `max_body` (32 KiB).
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
                assert_rejected_then_served_or_closed(&mut client, status, &upstream);
            }
        }
    }
}

#[test]
fn a_rejection_reaches_a_client_that_is_still_sending_a_huge_body() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = rejecting(&upstream);
    let body = SMUGGLED.repeat(400_000);
    for (request, status) in [
        (sized("/api/large", &body), 413),
        (chunked("/nowhere", &body), 404),
        (chunked("/limited", &body), 429),
    ] {
        for _ in 0..10 {
            let mut client = gateway.client();
            let sending = client.send_in_background(format!("{request}{NEXT}").into_bytes());
            assert_rejected_then_served_or_closed(&mut client, status, &upstream);
            sending.join().unwrap();
        }
    }
}

#[test]
fn a_rejection_reaches_a_client_that_reads_only_after_sending() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = rejecting(&upstream);
    let body = SMUGGLED.repeat((4 << 20) / SMUGGLED.len());
    for (request, status) in [
        (sized("/api/large", &body), 413),
        (chunked("/nowhere", &body), 404),
        (chunked("/limited", &body), 429),
    ] {
        for _ in 0..10 {
            let mut client = gateway.client();
            client.send(&request);
            assert_eq!(client.response().status, status);
            let (rest, end) = client.read_to_end();
            assert!(rest.is_empty() && end == End::Closed, "{rest:?} {end:?}");
        }
    }
    upstream.assert_received_nothing(&gateway);
}

#[test]
fn a_chunked_body_above_max_body_is_rejected_and_never_complete_at_upstream() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = rejecting(&upstream);
    let mut client = gateway.client();
    // The rest of this body is too large to be discarded, so the gateway closes the connection.
    let request = chunked("/api/large", &SMUGGLED.repeat(10_000));
    let sending = client.send_in_background(format!("{request}{NEXT}").into_bytes());
    let response = client.response();
    assert_eq!(response.status, 413);
    client.assert_closed();
    sending.join().unwrap();
    let mut client = gateway.client();
    client.send(NEXT);
    assert_eq!(client.response().body, b"GET /api/next HTTP/1.1");
    let received = upstream.received();
    assert!(!received.contains("\r\n0\r\n\r\n"));
    assert_eq!(received.matches("GET /api/next ").count(), 1);
}
