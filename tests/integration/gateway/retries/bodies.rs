//! Tests of retries of requests with a body: which bodies the gateway sends again, and which it does not.

use std::net::Shutdown;
use std::time::Duration;

use super::{ConnectionAction, QUICK, arrived_count, gateway_to, with_first_connection};
use crate::support::raw_http::{RawClient, RawUpstream, UpstreamConnection, contains, ok};
use crate::support::{Gateway, GatewayBuilder, wait_until};

/// Framing of a request body.
#[derive(Clone, Copy, Debug)]
enum Framing {
    Length,
    Chunks,
}

const FRAMINGS: [Framing; 2] = [Framing::Length, Framing::Chunks];

impl Framing {
    /// Returns the head of a PUT request with a body of `length` bytes.
    fn head(self, length: usize) -> String {
        let field = match self {
            Self::Length => format!("Content-Length: {length}"),
            Self::Chunks => "Transfer-Encoding: chunked".into(),
        };
        format!("PUT /thing HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n")
    }

    /// Encodes a part of the request body: as one chunk, or unchanged if the body has a `Content-Length`.
    fn part(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Length => bytes.to_vec(),
            Self::Chunks => {
                let size = format!("{:x}\r\n", bytes.len());
                [size.as_bytes(), bytes, b"\r\n"].concat()
            }
        }
    }

    fn end(self) -> &'static [u8] {
        match self {
            Self::Length => b"",
            Self::Chunks => b"0\r\n\r\n",
        }
    }

    /// Returns a complete PUT request with this body.
    fn complete_request(self, body: &[u8]) -> Vec<u8> {
        let head = self.head(body.len());
        [head.as_bytes(), &self.part(body), self.end()].concat()
    }
}

const UNAVAILABLE: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\n\r\nsorry";

/// Ways for a server to fail after it has read a part of the request.
const FAILURES: [(&str, ConnectionAction); 4] = [
    ("responds", |connection| {
        connection.send(UNAVAILABLE);
        connection.read_to_close();
    }),
    ("responds and closes", |connection| {
        connection.send(UNAVAILABLE);
    }),
    ("closes", |_| {}),
    ("resets", |connection| connection.reset_on_close()),
];

/// Creates a server that reads its first request completely and then fails with the action `fail`.
fn failing(fail: ConnectionAction) -> RawUpstream {
    with_first_connection(move |connection| {
        connection.request();
        fail(connection);
    })
}

/// Returns `length` reproducible pseudo-random bytes.
fn body(length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(7);
    std::iter::repeat_with(|| random.u8(..))
        .take(length)
        .collect()
}

/// Prepares a gateway that forwards a body from its first byte, so that a server can fail before the body is complete.
fn streaming_to(upstream: &RawUpstream, api: &str) -> GatewayBuilder {
    gateway_to(&[upstream.url()], api).with_section("[server]\nrequest_buffer = 0")
}

fn connect(gateway: &Gateway) -> RawClient {
    RawClient::connect(gateway.address())
}

/// Reads from `connection` until `part` has arrived or the gateway closes the connection.
fn read_until_part(connection: &mut UpstreamConnection, part: &[u8]) {
    while connection
        .receive()
        .is_some_and(|read| !contains(read, part))
    {}
}

/// Creates a server that records the request bodies. It responds to the first request with 503 and to all others with
/// 200.
fn failing_first_request() -> crate::support::Upstream {
    super::with_statuses(&[503, 200])
}

#[test]
fn a_body_is_sent_again_byte_for_byte() {
    for framing in FRAMINGS {
        for length in [1, 10_000, 64 * 1024] {
            let upstream = failing_first_request();
            let gateway = gateway_to(&[upstream.url()], QUICK).start();
            let body = body(length);
            let mut client = connect(&gateway);
            client.send(framing.complete_request(&body));
            assert_eq!(client.response().status, 200, "{framing:?} {length}");
            let requests = upstream.requests();
            assert_eq!(requests.len(), 2, "{framing:?} {length}");
            for request in &requests {
                assert!(request.body == body, "{framing:?} {length}");
                let first = &requests[0].headers;
                assert_eq!(&request.headers, first, "{framing:?} {length}");
            }
        }
    }
}

#[test]
fn a_body_that_arrives_slowly_is_sent_again_from_its_start() {
    for framing in FRAMINGS {
        for (description, fail) in FAILURES {
            let upstream = with_first_connection(move |connection| {
                read_until_part(connection, b"first,");
                fail(connection);
            });
            let gateway = streaming_to(&upstream, QUICK).start();
            let mut client = connect(&gateway);
            client.send(framing.head(18));
            client.send(framing.part(b"first,"));
            wait_until("the second attempt has the first part", || {
                upstream.received().matches("first,").count() == 2
            });
            client.send(framing.part(b"second,"));
            client.send(framing.part(b"third"));
            client.send(framing.end());
            let response = client.response();
            assert_eq!(response.status, 200, "{framing:?}, {description}");
            assert_eq!(
                response.body, b"first,second,third",
                "{framing:?}, {description}"
            );
            assert_eq!(upstream.connections(), 2, "{framing:?}, {description}");
        }
    }
}

