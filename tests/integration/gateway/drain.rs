//! Tests of the drain: which requests still get a response, and when the gateway closes connections.

mod load;

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::gateway::http2::frames::{
    DATA, END_STREAM, Frame, FrameClient, GOAWAY, HEADERS, SETTINGS, WINDOW_UPDATE, frame,
};
use crate::support::raw_http::RawClient;
use crate::support::{Certificates, Gateway, Upstream, eventually, full, wait_until};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Starts a drain and waits until the listener is closed.
fn drain(gateway: &Gateway) {
    let address = gateway.address();
    gateway.drain();
    wait_until("the listener is closed", || {
        TcpStream::connect(address).is_err()
    });
}

/// Waits until a gateway that drains has exited. Returns how long that took.
fn time_to_exit(gateway: Gateway) -> Duration {
    let began = Instant::now();
    gateway.wait_for_exit();
    began.elapsed()
}

/// Opens a connection and sends `bytes` on it.
fn send(address: SocketAddr, bytes: &str) -> RawClient {
    let mut client = RawClient::connect(address);
    client.send(bytes);
    client
}

#[test]
fn an_idle_connection_gets_one_more_response_with_connection_close() {
    let upstream = Upstream::echo();
    let gateway = Gateway::proxying("").upstream(&upstream).start();
    let mut idle = send(gateway.address(), GET);
    assert_eq!(idle.response().header("connection"), None);
    let mut silent = RawClient::connect(gateway.address());
    drain(&gateway);
    for client in [&mut idle, &mut silent] {
        let response = client.send(GET).response();
        assert_eq!(response.status, 200);
        assert_eq!(response.header("connection"), Some("close"));
        client.assert_closed();
    }
    gateway.wait_for_exit();
}

#[test]
fn connections_without_a_request_delay_a_drain_by_about_one_second() {
    let upstream = Upstream::echo();
    let timeouts = "[server]\nheader_timeout = \"10m\"";
    let gateway = Gateway::proxying(timeouts).upstream(&upstream).start();
    let mut idle = send(gateway.address(), GET);
    idle.response();
    let _open = [
        idle,
        send(gateway.address(), ""),
        send(gateway.address(), "PRI * HTTP/2.0\r\n"),
    ];
    drain(&gateway);
    let took = time_to_exit(gateway);
    assert!(took < Duration::from_secs(8), "{took:?}");
}

#[test]
fn a_connection_above_max_connections_is_served_when_a_drain_starts() {
    let (upstream, permits) = Upstream::responding_on_permit();
    let server = "[server]\nworkers = 1\nmax_connections = 1\nmax_connections_per_client = 2";
    let gateway = Gateway::proxying(server).upstream(&upstream).start();
    let mut first = send(gateway.address(), GET);
    wait_until("upstream has the first request", || upstream.count() == 1);
    let mut queued = send(gateway.address(), GET);
    drain(&gateway);
    permits.add_permits(2);
    for client in [&mut first, &mut queued] {
        assert_eq!(client.response().body, b"late, but whole");
    }
    gateway.wait_for_exit();
}

#[tokio::test]
async fn drain_delay_keeps_the_listener_open_while_the_gateway_is_not_ready() {
    let upstream = Upstream::echo();
    let start = |delay: &str| {
        let server = format!("[server]\ndrain_delay = \"{delay}\"");
        let gateway = Gateway::proxying(&server).upstream(&upstream);
        gateway.admin().start()
    };
    let gateway = start("10m");
    gateway.drain();
    assert_eq!(gateway.admin().get("/readyz").send().await.status, 503);
    let response = gateway.client().get("/").send().await;
    assert_eq!((response.status, response.has("connection")), (200, false));

    let gateway = start("300ms");
    let began = Instant::now();
    gateway.drain();
    let client = gateway.client();
    eventually("the listener is closed", async || {
        client.connect().await.is_err()
    })
    .await;
    assert!(began.elapsed() >= Duration::from_millis(300));
    gateway.wait_for_exit();
}

