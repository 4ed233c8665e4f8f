//! Tests with upstreams that violate HTTP. The client gets a 502 or a visibly truncated body. No client gets bytes that
//! an earlier response left on the connection.

use std::io::Write as _;
use std::net::Shutdown;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use crate::support::raw_http::{End, RawUpstream, WireGateway, ok};
use crate::support::{TEST_TIMEOUT, wait_until};

const GET: &str = "GET /api HTTP/1.1\r\nHost: a\r\n\r\n";

/// Creates an upstream that sends `bytes` as the response on its first connection. If `close` is true, the upstream
/// then closes its sending side of this connection. It serves all further connections correctly.
fn responding_once(bytes: impl Into<Vec<u8>>, close: bool) -> RawUpstream {
    let bytes = bytes.into();
    RawUpstream::scripted(move |connection| {
        if connection.number == 0 {
            connection.request();
            connection.send(&bytes);
            if close {
                let half_closed = connection.stream.shutdown(Shutdown::Write);
                half_closed.expect("the socket should be open");
            }
            connection.read_to_close();
        }
        while let Some(request) = connection.request() {
            connection.send(ok(request.line()));
        }
    })
}

/// Asserts that the client gets a 502 instead of the first response of `upstream`. The gateway must send the next
/// request on another upstream connection.
#[track_caller]
fn assert_bad_gateway(shown: &str, upstream: &RawUpstream) {
    let gateway = WireGateway::forwarding_to(upstream);
    let mut client = gateway.client();
    client.send(GET);
    assert_eq!(client.response().status, 502, "{shown:?}");
    let mut client = gateway.client();
    client.send(GET);
    assert_eq!(client.response().body, b"GET /api HTTP/1.1", "{shown:?}");
    assert_eq!(upstream.connections(), 2, "{shown:?}");
}

#[test]
fn a_response_with_contradictory_framing_returns_502() {
    for lines in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5, 6",
        "Content-Length: five",
        "Content-Length: -5",
        "Content-Length: +5",
        "Content-Length: 99999999999999999999",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked, gzip",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: gzip",
        "Transfer-Encoding: xchunked",
    ] {
        let response = format!("HTTP/1.1 200 OK\r\n{lines}\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
        assert_bad_gateway(lines, &responding_once(response, false));
    }
}

#[test]
fn a_response_that_is_not_http_returns_502() {
    for response in [
        "SSH-2.0-OpenSSH_9.9\r\n",
        "\0\0\0\0",
        "{\"error\": \"this is not HTTP\"}",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1 OK\r\n\r\n",
        "HTTP/3.0 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX : y\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: y\r\n z\r\n\r\n",
        "",
        "HTTP/1.1 200 OK\r\nContent-",
    ] {
        assert_bad_gateway(response, &responding_once(response, true));
    }
}

#[test]
fn a_response_head_that_is_too_large_returns_502() {
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    assert_bad_gateway("long line", &responding_once(long, false));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(10_000));
    assert_bad_gateway("many lines", &responding_once(many, false));
}

