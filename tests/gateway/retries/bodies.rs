//! Bodies that are sent once more, and those that are not.

use std::net::Shutdown;
use std::time::{Duration, Instant};

use super::{Act, QUICK, arrived, at_first, before};
use crate::harness::Gateway;
use crate::wire_raw::{Client, Conversation, PATIENCE, Upstream, contains, eventually, ok};

/// How a body says where it ends.
#[derive(Clone, Copy, Debug)]
enum Framing {
    Length,
    Chunks,
}

const FRAMINGS: [Framing; 2] = [Framing::Length, Framing::Chunks];

impl Framing {
    /// The head of a PUT with a body of this length.
    fn head(self, length: usize) -> String {
        let field = match self {
            Self::Length => format!("Content-Length: {length}"),
            Self::Chunks => "Transfer-Encoding: chunked".into(),
        };
        format!("PUT /thing HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n")
    }

    /// A part of the body.
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

    /// All of a PUT with this body.
    fn whole(self, body: &[u8]) -> Vec<u8> {
        let head = self.head(body.len());
        [head.as_bytes(), &self.part(body), self.end()].concat()
    }
}

const UNAVAILABLE: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\n\r\nsorry";

/// Ways to fail a request of which something was read.
const FAILURES: [(&str, Act); 4] = [
    ("answers", |conversation| {
        conversation.send(UNAVAILABLE);
        conversation.until_closed();
    }),
    ("answers and closes", |conversation| {
        conversation.send(UNAVAILABLE);
    }),
    ("closes", |_| {}),
    ("resets", |conversation| conversation.will_reset()),
];

/// A server that fails the first request in this way when all of it has come.
fn failing(fail: Act) -> Upstream {
    at_first(move |conversation| {
        conversation.request();
        fail(conversation);
    })
}

/// Every byte there is, in an order that no part of it repeats soon.
fn body(length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(7);
    std::iter::repeat_with(|| random.u8(..))
        .take(length)
        .collect()
}

fn connected(gateway: &Gateway) -> Client {
    Client::connect(gateway.address())
}

/// Reads until `part` has come.
fn until(conversation: &mut Conversation, part: &[u8]) {
    while conversation
        .receive()
        .is_some_and(|read| !contains(read, part))
    {}
}

/// A server that keeps the bodies it gets, and answers the first of them with 503.
fn keeping() -> crate::harness::Upstream {
    super::in_turn(&[503, 200])
}

