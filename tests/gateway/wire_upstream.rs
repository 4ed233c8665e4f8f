//! Upstreams that do not keep to HTTP: the client gets a 502 or a body that visibly breaks off, and
//! nobody gets what was left on the connection.

use std::io::Write as _;
use std::net::Shutdown;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use crate::wire_raw::{End, PATIENCE, Running, Upstream, eventually, ok};

const GET: &str = "GET /api HTTP/1.1\r\nHost: a\r\n\r\n";

/// An upstream that sends `bytes` for an answer and, if it is to, closes; every further connection it
/// serves as it should.
fn once(bytes: impl Into<Vec<u8>>, close: bool) -> Upstream {
    let bytes = bytes.into();
    Upstream::scripted(move |conversation| {
        if conversation.number == 0 {
            conversation.request();
            conversation.send(&bytes);
            if close {
                let half = conversation.stream.shutdown(Shutdown::Write);
                half.expect("an open socket");
            }
            conversation.until_closed();
        }
        while let Some(request) = conversation.request() {
            conversation.send(ok(request.line()));
        }
    })
}

/// Holds that `upstream`'s first answer is a 502 to the client and that the next request is served on
/// another connection.
#[track_caller]
fn is_a_bad_answer(shown: &str, upstream: &Upstream) {
    let gateway = Running::before(upstream);
    let mut client = gateway.client();
    client.send(GET);
    assert_eq!(client.answer().status, 502, "{shown:?}");
    let mut client = gateway.client();
    client.send(GET);
    assert_eq!(client.answer().body, b"GET /api HTTP/1.1", "{shown:?}");
    assert_eq!(upstream.connections(), 2, "{shown:?}");
}

#[test]
fn an_answer_framed_in_two_ways_is_a_bad_answer() {
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
        let answer = format!("HTTP/1.1 200 OK\r\n{lines}\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
        is_a_bad_answer(lines, &once(answer, false));
    }
}

#[test]
fn what_is_not_http_is_a_bad_answer() {
    for answer in [
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
        is_a_bad_answer(answer, &once(answer, true));
    }
}

#[test]
fn a_head_too_large_is_a_bad_answer() {
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    is_a_bad_answer("long line", &once(long, false));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(10_000));
    is_a_bad_answer("many lines", &once(many, false));
}

