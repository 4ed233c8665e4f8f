//! Tests of `Expect: 100-continue`, which the gateway handles itself and does not forward.

use std::net::TcpListener;

use crate::support::raw_http::{RawUpstream, WireGateway, ok};

fn expecting(path: &str, expectation: &str, len: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nExpect: {expectation}\r\nContent-Length: {len}\r\n\r\n"
    )
}

/// Creates an upstream that responds with the head and the body of the request as its response body.
fn echoing() -> RawUpstream {
    RawUpstream::scripted(|connection| {
        while let Some(request) = connection.request() {
            let body = String::from_utf8_lossy(&request.body);
            connection.send(ok(&format!("{}{body}", request.head)));
        }
    })
}

#[test]
fn a_client_that_expects_100_continue_gets_it() {
    let upstream = echoing();
    let gateway = WireGateway::forwarding_to(&upstream);
    let mut client = gateway.client();
    for expectation in ["100-continue", "100-Continue"] {
        client.send(expecting("/api", expectation, 5));
        assert_eq!(client.response().status, 100, "{expectation}");
        client.send("hello");
        let response = client.response();
        assert_eq!(response.status, 200);
        let body = String::from_utf8(response.body).unwrap();
        assert!(body.ends_with("\r\n\r\nhello"), "{body}");
        assert!(!body.to_ascii_lowercase().contains("expect:"), "{body}");
    }
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn a_rejected_request_gets_no_100_continue() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = WireGateway::with(upstream.address, "max_body = \"1KiB\"", "");
    let mut client = gateway.client();
    client.send("GET /limited HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.response().status, 200);
    upstream.clear_received();
    for (path, len, status) in [
        ("/nowhere", 5, 404),
        ("/limited", 5, 429),
        ("/api", 2000, 413),
        ("/api/%00", 5, 400),
    ] {
        let mut client = gateway.client();
        client.send(expecting(path, "100-continue", len));
        assert_eq!(client.response().status, status);
        // The next bytes of the client can be the body or the next request. The gateway cannot distinguish them, so it
        // closes the connection.
        client.assert_closed();
    }
    upstream.assert_received_nothing(&gateway);
}

#[test]
fn without_request_buffer_and_reachable_upstream_there_is_no_100_continue() {
    let unreachable = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let gateway = WireGateway::with(unreachable, "request_buffer = 0", "");
    let mut client = gateway.client();
    client.send(expecting("/api", "100-continue", 5));
    assert_eq!(client.response().status, 502);
}

#[test]
fn an_unknown_expectation_returns_417_and_the_next_requests_work() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = WireGateway::forwarding_to(&upstream);
    for lines in ["Expect: x", "Expect: 100-continue\r\nExpect: x"] {
        let mut client = gateway.client();
        client.send(format!(
            "GET /api/odd HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n"
        ));
        assert_eq!(client.response().status, 417, "{lines}");
        for _ in 0..3 {
            client.send("GET /api HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(client.response().body, b"GET /api HTTP/1.1", "{lines}");
        }
    }
    assert!(!upstream.received().contains("odd"));
}

#[test]
fn interim_responses_of_upstream_are_not_its_final_response() {
    let upstream = RawUpstream::scripted(|connection| {
        while connection.request().is_some() {
            connection.send("HTTP/1.1 100 Continue\r\n\r\n");
            connection.send("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n");
            connection.send(ok("the response"));
        }
    });
    let gateway = WireGateway::forwarding_to(&upstream);
    let mut client = gateway.client();
    for _ in 0..10 {
        client.send("POST /api HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
        assert_eq!(client.response().body, b"the response");
    }
}
