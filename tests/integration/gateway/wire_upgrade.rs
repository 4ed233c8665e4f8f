//! Tests of protocol upgrades: the gateway tunnels bytes only after upstream has accepted the upgrade with 101.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::time::Duration;

use crate::support::raw_http::{RawUpstream, WireGateway, ok};

const UPGRADE: &str = "GET /api/chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\n\
                       Upgrade: websocket\r\n\r\n";
const NEXT: &str = "GET /api/next HTTP/1.1\r\nHost: a\r\n\r\n";
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\n\
                      Upgrade: websocket\r\n\r\n";

#[test]
fn a_tunnel_carries_bytes_in_both_directions_and_none_before_the_101() {
    let upstream = RawUpstream::scripted(|connection| {
        let head = connection
            .head()
            .expect("the upstream should receive a request");
        assert!(head.to_ascii_lowercase().contains("\r\nupgrade: websocket"));
        let pause = Some(Duration::from_millis(200));
        connection.stream.set_read_timeout(pause).unwrap();
        let early = connection.receive().map(<[u8]>::to_vec);
        connection.stream.set_read_timeout(None).unwrap();
        let verdict = early.map_or("nothing", |_| "something");
        connection.send(format!("{SWITCH}{verdict} came early;"));
        let mut buf = [0; 1024];
        while let Ok(n @ 1..) = connection.stream.read(&mut buf) {
            connection.stream.write_all(&buf[..n]).unwrap();
        }
        connection.send("bye");
    });
    let gateway = WireGateway::forwarding_to(&upstream);
    let mut client = gateway.client();
    client.send(format!("{UPGRADE}\x01GET /api/early HTTP/1.1\n\n\0"));
    let response = client.response();
    assert_eq!(response.status, 101);
    assert_eq!(response.header("upgrade"), Some("websocket"));
    let tunnelled = client.read_until(b"\n\n\0");
    assert_eq!(
        tunnelled.escape_ascii().to_string(),
        b"nothing came early;\x01GET /api/early HTTP/1.1\n\n\0"
            .escape_ascii()
            .to_string()
    );
    for n in 0..100 {
        let frame = format!("<{n}\r\n\r\n>");
        client.send(&frame);
        assert_eq!(client.read_until(b">"), frame.as_bytes());
    }
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.read_to_end().0, b"bye");
}

#[test]
fn a_tunnel_closes_when_upstream_closes() {
    let upstream = RawUpstream::scripted(|connection| {
        connection.head();
        connection.send(format!("{SWITCH}all there is"));
        connection.stream.shutdown(Shutdown::Write).unwrap();
        connection.read_to_close();
    });
    let gateway = WireGateway::forwarding_to(&upstream);
    let mut client = gateway.client();
    client.send(UPGRADE);
    assert_eq!(client.response().status, 101);
    assert_eq!(client.read_to_end().0, b"all there is");
}

#[test]
fn after_a_declined_upgrade_the_next_request_is_read() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = WireGateway::forwarding_to(&upstream);
    let mut client = gateway.client();
    client.send(format!("{UPGRADE}{NEXT}{UPGRADE}{NEXT}"));
    for _ in 0..2 {
        assert_eq!(client.response().body, b"GET /api/chat HTTP/1.1");
        assert_eq!(client.response().body, b"GET /api/next HTTP/1.1");
    }
    let received = upstream.received();
    assert_eq!(received.matches("GET ").count(), 4, "{received:?}");
}

#[test]
fn after_a_declined_upgrade_invalid_bytes_return_400() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = WireGateway::forwarding_to(&upstream);
    let mut client = gateway.client();
    client.send(format!("{UPGRADE}\u{1}\u{2}frame\n\n{NEXT}"));
    assert_eq!(client.response().status, 200);
    assert_eq!(client.response().status, 400);
    client.assert_closed();
    let received = upstream.received();
    assert!(!received.contains("frame") && !received.contains("next"));
}

#[test]
fn an_upgrade_that_the_gateway_rejects_tunnels_nothing() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = WireGateway::forwarding_to(&upstream);
    let mut client = gateway.client();
    client.send(UPGRADE.replace("/api/chat", "/nowhere") + NEXT);
    assert_eq!(client.response().status, 404);
    assert_eq!(client.response().body, b"GET /api/next HTTP/1.1");
    let received = upstream.received();
    assert_eq!(received.matches("GET ").count(), 1, "{received:?}");
}

#[test]
fn an_upgrade_to_http_2_is_not_forwarded() {
    let upstream = RawUpstream::scripted(|connection| {
        while let Some(request) = connection.request() {
            connection.send(ok(&request.head.to_ascii_lowercase()));
        }
    });
    let gateway = WireGateway::forwarding_to(&upstream);
    for upgrade in ["h2c", "H2C", "h2c, websocket", "websocket,h2c"] {
        let mut client = gateway.client();
        client.send(format!(
            "GET /api HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\n\
             Upgrade: {upgrade}\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
        ));
        let head = String::from_utf8(client.response().body).unwrap();
        assert!(!head.contains("h2c"), "{upgrade}: {head}");
        assert!(!head.contains("http2-settings"), "{upgrade}: {head}");
        assert!(!head.contains("\r\nupgrade:"), "{upgrade}: {head}");
    }
}

#[test]
fn an_upgrade_that_connection_does_not_name_is_not_forwarded() {
    let upstream = RawUpstream::scripted(|connection| {
        while let Some(request) = connection.request() {
            connection.send(ok(&request.head.to_ascii_lowercase()));
        }
    });
    let gateway = WireGateway::forwarding_to(&upstream);
    let mut client = gateway.client();
    client.send("GET /api HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n");
    let head = String::from_utf8(client.response().body).unwrap();
    assert!(!head.contains("upgrade"), "{head}");
}

#[test]
fn an_unrequested_101_returns_502() {
    let upstream = RawUpstream::scripted(|connection| {
        connection.head();
        connection.send(format!("{SWITCH}HTTP/1.1 200 OK\r\n\r\n"));
        connection.read_to_close();
    });
    let gateway = WireGateway::forwarding_to(&upstream);
    for request in [
        NEXT,
        "GET /api HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
    ] {
        let mut client = gateway.client();
        client.send(request);
        assert_eq!(client.response().status, 502);
    }
}

#[test]
fn an_http_1_0_upgrade_is_not_forwarded() {
    let upstream = RawUpstream::echoing_request_line();
    let gateway = WireGateway::forwarding_to(&upstream);
    let mut client = gateway.client();
    client
        .send("GET /api HTTP/1.0\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n");
    assert_eq!(client.response().status, 200);
    let received = upstream.received().to_lowercase();
    assert!(!received.contains("upgrade"), "{received}");
}
