//! `Expect: 100-continue`, met by the gateway and by nobody else.

use std::net::TcpListener;

use crate::wire_raw::{Running, Upstream, ok};

fn expecting(path: &str, expectation: &str, len: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: a\r\nExpect: {expectation}\r\nContent-Length: {len}\r\n\r\n"
    )
}

/// An upstream that answers with what it was sent.
fn repeating_all() -> Upstream {
    Upstream::scripted(|conversation| {
        while let Some(request) = conversation.request() {
            let body = String::from_utf8_lossy(&request.body);
            conversation.send(ok(&format!("{}{body}", request.head)));
        }
    })
}

#[test]
fn a_client_that_waits_to_be_asked_for_its_body_is_asked() {
    let upstream = repeating_all();
    let gateway = Running::before(&upstream);
    let mut client = gateway.client();
    for expectation in ["100-continue", "100-Continue", "100-CONTINUE"] {
        client.send(expecting("/api", expectation, 5));
        assert_eq!(client.answer().status, 100, "{expectation}");
        client.send("hello");
        let answer = client.answer();
        assert_eq!(answer.status, 200);
        let seen = String::from_utf8(answer.body).unwrap();
        assert!(seen.ends_with("\r\n\r\nhello"), "{seen}");
        assert!(!seen.to_ascii_lowercase().contains("expect:"), "{seen}");
    }
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn a_client_that_does_not_wait_is_served_as_well() {
    let upstream = repeating_all();
    let gateway = Running::before(&upstream);
    let mut client = gateway.client();
    for _ in 0..20 {
        client.send(expecting("/api", "100-continue", 5) + "hello");
        let mut answer = client.answer();
        if answer.status == 100 {
            answer = client.answer();
        }
        assert_eq!(answer.status, 200);
        assert!(answer.body.ends_with(b"\r\n\r\nhello"));
    }
}

#[test]
fn a_client_of_http_1_0_is_never_told_to_continue() {
    let upstream = repeating_all();
    let gateway = Running::before(&upstream);
    let mut client = gateway.client();
    client.send(expecting("/api", "100-continue", 5).replace("HTTP/1.1", "HTTP/1.0") + "hello");
    assert_eq!(client.answer().status, 200);
}

#[test]
fn a_refused_client_is_not_asked_for_its_body() {
    let upstream = Upstream::repeating();
    let gateway = Running::with(upstream.address, "max_body = \"1KiB\"", "");
    let mut client = gateway.client();
    client.send("GET /limited HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.answer().status, 200);
    upstream.forget();
    for (path, len, status) in [
        ("/nowhere", 5, 404),
        ("/limited", 5, 429),
        ("/api", 2000, 413),
        ("/api/%00", 5, 400),
    ] {
        let mut client = gateway.client();
        client.send(expecting(path, "100-continue", len));
        assert_eq!(client.answer().status, status);
        // Whether a body follows is the client's secret, so nothing more can be read.
        client.is_hung_up();
    }
    upstream.got_nothing_by(&gateway);
}

#[test]
fn a_client_is_not_asked_for_a_body_that_nobody_will_take() {
    let nobody = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let gateway = Running::with(nobody, "", "");
    let mut client = gateway.client();
    client.send(expecting("/api", "100-continue", 5));
    assert_eq!(client.answer().status, 502);
}

#[test]
fn an_unknown_expectation_fails_and_the_next_requests_work() {
    let upstream = Upstream::repeating();
    let gateway = Running::before(&upstream);
    for lines in [
        "Expect: x",
        "Expect: 200-ok",
        "Expect: 100-continue, x",
        "Expect: 100-continue\r\nExpect: x",
        "Expect: 100 continue",
        "Expect:",
    ] {
        let mut client = gateway.client();
        client.send(format!(
            "GET /api/odd HTTP/1.1\r\nHost: a\r\n{lines}\r\n\r\n"
        ));
        assert_eq!(client.answer().status, 417, "{lines}");
        for _ in 0..3 {
            client.send("GET /api HTTP/1.1\r\nHost: a\r\n\r\n");
            assert_eq!(client.answer().body, b"GET /api HTTP/1.1", "{lines}");
        }
    }
    assert!(!upstream.received().contains("odd"));
}

#[test]
fn a_100_from_upstream_is_not_taken_for_its_answer() {
    let upstream = Upstream::scripted(|conversation| {
        while conversation.request().is_some() {
            conversation.send("HTTP/1.1 100 Continue\r\n\r\n");
            conversation.send("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n");
            conversation.send(ok("the answer"));
        }
    });
    let gateway = Running::before(&upstream);
    let mut client = gateway.client();
    for _ in 0..10 {
        client.send("POST /api HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
        assert_eq!(client.answer().body, b"the answer");
    }
}