#[test]
fn a_body_is_sent_again_byte_for_byte() {
    for framing in FRAMINGS {
        for length in [1, 10_000, 64 * 1024] {
            let upstream = keeping();
            let gateway = before(&[upstream.url()], QUICK).start();
            let body = body(length);
            let mut client = connected(&gateway);
            client.send(framing.whole(&body));
            assert_eq!(client.answer().status, 200, "{framing:?} {length}");
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
fn a_body_that_comes_slowly_is_sent_again_from_its_start() {
    for framing in FRAMINGS {
        for (how, fail) in FAILURES {
            let upstream = at_first(move |conversation| {
                until(conversation, b"first,");
                fail(conversation);
            });
            let gateway = before(&[upstream.url()], QUICK).start();
            let mut client = connected(&gateway);
            client.send(framing.head(18));
            client.send(framing.part(b"first,"));
            eventually("another attempt has what came so far", || {
                upstream.received().matches("first,").count() == 2
            });
            client.send(framing.part(b"second,"));
            client.send(framing.part(b"third"));
            client.send(framing.end());
            let answer = client.answer();
            assert_eq!(answer.status, 200, "{framing:?}, {how}");
            assert_eq!(answer.body, b"first,second,third", "{framing:?}, {how}");
            assert_eq!(upstream.connections(), 2, "{framing:?}, {how}");
        }
    }
}

#[test]
fn a_body_is_kept_up_to_the_most_there_may_be_and_not_a_byte_more() {
    for framing in FRAMINGS {
        for (max_body, length, times) in [
            ("1KiB", 1024, 2),
            ("1KiB", 1025, 1),
            ("1KiB", 100_000, 1),
            ("0", 0, 2),
            ("0", 1, 1),
        ] {
            let upstream = keeping();
            let api = format!("{QUICK}max_body = \"{max_body}\"");
            let gateway = before(&[upstream.url()], &api).start();
            let body = body(length);
            let mut client = connected(&gateway);
            client.send(framing.whole(&body));
            let answer = client.answer();
            let said = (answer.status, String::from_utf8_lossy(&answer.body).into());
            let expected = match times {
                1 => (503, String::from("answer 1")),
                _ => (200, String::from("answer 2")),
            };
            assert_eq!(said, expected, "{framing:?}, {length} of {max_body}");
            let requests = upstream.requests();
            assert_eq!(requests.len(), times, "{framing:?}, {length} of {max_body}");
            assert!(requests.iter().all(|request| request.body == body));
        }
    }
}

#[test]
fn a_body_above_the_most_that_is_lost_with_its_connection_is_not_sent_again() {
    for framing in FRAMINGS {
        for (how, fail) in &FAILURES[2..] {
            let upstream = failing(*fail);
            let api = format!("{QUICK}max_body = \"1KiB\"");
            let gateway = before(&[upstream.url()], &api).start();
            let mut client = connected(&gateway);
            client.send(framing.whole(&[b'x'; 2_000]));
            assert_eq!(client.answer().status, 502, "{framing:?}, {how}");
            assert_eq!(arrived(&upstream, "PUT"), 1, "{framing:?}, {how}");
        }
    }
}

/// Its length says so before any of it has come: what is sent twice must not depend on when a server fails.
#[test]
fn a_body_declared_above_the_most_is_sent_once_however_early_its_attempt_fails() {
    for (how, fail) in FAILURES {
        let upstream = at_first(move |conversation| {
            conversation.head();
            fail(conversation);
        });
        let api = format!("{QUICK}max_body = \"1KiB\"");
        let gateway = before(&[upstream.url()], &api).start();
        let mut client = connected(&gateway);
        client.send(Framing::Length.head(1_025));
        let status = client.answer().status;
        assert!([502, 503].contains(&status), "{how}: {status}");
        assert_eq!(arrived(&upstream, "PUT"), 1, "{how}");
    }
}

/// What a client does with its connection in the end.
type Leave = fn(Client);

/// Ways for a client to break off a body.
const LEAVINGS: [(&str, Leave); 3] = [
    ("hangs up", drop),
    ("says no more", |client| {
        client
            .stream
            .shutdown(Shutdown::Write)
            .expect("an open socket");
        // Returns once the gateway has let go of it, too.
        let mut client = client;
        client.rest();
    }),
    ("resets", |client| {
        let lingers = socket2::SockRef::from(&client.stream).set_linger(Some(Duration::ZERO));
        lingers.expect("an open socket");
    }),
];

/// A server that gives this many requests a 503 as soon as their bodies begin, leaves the next one alone until
/// it is hung up on, and serves all others.
fn leaving_alone(failures: usize) -> Upstream {
    Upstream::scripted(move |conversation| {
        if conversation.number <= failures {
            until(conversation, b"first,");
            if conversation.number < failures {
                conversation.send(UNAVAILABLE);
            }
            conversation.until_closed();
        }
        while let Some(request) = conversation.request() {
            conversation.send(ok(request.line()));
        }
    })
}

#[tokio::test]
async fn a_body_that_its_client_breaks_off_is_never_sent_again() {
    for framing in FRAMINGS {
        for (how, leave) in LEAVINGS {
            for failures in [0, 1] {
                let upstream = leaving_alone(failures);
                let gateway = before(&[upstream.url()], QUICK).admin().start();
                let mut client = connected(&gateway);
                client.send(framing.head(100));
                client.send(framing.part(b"first,"));
                eventually("what there is of it has arrived", || {
                    upstream.received().matches("first,").count() == failures + 1
                });
                leave(client);
                settled(&gateway).await;
                let times = arrived(&upstream, "PUT");
                assert_eq!(times, failures + 1, "{framing:?}: {how}");
            }
        }
    }
}

#[tokio::test]
async fn a_body_that_is_not_valid_or_stalls_is_the_clients_fault_and_never_sent_again() {
    for (patience, rest, status) in [("60s", "zz\r\n", 400), ("1s", "", 408)] {
        let upstream = leaving_alone(0);
        let gateway = before(&[upstream.url()], QUICK)
            .and(&format!("[server]\nbody_timeout = \"{patience}\""))
            .admin()
            .start();
        let mut client = connected(&gateway);
        client.send(Framing::Chunks.head(0));
        client.send(Framing::Chunks.part(b"first,"));
        eventually("what there is of it has arrived", || {
            upstream.received().contains("first,")
        });
        client.send(rest);
        assert_eq!(client.answer().status, status);
        settled(&gateway).await;
        assert_eq!(arrived(&upstream, "PUT"), 1, "{status}");
    }
}

/// Returns when no request is underway: whatever was going to be sent again was sent.
async fn settled(gateway: &Gateway) {
    let deadline = Instant::now() + PATIENCE;
    let underway = "upstream_in_flight{upstream=\"api\"}";
    while gateway.metric(underway).await > 0.5 {
        assert!(Instant::now() < deadline, "still underway");
    }
}