#[test]
fn an_upstream_that_closes_before_it_answers_is_a_502_and_is_not_asked_twice() {
    let upstream = Upstream::scripted(|conversation| {
        conversation.request();
    });
    let gateway = Running::before(&upstream);
    let mut client = gateway.client();
    client.send("POST /api HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
    assert_eq!(client.answer().status, 502);
    assert_eq!(upstream.received().matches("POST ").count(), 1);
}

#[test]
fn a_body_that_upstream_cuts_short_never_looks_complete() {
    let upstream = Upstream::scripted(|conversation| {
        let Some(request) = conversation.request() else {
            return;
        };
        let framing = match request.line() {
            "GET /api/sized HTTP/1.1" => "Content-Length: 10\r\n\r\nhello",
            "GET /api/chunk HTTP/1.1" => "Transfer-Encoding: chunked\r\n\r\na\r\nhello",
            "GET /api/between HTTP/1.1" => "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
            "GET /api/last HTTP/1.1" => "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
            _ => "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nz\r\n",
        };
        conversation.send(format!("HTTP/1.1 200 OK\r\n{framing}"));
    });
    for place in ["sized", "chunk", "between", "last", "garbage"] {
        // One each, or the circuit would be open before they are through.
        let gateway = Running::before(&upstream);
        for version in ["1.1", "1.0"] {
            let mut client = gateway.client();
            client.send(format!(
                "GET /api/{place} HTTP/{version}\r\nHost: a\r\n\r\n{GET}"
            ));
            let (rest, end) = client.rest();
            let rest = String::from_utf8_lossy(&rest);
            assert!(!rest.contains("GET /api"), "{place}: {rest}");
            let (head, body) = rest.split_once("\r\n\r\n").unwrap_or((&rest, ""));
            let head = head.to_ascii_lowercase();
            // Without a length only a reset tells a client of HTTP/1.0 that there should be more.
            let visible = if head.contains("transfer-encoding: chunked") {
                !body.contains("0\r\n\r\n")
            } else if head.contains("content-length: 10") {
                body.len() < 10
            } else {
                head.contains(" 502 ") || end == End::Reset
            };
            assert!(visible, "{place} {version} {end:?}: {rest}");
        }
    }
}

/// Answers each with something left over behind it that looks like an answer.
const LEFT_OVER: [(&str, &str); 6] = [
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

const POISON: &str = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nX-Poison: yes\r\n\r\npoison";

#[test]
fn what_upstream_sends_behind_its_answer_is_never_an_answer() {
    for together in [true, false] {
        let turn = Arc::new(Mutex::new(0));
        let (sent, is_sent) = channel();
        let sent = Mutex::new(sent);
        let upstream = Upstream::scripted(move |conversation| {
            while conversation.request().is_some() {
                let answer = LEFT_OVER[*turn.lock().unwrap() % LEFT_OVER.len()].1;
                *turn.lock().unwrap() += 1;
                if together {
                    conversation.send(format!("{answer}{POISON}"));
                } else {
                    conversation.send(answer);
                    conversation.send(POISON);
                }
                // Nobody listens any more when the test has failed.
                let _ = sent.lock().unwrap().send(());
            }
        });
        let gateway = Running::before(&upstream);
        for n in 0..300 {
            let (method, answer) = LEFT_OVER[n % LEFT_OVER.len()];
            let mut client = gateway.client();
            client.send(format!(
                "{method} /api HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
            ));
            let (rest, _) = client.rest();
            let rest = String::from_utf8_lossy(&rest);
            assert!(rest.starts_with(&answer[..12]), "{n}: {rest}");
            assert!(!rest.to_ascii_lowercase().contains("poison"), "{n}: {rest}");
            // The poison is on the connection before the next request is made.
            is_sent.recv().unwrap();
        }
    }
}

#[test]
fn what_upstream_sends_unasked_on_an_idle_connection_is_never_an_answer() {
    let (idle, is_idle) = channel();
    let idle = Mutex::new(idle);
    let upstream = Upstream::scripted(move |conversation| {
        while conversation.request().is_some() {
            conversation.send(ok("good"));
            let stream = conversation.stream.try_clone().unwrap();
            let _ = idle.lock().unwrap().send(stream);
        }
    });
    let gateway = Running::before(&upstream);
    let mut client = gateway.client();
    for _ in 0..200 {
        client.send(GET);
        assert_eq!(client.answer().body, b"good");
        let mut stream = is_idle.recv().unwrap();
        stream.write_all(POISON.as_bytes()).unwrap();
    }
    assert_eq!(upstream.connections(), 200);
}

#[test]
fn an_answer_that_comes_before_the_body_was_sent_is_passed_on_and_its_connection_not_used_again() {
    let early_chunked =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nearly\r\n0\r\n\r\n";
    let refusal = "HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\n\r\nearly";
    for answer in [ok("early"), early_chunked.into(), refusal.into()] {
        for framing in ["Content-Length: 100", "Transfer-Encoding: chunked"] {
            let answer = answer.clone();
            let upstream = Upstream::scripted(move |conversation| {
                if conversation.number == 0 {
                    conversation.head();
                    conversation.send(&answer);
                    conversation.until_closed();
                }
                while let Some(request) = conversation.request() {
                    conversation.send(ok(request.line()));
                }
            });
            // The rest of the body may be awaited or not; either way the connection ends then.
            let deadlines = "body_timeout = \"300ms\"\nidle_timeout = \"300ms\"";
            let gateway = Running::with(upstream.address, deadlines, "");
            let mut client = gateway.client();
            client.send(format!(
                "POST /api HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n5\r\nhello\r\n"
            ));
            assert_eq!(client.answer().body, b"early");
            let mut other = gateway.client();
            other.send(GET);
            assert_eq!(other.answer().body, b"GET /api HTTP/1.1", "{framing}");
            assert_eq!(upstream.connections(), 2);
            // What the client still sends is a body, whatever it looks like.
            let _sending = client.send_meanwhile(GET.repeat(3).into_bytes());
            let (rest, _) = client.rest();
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
fn request_trailers_are_dropped() {
    let upstream = Upstream::scripted(|conversation| {
        while let Some(request) = conversation.request() {
            let body = String::from_utf8_lossy(&request.body);
            conversation.send(ok(&format!("{}{body}", request.head)));
        }
    });
    let gateway = Running::before(&upstream);
    let mut client = gateway.client();
    client.send(
        "POST /api HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Late, Host\r\n\
         TE: trailers\r\n\r\n5\r\nhello\r\n0\r\nX-Late: evil\r\nHost: evil\r\n\
         Authorization: evil\r\nContent-Length: 1\r\n\r\n",
    );
    let answer = client.answer();
    assert_eq!(answer.status, 200);
    assert!(answer.body.ends_with(b"\r\n\r\nhello"));
    let received = upstream.received().to_ascii_lowercase();
    assert!(!received.contains("evil"), "{received}");
    assert!(!received.contains("x-late"), "{received}");
    assert!(received.ends_with("0\r\n\r\n"), "{received}");
    client.send(GET);
    assert_eq!(client.answer().status, 200);
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn response_trailers_are_never_headers() {
    let upstream = Upstream::scripted(|conversation| {
        while conversation.request().is_some() {
            conversation.send(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Late\r\n\r\n\
                 5\r\nhello\r\n0\r\nX-Late: evil\r\nSet-Cookie: evil\r\nContent-Length: 1\r\n\r\n",
            );
        }
    });
    let gateway = Running::before(&upstream);
    for te in ["", "TE: trailers\r\n"] {
        let mut client = gateway.client();
        for _ in 0..3 {
            client.send(format!("GET /api HTTP/1.1\r\nHost: a\r\n{te}\r\n"));
            let answer = client.answer();
            assert_eq!(answer.body, b"hello");
            assert!(!answer.head.contains("evil"), "{}", answer.head);
        }
        client.send("GET /api HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let (rest, _) = client.rest();
        let rest = String::from_utf8_lossy(&rest).to_ascii_lowercase();
        assert!(!rest.contains("set-cookie"), "{rest}");
    }
    let mut client = gateway.client();
    client.send("GET /api HTTP/1.0\r\nHost: a\r\n\r\n");
    let (rest, _) = client.rest();
    assert!(rest.ends_with(b"\r\n\r\nhello"), "{}", rest.escape_ascii());
}

#[test]
fn a_client_that_leaves_takes_its_upstream_connection_along() {
    let gone = Arc::new(Mutex::new(false));
    let noticed = Arc::clone(&gone);
    let upstream = Upstream::scripted(move |conversation| {
        conversation.request();
        conversation.until_closed();
        *noticed.lock().unwrap() = true;
    });
    let gateway = Running::before(&upstream);
    let mut client = gateway.client();
    client.send(GET);
    eventually("the request reaches upstream", || {
        upstream.received().contains("GET")
    });
    drop(client);
    eventually("upstream is hung up on", || *gone.lock().unwrap());
}

#[test]
fn an_upstream_that_answers_early_and_reads_no_more_holds_no_client() {
    let upstream = Upstream::scripted(|conversation| {
        conversation.head();
        conversation.send("HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n");
        // Neither reads nor closes.
        std::thread::sleep(2 * PATIENCE);
    });
    let deadlines = "body_timeout = \"300ms\"\nidle_timeout = \"300ms\"";
    let gateway = Running::with(upstream.address, deadlines, "");
    let mut client = gateway.client();
    let len = 64 << 20;
    client.send(format!(
        "POST /api HTTP/1.1\r\nHost: a\r\nContent-Length: {len}\r\n\r\n"
    ));
    let _sending = client.send_meanwhile(vec![b'x'; len]);
    assert_eq!(client.answer().status, 401);
    // Returns once the gateway has let go of the connection.
    client.rest();
}
