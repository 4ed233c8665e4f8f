//! Tests of the bounds on client connections: `max_connections` and `max_connections_per_client`.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{Certificates, Gateway, TEST_TIMEOUT, Upstream, eventually};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// HTTP/2 preface and an empty SETTINGS frame.
const HTTP2: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Starts a gateway with two workers and at most eight connections, with these further lines in `[server]`. Timeouts do
/// not close idle connections.
fn gateway(server: &str, upstream: &Upstream) -> Gateway {
    let timeouts = "header_timeout = \"2m\"\nhandshake_timeout = \"2m\"";
    let server = format!("[server]\nworkers = 2\nmax_connections = 8\n{timeouts}\n{server}");
    Gateway::proxying(&server)
        .upstream(upstream)
        .admin()
        .start()
}

/// Opens `count` connections from 127.0.0.1 one after another, and sends `bytes` on each. `max` of them stay open.
async fn hold(gateway: &Gateway, count: u32, max: u32, bytes: &str) -> Vec<TcpStream> {
    let mut held = Vec::new();
    for index in 0..count {
        let mut stream = gateway.client().connect().await.unwrap();
        stream.write_all(bytes.as_bytes()).await.unwrap();
        if bytes == GET {
            stream.read_u8().await.expect("a response arrives");
        }
        held.push(stream);
        let open = max.min(index + 1);
        gateway.wait_for_metric("connections", open).await;
        if open < index + 2 && max == open {
            // A connection can be replaced after it was idle for 500 ms.
            tokio::time::sleep(Duration::from_millis(550)).await;
        }
    }
    held
}

/// Reads until the gateway closes the connection, and returns what it has sent.
async fn read_to_close(stream: &mut TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    // A read error is ignored: a gateway that closes with unread bytes resets the connection.
    let read = tokio::time::timeout(TEST_TIMEOUT, stream.read_to_end(&mut received)).await;
    drop(read.expect("the gateway closes the connection"));
    received
}

#[tokio::test]
async fn a_peer_that_holds_all_connections_does_not_keep_others_out() {
    let upstream = Upstream::replying(200);
    for bytes in ["", "GET / HTTP/1.1\r\nHost:", GET, "PRI * HTTP/2.0", HTTP2] {
        let gateway = gateway("max_connections_per_client = 8", &upstream);
        let mut held = hold(&gateway, 8, 8, bytes).await;
        let response = gateway.client().from("127.0.0.2").get("/").send().await;
        assert_eq!(response.status, 200, "{bytes:?}");
        let received = read_to_close(&mut held[0]).await;
        if bytes == HTTP2 {
            // The last frame has a payload of 8 bytes and the type GOAWAY.
            let last = &received[received.len() - 17..];
            assert_eq!(last[..4], [0, 0, 8, 7], "{}", received.escape_ascii());
        }
        gateway
            .wait_for_metric("connections_replaced_total", 1)
            .await;
    }
}

#[tokio::test]
async fn a_silent_tls_handshake_is_replaced() {
    let certificates = Certificates::for_localhost();
    let upstream = Upstream::replying(200);
    let (cert, key) = (certificates.cert_file(), certificates.key_file());
    let tls = format!("max_connections_per_client = 8\ntls = {{ cert = {cert:?}, key = {key:?} }}");
    let gateway = gateway(&tls, &upstream);
    let mut held = hold(&gateway, 8, 8, "").await;
    let other = gateway.tls_client(&certificates, &["http/1.1"]);
    assert_eq!(other.from("127.0.0.2").get("/").send().await.status, 200);
    assert!(read_to_close(&mut held[0]).await.is_empty());
}

#[tokio::test]
async fn requests_in_flight_keep_their_connections_and_new_ones_wait() {
    let (upstream, permits) = Upstream::responding_on_permit();
    let gateway = gateway("max_connections_per_client = 8", &upstream);
    let client = gateway.client();
    let in_flight: Vec<_> = (0..8)
        .map(|index| match index {
            0 => tokio::spawn(client.clone().h2().get("/").send()),
            _ => tokio::spawn(client.get("/").send()),
        })
        .collect();
    eventually("upstream has all requests", async || upstream.count() == 8).await;
    let other = client.from("127.0.0.2");
    let waiting: Vec<_> = (0..8)
        .map(|_| tokio::spawn(other.get("/").send()))
        .collect();
    permits.add_permits(16);
    for response in in_flight.into_iter().chain(waiting) {
        assert_eq!(response.await.unwrap().text(), "late, but whole");
    }
}

#[tokio::test]
async fn by_default_a_peer_has_a_quarter_of_the_connections() {
    let (upstream, permits) = Upstream::responding_on_permit();
    let gateway = gateway("", &upstream);
    let mut held = hold(&gateway, 3, 2, "GET ").await;
    assert!(read_to_close(&mut held[0]).await.is_empty());
    for stream in &mut held[1..] {
        stream.write_all(&GET.as_bytes()[4..]).await.unwrap();
    }
    eventually("upstream has the requests", async || upstream.count() == 2).await;
    let rejected = gateway.client().send_raw(GET).await;
    assert_eq!(rejected, "");
    gateway
        .wait_for_metric("connections_rejected_total", 1)
        .await;
    permits.add_permits(3);
    let response = gateway.client().from("127.0.0.2").get("/").send().await;
    assert_eq!(response.status, 200);
    for stream in &mut held[1..] {
        stream.read_u8().await.expect("a response arrives");
    }
}
