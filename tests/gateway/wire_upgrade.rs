//! Upgrades: nothing is tunnelled before upstream has agreed, and nothing if it has not.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::time::Duration;

use crate::wire_raw::{Running, Upstream, ok};

const UPGRADE: &str = "GET /api/chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n\
                       Upgrade: websocket\r\n\r\n";
const NEXT: &str = "GET /api/next HTTP/1.1\r\nHost: a\r\n\r\n";
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
                      Upgrade: websocket\r\n\r\n";

#[test]
fn a_tunnel_carries_bytes_both_ways_but_none_before_the_101() {
    let upstream = Upstream::scripted(|conversation| {
        let head = conversation.head().expect("a request");
        assert!(head.to_ascii_lowercase().contains("\r\nupgrade: websocket"));
        let pause = Some(Duration::from_millis(200));
        conversation.stream.set_read_timeout(pause).unwrap();
        let early = conversation.receive().map(<[u8]>::to_vec);
        conversation.stream.set_read_timeout(None).unwrap();
        let verdict = early.map_or("nothing", |_| "something");
        conversation.send(format!("{SWITCH}{verdict} came early;"));
        let mut buf = [0; 1024];
        while let Ok(n @ 1..) = conversation.stream.read(&mut buf) {
            conversation.stream.write_all(&buf[..n]).unwrap();
        }
        conversation.send("bye");
    });
    let gateway = Running::before(&upstream);
    let mut client = gateway.client();
    client.send(format!("{UPGRADE}\x01GET /api/early HTTP/1.1\n\n\0"));
    let answer = client.answer();
    assert_eq!(answer.status, 101);
    assert_eq!(answer.header("upgrade"), Some("websocket"));
    let tunnelled = client.until(b"\n\n\0");
    assert_eq!(
        tunnelled.escape_ascii().to_string(),
        b"nothing came early;\x01GET /api/early HTTP/1.1\n\n\0"
            .escape_ascii()
            .to_string()
    );
    for n in 0..100 {
        let frame = format!("<{n}\r\n\r\n>");
        client.send(&frame);
        assert_eq!(client.until(b">"), frame.as_bytes());
    }
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.rest().0, b"bye");
}

#[test]
fn a_tunnel_ends_when_upstream_ends_it() {
    let upstream = Upstream::scripted(|conversation| {
        conversation.head();
        conversation.send(format!("{SWITCH}all there is"));
        conversation.stream.shutdown(Shutdown::Write).unwrap();
        conversation.until_closed();
    });
    let gateway = Running::before(&upstream);
    let mut client = gateway.client();
    client.send(UPGRADE);
    assert_eq!(client.answer().status, 101);
    assert_eq!(client.rest().0, b"all there is");
}

#[test]
fn what_follows_an_upgrade_that_was_not_made_is_an_ordinary_request() {
    let upstream = Upstream::repeating();
    let gateway = Running::before(&upstream);
    let mut client = gateway.client();
    client.send(format!("{UPGRADE}{NEXT}{UPGRADE}{NEXT}"));
    for _ in 0..2 {
        assert_eq!(client.answer().body, b"GET /api/chat HTTP/1.1");
        assert_eq!(client.answer().body, b"GET /api/next HTTP/1.1");
    }
    let received = upstream.received();
    assert_eq!(received.matches("GET ").count(), 4, "{received:?}");
}

#[test]
fn what_is_no_request_behind_an_upgrade_that_was_not_made_is_refused() {
    let upstream = Upstream::repeating();
    let gateway = Running::before(&upstream);
    let mut client = gateway.client();
    client.send(format!("{UPGRADE}\u{1}\u{2}frame\n\n{NEXT}"));
    assert_eq!(client.answer().status, 200);
    assert_eq!(client.answer().status, 400);
    client.is_hung_up();
    let received = upstream.received();
    assert!(!received.contains("frame") && !received.contains("next"));
}

#[test]
fn an_upgrade_that_the_gateway_refuses_tunnels_nothing() {
    let upstream = Upstream::repeating();
    let gateway = Running::before(&upstream);
    let mut client = gateway.client();
    client.send(UPGRADE.replace("/api/chat", "/nowhere") + NEXT);
    assert_eq!(client.answer().status, 404);
    assert_eq!(client.answer().body, b"GET /api/next HTTP/1.1");
    let received = upstream.received();
    assert_eq!(received.matches("GET ").count(), 1, "{received:?}");
}

#[test]
fn an_upgrade_to_http_2_is_not_passed_on() {
    let upstream = Upstream::scripted(|conversation| {
        while let Some(request) = conversation.request() {
            conversation.send(ok(&request.head.to_ascii_lowercase()));
        }
    });
    let gateway = Running::before(&upstream);
    for upgrade in ["h2c", "H2C", "h2c, websocket", "websocket,h2c"] {
        let mut client = gateway.client();
        client.send(format!(
            "GET /api HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\n\
             Upgrade: {upgrade}\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
        ));
        let seen = String::from_utf8(client.answer().body).unwrap();
        assert!(!seen.contains("h2c"), "{upgrade}: {seen}");
        assert!(!seen.contains("http2-settings"), "{upgrade}: {seen}");
        assert!(!seen.contains("\r\nupgrade:"), "{upgrade}: {seen}");
    }
}

#[test]
fn an_upgrade_that_connection_does_not_name_is_not_passed_on() {
    let upstream = Upstream::scripted(|conversation| {
        while let Some(request) = conversation.request() {
            conversation.send(ok(&request.head.to_ascii_lowercase()));
        }
    });
    let gateway = Running::before(&upstream);
    let mut client = gateway.client();
    client.send("GET /api HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n");
    let seen = String::from_utf8(client.answer().body).unwrap();
    assert!(!seen.contains("upgrade"), "{seen}");
}

#[test]
fn a_101_that_nobody_asked_for_is_a_bad_answer() {
    let upstream = Upstream::scripted(|conversation| {
        conversation.head();
        conversation.send(format!("{SWITCH}HTTP/1.1 200 OK\r\n\r\n"));
        conversation.until_closed();
    });
    let gateway = Running::before(&upstream);
    for request in [
        NEXT,
        "GET /api HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    ] {
        let mut client = gateway.client();
        client.send(request);
        assert_eq!(client.answer().status, 502);
    }
}

#[test]
fn http_1_0_has_no_upgrades_to_pass_on() {
    let upstream = Upstream::repeating();
    let gateway = Running::before(&upstream);
    let mut client = gateway.client();
    client
        .send("GET /api HTTP/1.0\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_eq!(client.answer().status, 200);
    let received = upstream.received().to_lowercase();
    assert!(!received.contains("upgrade"), "{received}");
}
