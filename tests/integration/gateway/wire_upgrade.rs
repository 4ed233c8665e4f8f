//! Tests of protocol upgrades: the gateway tunnels bytes only after upstream has accepted the upgrade with 101.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use crate::support::raw_http::{RawClient, RawUpstream, WireGateway, ok};
use crate::support::{Gateway, TEST_TIMEOUT, eventually};

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
        "GET /api HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: chat/2, other\r\n\r\n",
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

/// Creates an upstream that accepts upgrades for `/chat` and echoes their bytes. It accepts upgrades for `/held` and
/// then neither reads nor closes. It does not respond to requests for `/pending`, and declines all other upgrades.
fn chat() -> RawUpstream {
    RawUpstream::scripted(|connection| {
        while let Some(request) = connection.request() {
            match request.line() {
                line if line.starts_with("GET /chat ") => {
                    connection.send(SWITCH);
                    let mut buf = [0; 1024];
                    while let Ok(n @ 1..) = connection.stream.read(&mut buf) {
                        connection.send(&buf[..n]);
                    }
                    return;
                }
                line if line.starts_with("GET /held ") => {
                    connection.send(SWITCH);
                    std::thread::sleep(TEST_TIMEOUT);
                    return;
                }
                line if line.starts_with("GET /pending ") => {
                    connection.read_to_close();
                    return;
                }
                line => connection.send(ok(line)),
            }
        }
    })
}

/// Starts a gateway in front of `upstream` with these lines in `[server]`.
fn gateway(upstream: &RawUpstream, server: &str) -> Gateway {
    Gateway::proxying(&format!("[server]\n{server}"))
        .admin()
        .upstream_url(&upstream.url())
        .start()
}

/// Sends an upgrade request for `path` on a new connection.
fn upgrade(gateway: &Gateway, path: &str) -> RawClient {
    let mut client = RawClient::connect(gateway.address());
    client.send(UPGRADE.replace("/api/chat", path));
    client
}

#[tokio::test]
async fn an_idle_tunnel_is_closed_on_both_sides() {
    const TIMEOUT: Duration = Duration::from_millis(500);
    let upstream = chat();
    let gateway = gateway(&upstream, "tunnel_timeout = \"500ms\"");
    let started = Instant::now();
    let mut client = upgrade(&gateway, "/chat");
    assert_eq!(client.response().status, 101);
    // A tunnel that transfers bytes stays open for longer than the timeout.
    for _ in 0..8 {
        client.send("x");
        client.read_until(b"x");
        std::thread::sleep(TIMEOUT / 5);
    }
    assert!(started.elapsed() > TIMEOUT);
    client.assert_closed();
    assert_no_tunnel_is_left(&gateway, 1).await;
}

#[tokio::test]
async fn a_half_closed_tunnel_is_closed_on_both_sides() {
    let upstream = chat();
    let gateway = gateway(&upstream, "tunnel_timeout = \"500ms\"");
    let mut client = upgrade(&gateway, "/held");
    assert_eq!(client.response().status, 101);
    client.stream.shutdown(Shutdown::Write).unwrap();
    client.assert_closed();
    assert_no_tunnel_is_left(&gateway, 1).await;
}

/// Waits until the gateway has closed all tunnels, `timed_out` of them because of `tunnel_timeout`.
async fn assert_no_tunnel_is_left(gateway: &Gateway, timed_out: u32) {
    for series in [
        "tunnels",
        "connections",
        "upstream_in_flight{upstream=\"api\"}",
    ] {
        gateway.wait_for_metric(series, 0).await;
    }
    gateway
        .wait_for_metric("tunnels_timed_out_total", timed_out)
        .await;
}

#[tokio::test]
async fn upgrades_above_max_tunnels_per_client_get_429_and_are_not_forwarded() {
    let upstream = chat();
    let gateway = gateway(&upstream, "workers = 4\nmax_tunnels_per_client = 3");
    let mut tunnels: Vec<_> = (0..3).map(|_| upgrade(&gateway, "/chat")).collect();
    for tunnel in &mut tunnels {
        assert_eq!(tunnel.response().status, 101);
    }
    gateway.wait_for_metric("tunnels", 3).await;
    upstream.clear_received();
    for _ in 0..8 {
        let mut rejected = upgrade(&gateway, "/chat");
        let response = rejected.response();
        assert_eq!(response.status, 429);
        assert_eq!(response.header("retry-after"), Some("1"));
        let body = String::from_utf8(response.body).unwrap();
        assert!(body.contains("urn:tidegate:problem:rate-limited"), "{body}");
        assert_eq!(upstream.received(), "");
        // The client can still send other requests, also on this connection.
        rejected.send(NEXT);
        assert_eq!(rejected.response().status, 200);
        upstream.clear_received();
    }
    gateway.wait_for_metric("tunnels_rejected_total", 8).await;
    let other = gateway.client().from("127.0.0.9").connect().await;
    let other = other.unwrap().into_std().unwrap();
    other.set_nonblocking(false).unwrap();
    let mut other = RawClient::of(other);
    other.send(UPGRADE.replace("/api/chat", "/chat"));
    assert_eq!(other.response().status, 101);

    drop(tunnels.pop());
    gateway.wait_for_metric("tunnels", 3).await;
    assert_eq!(upgrade(&gateway, "/chat").response().status, 101);
}

#[tokio::test]
async fn a_pending_upgrade_counts_as_a_tunnel_and_a_failed_one_does_not() {
    let upstream = chat();
    let gateway = gateway(&upstream, "max_tunnels_per_client = 1");
    for _ in 0..3 {
        assert_eq!(upgrade(&gateway, "/declined").response().status, 200);
        gateway.wait_for_metric("tunnels", 0).await;
    }
    let pending = upgrade(&gateway, "/pending");
    eventually("the upstream has received the upgrade", async || {
        upstream.received().contains("/pending")
    })
    .await;
    gateway.wait_for_metric("tunnels", 1).await;
    assert_eq!(upgrade(&gateway, "/chat").response().status, 429);
    drop(pending);
    gateway.wait_for_metric("tunnels", 0).await;
    let mut tunnel = upgrade(&gateway, "/chat");
    assert_eq!(tunnel.response().status, 101);
    assert_eq!(upgrade(&gateway, "/chat").response().status, 429);
}

#[test]
fn a_drain_closes_open_tunnels_at_the_end_of_the_grace_period() {
    let upstream = chat();
    let gateway = gateway(&upstream, "shutdown_grace = \"500ms\"");
    let mut client = upgrade(&gateway, "/chat");
    assert_eq!(client.response().status, 101);
    let started = Instant::now();
    gateway.drain();
    client.send("still open");
    client.read_until(b"still open");
    client.assert_closed();
    assert!(started.elapsed() >= Duration::from_millis(450));
    gateway.wait_for_exit();
    assert!(started.elapsed() < Duration::from_secs(15));
}