#[test]
fn an_upstream_that_closes_before_its_response_returns_502_without_a_retry() {
    let upstream = RawUpstream::scripted(|connection| {
        connection.request();
    });
    let gateway = WireGateway::forwarding_to(&upstream);
    let mut client = gateway.client();
    client.send("POST /api HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
    assert_eq!(client.response().status, 502);
    assert_eq!(upstream.received().matches("POST ").count(), 1);
}

#[test]
fn a_body_that_upstream_truncates_never_looks_complete() {
    let upstream = RawUpstream::scripted(|connection| {
        let Some(request) = connection.request() else {
            return;
        };
        let framing = match request.line() {
            "GET /api/sized HTTP/1.1" => "Content-Length: 10\r\n\r\nhello",
            "GET /api/chunk HTTP/1.1" => "Transfer-Encoding: chunked\r\n\r\na\r\nhello",
            "GET /api/between HTTP/1.1" => "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
            "GET /api/last HTTP/1.1" => "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
            _ => "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nz\r\n",
        };
        connection.send(format!("HTTP/1.1 200 OK\r\n{framing}"));
    });
    for case in ["sized", "chunk", "between", "last", "garbage"] {
        // Each case uses a new gateway, because the circuit breaker would open after several failures.
        let gateway = WireGateway::forwarding_to(&upstream);
        for version in ["1.1", "1.0"] {
            let mut client = gateway.client();
            client.send(format!(
                "GET /api/{case} HTTP/{version}\r\nHost: a\r\n\r\n{GET}"
            ));
            let (rest, end) = client.read_to_end();
            let rest = String::from_utf8_lossy(&rest);
            assert!(!rest.contains("GET /api"), "{case}: {rest}");
            let (head, body) = rest.split_once("\r\n\r\n").unwrap_or((&rest, ""));
            let head = head.to_ascii_lowercase();
            // An HTTP/1.0 response without a length must end with RST. Only RST shows the client that the body is
            // truncated.
            let visible = if head.contains("transfer-encoding: chunked") {
                !body.contains("0\r\n\r\n")
            } else if head.contains("content-length: 10") {
                body.len() < 10
            } else {
                head.contains(" 502 ") || end == End::Reset
            };
            assert!(visible, "{case} {version} {end:?}: {rest}");
        }
    }
}

/// Request methods and valid responses. Directly after each response, the upstream sends bytes that look like another
/// response.
const RESPONSES: [(&str, &str); 6] = [
    ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood"),
    (
        "GET",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ngood\r\n0\r\n\r\n",
    ),
    ("GET", "HTTP/1.1 204 No Content\r\n\r\n"),
    (
        "GET",
        "HTTP/1.1 304 Not Modified\r\nContent-Length: 4\r\n\r\n",
    ),
    ("GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ("HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"),
];

const EXTRA_RESPONSE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nX-Poison: yes\r\n\r\npoison";

#[test]
fn bytes_after_a_response_are_never_used_as_a_response() {
    for together in [true, false] {
        let responses_sent = Arc::new(Mutex::new(0));
        let (sent, is_sent) = channel();
        let sent = Mutex::new(sent);
        let upstream = RawUpstream::scripted(move |connection| {
            while connection.request().is_some() {
                let response = RESPONSES[*responses_sent.lock().unwrap() % RESPONSES.len()].1;
                *responses_sent.lock().unwrap() += 1;
                if together {
                    connection.send(format!("{response}{EXTRA_RESPONSE}"));
                } else {
                    connection.send(response);
                    connection.send(EXTRA_RESPONSE);
                }
                // A send error is ignored: the receiver is dropped if the test has failed.
                let _ = sent.lock().unwrap().send(());
            }
        });
        let gateway = WireGateway::forwarding_to(&upstream);
        for n in 0..300 {
            let (method, response) = RESPONSES[n % RESPONSES.len()];
            let mut client = gateway.client();
            client.send(format!(
                "{method} /api HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
            ));
            let (rest, _) = client.read_to_end();
            let rest = String::from_utf8_lossy(&rest);
            assert!(rest.starts_with(&response[..12]), "{n}: {rest}");
            assert!(!rest.to_ascii_lowercase().contains("poison"), "{n}: {rest}");
            // The test waits until the extra bytes are sent, so that they are on the connection before the next
            // request.
            is_sent.recv().unwrap();
        }
    }
}

#[test]
fn bytes_on_an_idle_upstream_connection_are_never_used_as_a_response() {
    let (idle, is_idle) = channel();
    let idle = Mutex::new(idle);
    let upstream = RawUpstream::scripted(move |connection| {
        while connection.request().is_some() {
            connection.send(ok("good"));
            let stream = connection.stream.try_clone().unwrap();
            let _ = idle.lock().unwrap().send(stream);
        }
    });
    let gateway = WireGateway::forwarding_to(&upstream);
    let mut client = gateway.client();
    for _ in 0..200 {
        client.send(GET);
        assert_eq!(client.response().body, b"good");
        let mut stream = is_idle.recv().unwrap();
        stream.write_all(EXTRA_RESPONSE.as_bytes()).unwrap();
    }
    assert_eq!(upstream.connections(), 200);
}

#[test]
fn a_response_before_the_end_of_the_request_is_forwarded_and_its_connection_not_reused() {
    let early_chunked =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nearly\r\n0\r\n\r\n";
    let rejection = "HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\n\r\nearly";
    for response in [ok("early"), early_chunked.into(), rejection.into()] {
        for framing in ["Content-Length: 100", "Transfer-Encoding: chunked"] {
            let response = response.clone();
            let upstream = RawUpstream::scripted(move |connection| {
                if connection.number == 0 {
                    connection.head();
                    connection.send(&response);
                    connection.read_to_close();
                }
                while let Some(request) = connection.request() {
                    connection.send(ok(request.line()));
                }
            });
            // The short timeouts end the connection even if the gateway waits for the rest of the request body.
            let timeouts = "request_buffer = 0\nbody_timeout = \"300ms\"\nidle_timeout = \"300ms\"";
            let gateway = WireGateway::with(upstream.address, timeouts, "");
            let mut client = gateway.client();
            client.send(format!(
                "POST /api HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n5\r\nhello\r\n"
            ));
            assert_eq!(client.response().body, b"early");
            let mut other = gateway.client();
            other.send(GET);
            assert_eq!(other.response().body, b"GET /api HTTP/1.1", "{framing}");
            assert_eq!(upstream.connections(), 2);
            // All further bytes of the client belong to the request body, even if they look like requests.
            let _sending = client.send_in_background(GET.repeat(3).into_bytes());
            let (rest, _) = client.read_to_end();
            let rest = String::from_utf8_lossy(&rest);
            assert!(!rest.contains(" 200 "), "{framing}: {rest}");
            let received = upstream.received();
            assert_eq!(
                received.matches("\r\n\r\nGET /api ").count(),
                0,
                "{received:?}"
            );
        }
    }
}

#[test]
fn request_trailers_are_removed() {
    for (server, end) in [("", "\r\n\r\nhello"), ("request_buffer = 0", "0\r\n\r\n")] {
        let upstream = RawUpstream::scripted(|connection| {
            while let Some(request) = connection.request() {
                let body = String::from_utf8_lossy(&request.body);
                connection.send(ok(&format!("{}{body}", request.head)));
            }
        });
        let gateway = WireGateway::with(upstream.address, server, "");
        let mut client = gateway.client();
        client.send(
            "POST /api HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Late, Host\r\n\
             TE: trailers\r\n\r\n5\r\nhello\r\n0\r\nX-Late: evil\r\nHost: evil\r\n\
             Authorization: evil\r\nContent-Length: 1\r\n\r\n",
        );
        let response = client.response();
        assert_eq!(response.status, 200);
        assert!(response.body.ends_with(b"\r\n\r\nhello"));
        let received = upstream.received().to_ascii_lowercase();
        assert!(!received.contains("evil"), "{received}");
        assert!(!received.contains("x-late"), "{received}");
        assert!(received.ends_with(end), "{received}");
        client.send(GET);
        assert_eq!(client.response().status, 200);
        assert_eq!(upstream.connections(), 1);
    }
}

#[test]
fn response_trailers_never_become_headers() {
    let upstream = RawUpstream::scripted(|connection| {
        while connection.request().is_some() {
            connection.send(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Late\r\n\r\n\
                 5\r\nhello\r\n0\r\nX-Late: evil\r\nSet-Cookie: evil\r\nContent-Length: 1\r\n\r\n",
            );
        }
    });
    let gateway = WireGateway::forwarding_to(&upstream);
    for te in ["", "TE: trailers\r\n"] {
        let mut client = gateway.client();
        for _ in 0..3 {
            client.send(format!("GET /api HTTP/1.1\r\nHost: a\r\n{te}\r\n"));
            let response = client.response();
            assert_eq!(response.body, b"hello");
            assert!(!response.head.contains("evil"), "{}", response.head);
        }
        client.send("GET /api HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let (rest, _) = client.read_to_end();
        let rest = String::from_utf8_lossy(&rest).to_ascii_lowercase();
        assert!(!rest.contains("set-cookie"), "{rest}");
    }
    let mut client = gateway.client();
    client.send("GET /api HTTP/1.0\r\nHost: a\r\n\r\n");
    let (rest, _) = client.read_to_end();
    assert!(rest.ends_with(b"\r\n\r\nhello"), "{}", rest.escape_ascii());
}

#[test]
fn a_client_that_disconnects_closes_its_upstream_connection() {
    let closed = Arc::new(Mutex::new(false));
    let closed_by_gateway = Arc::clone(&closed);
    let upstream = RawUpstream::scripted(move |connection| {
        connection.request();
        connection.read_to_close();
        *closed_by_gateway.lock().unwrap() = true;
    });
    let gateway = WireGateway::forwarding_to(&upstream);
    let mut client = gateway.client();
    client.send(GET);
    wait_until("upstream has the request", || {
        upstream.received().contains("GET")
    });
    drop(client);
    wait_until("the upstream connection is closed", || {
        *closed.lock().unwrap()
    });
}

#[test]
fn an_upstream_that_responds_early_and_stops_reading_does_not_block_the_client() {
    let upstream = RawUpstream::scripted(|connection| {
        connection.head();
        connection.send("HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n");
        // The server neither reads the body nor closes the connection while the test runs.
        std::thread::sleep(2 * TEST_TIMEOUT);
    });
    let timeouts = "body_timeout = \"1s\"\nidle_timeout = \"300ms\"";
    let gateway = WireGateway::with(upstream.address, timeouts, "");
    let mut client = gateway.client();
    let len = 64 << 20;
    client.send(format!(
        "POST /api HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n"
    ));
    let _sending = client.send_in_background(vec![b'x'; len]);
    assert_eq!(client.response().status, 401);
    client.assert_closed();
}