#[tokio::test]
async fn http2_streams_opened_before_the_client_reads_goaway_get_responses() {
    let upstream = Upstream::echo();
    let gateway = Gateway::proxying("").upstream(&upstream).start();
    let mut client = FrameClient::connect(&gateway).await;
    client.get(1, "/").await;
    client.response(1).await;
    drain(&gateway);
    // The gateway has sent GOAWAY, which the client has not read.
    client.get(3, "/").await;
    client.get(5, "/").await;
    let (mut last_streams, mut complete) = (Vec::new(), Vec::new());
    while let Some(frame) = client.next().await {
        if frame.kind == GOAWAY {
            let last = frame.payload[..4].try_into().expect("there are 4 bytes");
            last_streams.push(u32::from_be_bytes(last));
        } else if is_end_of_response(&frame) {
            complete.push(frame.stream);
        }
    }
    complete.sort_unstable();
    assert_eq!(complete, [3, 5]);
    assert_eq!(last_streams.first(), Some(&(u32::MAX >> 1)));
    assert_eq!(last_streams.last(), Some(&5));
    let ended = tokio::task::spawn_blocking(|| gateway.wait_for_exit());
    ended.await.expect("the gateway exits");
}

fn is_end_of_response(frame: &Frame) -> bool {
    [DATA, HEADERS].contains(&frame.kind) && frame.flags & END_STREAM != 0
}

#[tokio::test]
async fn frames_after_the_close_of_an_http2_connection_do_not_destroy_its_last_response() {
    const LEN: usize = 512 << 10;
    let (upstream, permits) = Upstream::on_permit(|_| full(vec![b'x'; LEN]));
    let gateway = Gateway::proxying("").upstream(&upstream).start();
    let mut client = FrameClient::connect(&gateway).await;
    let window = u32::try_from(LEN).unwrap().to_be_bytes();
    // Setting 4 is the initial flow-control window of a stream.
    let settings = [&[0, 4][..], &window].concat();
    client.send(frame(SETTINGS, 0, 0, &settings)).await;
    client.send(frame(WINDOW_UPDATE, 0, 0, &window)).await;
    client.get(1, "/").await;
    eventually("upstream has the request", async || upstream.count() == 1).await;
    drain(&gateway);
    // After the second GOAWAY the gateway closes the connection as soon as it has written the response.
    let mut goaways = 0;
    while goaways < 2 {
        let frame = client.next().await.expect("the connection is open");
        goaways += usize::from(frame.kind == GOAWAY);
    }
    permits.add_permits(1);
    let increment = 1_u32.to_be_bytes();
    for _ in 0..50 {
        client.send(frame(WINDOW_UPDATE, 0, 0, &increment)).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut received = 0;
    while let Some(frame) = client.next().await {
        if frame.kind == DATA {
            received += frame.payload.len();
        }
    }
    assert_eq!(received, LEN);
}

#[test]
fn slow_clients_cannot_delay_a_drain_beyond_shutdown_grace() {
    const GRACE: Duration = Duration::from_secs(2);
    let upstream = Upstream::with(|received| async move {
        match &*received.target {
            "/large" => full(vec![b'x'; 64 << 20]),
            "/never" => std::future::pending().await,
            _ => full("ok"),
        }
    });
    let certificates = Certificates::for_localhost();
    let server = "[server]\nshutdown_grace = \"2s\"\nhandshake_timeout = \"10m\"\nheader_timeout = \"10m\"\n\
                  body_timeout = \"10m\"\nidle_timeout = \"10m\"\nwrite_timeout = \"10m\"";
    let tls = format!(
        "{server}\ntls = {{ cert = {:?}, key = {:?} }}",
        certificates.cert_file(),
        certificates.key_file()
    );
    let plain = Gateway::proxying(server).upstream(&upstream).start();
    let tls = Gateway::proxying(&tls).upstream(&upstream).start();
    let (plain_address, tls_address) = (plain.address(), tls.address());
    let head = |target: &str| format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
    let _open = [
        send(plain_address, ""),
        send(plain_address, "GET / HTTP/1.1\r\nHost:"),
        send(
            plain_address,
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf",
        ),
        send(plain_address, &head("/large")),
        send(plain_address, &head("/never")),
        send(plain_address, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        send(tls_address, ""),
        send(tls_address, "\u{16}\u{3}\u{1}"),
    ];
    wait_until("upstream has the requests", || upstream.count() >= 2);
    // One client sends a byte of its head every 10 ms, so it never stops making progress.
    let mut slow = send(plain_address, "GET / HTTP/1.1\r\n");
    std::thread::spawn(move || {
        while std::io::Write::write_all(&mut slow.stream, b"a").is_ok() {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    plain.drain();
    tls.drain();
    let exits = [plain, tls].map(|gateway| std::thread::spawn(|| time_to_exit(gateway)));
    for took in exits.map(|exit| exit.join().expect("the gateway exits")) {
        assert!(took < GRACE + Duration::from_secs(10), "{took:?}");
    }
}