#[test]
fn a_body_above_max_body_is_not_sent_again_after_a_lost_connection() {
    for framing in FRAMINGS {
        for (description, fail) in &FAILURES[2..] {
            let upstream = failing(*fail);
            let api = format!("{QUICK}max_body = \"1KiB\"");
            let gateway = gateway_to(&[upstream.url()], &api).start();
            let mut client = connect(&gateway);
            client.send(framing.complete_request(&[b'x'; 2_000]));
            assert_eq!(client.response().status, 502, "{framing:?}, {description}");
            assert_eq!(
                arrived_count(&upstream, "PUT"),
                1,
                "{framing:?}, {description}"
            );
        }
    }
}

/// The declared length exceeds `max_body`, so the gateway does not retry even if no byte of the body was sent. The
/// number of attempts thus does not depend on when the server fails.
#[test]
fn a_body_declared_above_max_body_is_sent_once_however_early_the_attempt_fails() {
    for (description, fail) in FAILURES {
        let upstream = with_first_connection(move |connection| {
            connection.head();
            fail(connection);
        });
        let api = format!("{QUICK}max_body = \"1KiB\"");
        let gateway = streaming_to(&upstream, &api).start();
        let mut client = connect(&gateway);
        client.send(Framing::Length.head(1_025));
        let status = client.response().status;
        assert!([502, 503].contains(&status), "{description}: {status}");
        assert_eq!(arrived_count(&upstream, "PUT"), 1, "{description}");
    }
}

/// Action that ends the connection of a client.
type ClientAction = fn(RawClient);

/// Ways for a client to abort a request before the end of its body.
const CLIENT_ABORTS: [(&str, ClientAction); 3] = [
    ("disconnects", drop),
    ("half-closes", |client| {
        client
            .stream
            .shutdown(Shutdown::Write)
            .expect("the socket should be open");
        // `read_to_end` returns when the gateway has also closed its side of the connection.
        let mut client = client;
        client.read_to_end();
    }),
    ("resets", |client| {
        let set = socket2::SockRef::from(&client.stream).set_linger(Some(Duration::ZERO));
        set.expect("the socket should be open");
    }),
];

/// Creates a server that responds with 503 on the first `failures` connections as soon as a body begins. On the next
/// connection, it sends no response and waits until the gateway closes the connection. It serves all later connections
/// normally.
fn failing_then_silent(failures: usize) -> RawUpstream {
    RawUpstream::scripted(move |connection| {
        if connection.number <= failures {
            read_until_part(connection, b"first,");
            if connection.number < failures {
                connection.send(UNAVAILABLE);
            }
            connection.read_to_close();
        }
        while let Some(request) = connection.request() {
            connection.send(ok(request.line()));
        }
    })
}

#[tokio::test]
async fn a_body_that_its_client_aborts_is_never_sent_again() {
    for framing in FRAMINGS {
        for (description, abort) in CLIENT_ABORTS {
            for failures in [0, 1] {
                let upstream = failing_then_silent(failures);
                let gateway = streaming_to(&upstream, QUICK).admin().start();
                let mut client = connect(&gateway);
                client.send(framing.head(100));
                client.send(framing.part(b"first,"));
                wait_until("upstream has the first part", || {
                    upstream.received().matches("first,").count() == failures + 1
                });
                abort(client);
                wait_until_idle(&gateway).await;
                let times = arrived_count(&upstream, "PUT");
                assert_eq!(times, failures + 1, "{framing:?}: {description}");
            }
        }
    }
}

#[tokio::test]
async fn an_invalid_or_stalled_body_is_never_sent_again() {
    for (body_timeout, rest, status) in [("60s", "zz\r\n", 400), ("1s", "", 408)] {
        let upstream = failing_then_silent(0);
        let gateway = gateway_to(&[upstream.url()], QUICK)
            .with_section(&format!(
                "[server]\nrequest_buffer = 0\nbody_timeout = \"{body_timeout}\""
            ))
            .admin()
            .start();
        let mut client = connect(&gateway);
        client.send(Framing::Chunks.head(0));
        client.send(Framing::Chunks.part(b"first,"));
        wait_until("upstream has the first part", || {
            upstream.received().contains("first,")
        });
        client.send(rest);
        assert_eq!(client.response().status, status);
        wait_until_idle(&gateway).await;
        assert_eq!(arrived_count(&upstream, "PUT"), 1, "{status}");
    }
}

/// Waits until no upstream request is in flight. After that, the gateway starts no retry.
async fn wait_until_idle(gateway: &Gateway) {
    let in_flight = "upstream_in_flight{upstream=\"api\"}";
    gateway.wait_for_metric(in_flight, 0).await;
}
