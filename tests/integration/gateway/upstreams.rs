//! Tests with upstream servers that fail, stall, share the load or use TLS.

mod early_close;
mod idle_connections;
mod idle_python_servers;
mod responses;
mod uploads;

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use http_body_util::channel::Channel;

use crate::support::{Certificates, Gateway, RefusingPort, Upstream};

/// Returns a configuration with one worker and these servers. `more` contains additional lines for `[upstream.api]`.
fn config(servers: &str, more: &str) -> String {
    format!(
        "[server]\nworkers = 1\n[upstream.api]\nservers = {servers}\n{more}\n\
         [[route]]\nname = \"all\"\npath = \"/\"\n"
    )
}

/// Asserts that a timeout of `millis` ms ended a wait. The upper bound is far below all default timeouts that could end
/// the wait instead.
#[track_caller]
fn assert_waited(waited: Duration, millis: u64) {
    let timeout = Duration::from_millis(millis);
    assert!(
        (timeout..timeout + Duration::from_secs(4)).contains(&waited),
        "{waited:?}"
    );
}

const ONE: &str = "[\"{upstream}\"]";
const TWO: &str = "[\"{upstream}\", \"{upstream}\"]";

#[tokio::test]
async fn an_unreachable_upstream_returns_502() {
    let gateway = Gateway::with(&config(ONE, ""))
        .upstream_url(&RefusingPort::permanent_url())
        .admin()
        .start();
    let response = gateway
        .client()
        .get("/")
        .header("X-Request-Id", "r1")
        .send()
        .await;
    assert_eq!(response.status, 502);
    assert_eq!(response.problem(), "upstream-unavailable");
    assert_eq!(response.header("x-request-id"), "r1");
    // The response must not reveal the address of the server.
    assert!(
        !response.text().contains("127.0.0.1"),
        "{}",
        response.text()
    );
    let failures = "upstream_failures_total{upstream=\"api\",reason=\"connect\"}";
    assert!((gateway.metric(failures).await - 1.0).abs() < f64::EPSILON);
}

#[tokio::test]
async fn a_request_to_an_unreachable_upstream_is_charged() {
    let gateway = Gateway::limited("rate = \"1/h\"")
        .upstream_url(&RefusingPort::permanent_url())
        .start();
    assert_eq!(gateway.client().get("/").send().await.status, 502);
    assert_eq!(gateway.client().get("/").send().await.status, 429);
}

#[tokio::test]
async fn a_silent_upstream_returns_504_after_first_byte_timeout() {
    let upstream = Upstream::silent();
    let gateway = Gateway::with(&config(ONE, "first_byte_timeout = \"300ms\""))
        .upstream(&upstream)
        .start();
    let start = Instant::now();
    let response = gateway.client().get("/").send().await;
    let waited = start.elapsed();
    assert_eq!(response.status, 504);
    assert_eq!(response.problem(), "upstream-timeout");
    assert_waited(waited, 300);
}

#[tokio::test]
async fn timeout_bounds_the_wait_for_a_response() {
    let upstream = Upstream::silent();
    let gateway = Gateway::with(&config(ONE, "timeout = \"300ms\""))
        .upstream(&upstream)
        .start();
    let start = Instant::now();
    let response = gateway.client().get("/").send().await;
    assert_eq!(response.status, 504);
    assert_eq!(response.problem(), "upstream-timeout");
    assert_waited(start.elapsed(), 300);
}

#[tokio::test]
async fn timeout_truncates_an_endless_body() {
    let upstream = Upstream::with(|_| async {
        let (mut parts, body) = Channel::new(1);
        tokio::spawn(async move {
            while parts.send_data(Bytes::from_static(b"part ")).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        http::Response::new(body.boxed_unsync())
    });
    let gateway = Gateway::with(&config(ONE, "timeout = \"500ms\""))
        .upstream(&upstream)
        .start();
    let start = Instant::now();
    let response = gateway.client().get("/").try_send().await;
    assert!(
        response.is_err(),
        "the client got a truncated response as complete"
    );
    assert_waited(start.elapsed(), 500);
}

#[tokio::test]
async fn a_stalled_body_is_truncated_and_never_looks_complete() {
    let upstream = Upstream::sending_raw("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf ");
    let gateway = Gateway::with(&config(ONE, "idle_timeout = \"300ms\""))
        .upstream(&upstream)
        .start();
    for client in [gateway.client(), gateway.client().h2()] {
        let start = Instant::now();
        let response = client.get("/").try_send().await;
        assert!(response.is_err(), "{response:?}");
        assert_waited(start.elapsed(), 300);
    }
}

#[tokio::test]
async fn an_invalid_response_returns_502() {
    for bytes in [
        "hello\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    ] {
        let upstream = Upstream::sending_raw(bytes);
        let gateway = Gateway::with(&config(ONE, "")).upstream(&upstream).start();
        let response = gateway.client().get("/").send().await;
        assert_eq!(response.status, 502, "{bytes}");
        assert_eq!(response.problem(), "upstream-unavailable", "{bytes}");
    }
}

#[tokio::test]
async fn connections_are_reused() {
    let upstream = Upstream::echo();
    let gateway = Gateway::with(&config(ONE, "")).upstream(&upstream).start();
    for _ in 0..20 {
        let response = gateway.client().post("/").body("x").send().await;
        assert_eq!(response.status, 200);
    }
    assert!(upstream.connections() <= 2, "{}", upstream.connections());
}

#[tokio::test]
async fn no_request_fails_if_upstream_closes_after_each_response() {
    let upstream = Upstream::with(|received| async move {
        let mut reply = crate::support::full(received.body);
        reply
            .headers_mut()
            .insert("connection", http::HeaderValue::from_static("close"));
        reply
    });
    let gateway = Gateway::with(&config(ONE, "")).upstream(&upstream).start();
    for _ in 0..20 {
        let response = gateway.client().post("/").body("x").send().await;
        assert_eq!((response.status, response.text().as_str()), (200, "x"));
    }
    assert_eq!(upstream.count(), 20);
}

#[tokio::test]
async fn two_servers_share_the_load() {
    let (one, other) = (Upstream::echo(), Upstream::echo());
    let gateway = Gateway::with(&config(TWO, ""))
        .upstream(&one)
        .upstream(&other)
        .start();
    for _ in 0..200 {
        assert_eq!(gateway.client().get("/").send().await.status, 200);
    }
    assert_eq!(one.count() + other.count(), 200);
    // The gateway chooses servers at random. The minimum of 60 is more than five standard deviations below the expected
    // 100.
    assert!(
        one.count() >= 60 && other.count() >= 60,
        "the servers got {} and {} requests",
        one.count(),
        other.count()
    );
}

#[tokio::test]
async fn a_request_to_an_unreachable_server_fails_over() {
    let upstream = Upstream::echo();
    let gateway = Gateway::with(&config(TWO, ""))
        .upstream_url(&RefusingPort::permanent_url())
        .upstream(&upstream)
        .start();
    for _ in 0..6 {
        // If the gateway chooses the unreachable server first, it then sends the request to the other server. This is
        // safe even for a POST with a body, because no part of the request was sent to the unreachable server.
        let response = gateway.client().post("/").body("paid once").send().await;
        assert_eq!(response.status, 200);
        assert_eq!(response.json()["body"], "paid once");
    }
    assert_eq!(upstream.count(), 6);
}

#[tokio::test]
async fn a_request_that_was_sent_does_not_fail_over() {
    let broken = Upstream::sending_raw("junk\r\n\r\n");
    let healthy = Upstream::echo();
    let gateway = Gateway::with(&config(TWO, ""))
        .upstream(&broken)
        .upstream(&healthy)
        .start();
    // The loop ends when both servers have received a request. The gateway chooses servers at random, so this can take
    // several requests.
    let (mut sent, mut failed) = (0, 0);
    while sent < 100 && (failed == 0 || healthy.count() == 0) {
        sent += 1;
        failed += usize::from(gateway.client().post("/").send().await.status == 502);
    }
    assert!(failed > 0, "the broken server got no request");
    assert_eq!(healthy.count(), sent - failed);
}

#[tokio::test]
async fn an_upstream_with_tls_is_verified_with_ca_file() {
    let certificates = Certificates::for_localhost();
    let upstream = Upstream::echo_through_tls(&certificates);
    let ca_file = format!("ca_file = \"{}\"", certificates.cert_file().display());
    let gateway = Gateway::with(&config(ONE, &ca_file))
        .upstream(&upstream)
        .start();
    let request = gateway.client().get("/x").header("Host", "shop.example");
    let response = request.send().await;
    assert_eq!(response.status, 200, "{}", response.text());
    assert_eq!(response.json()["target"], "/x");
    // The gateway checks the certificate against the server's host name, but forwards the `Host` header of the client.
    assert_eq!(upstream.last().header("host"), "shop.example");
}

#[tokio::test]
async fn an_upstream_with_an_untrusted_certificate_gets_no_request() {
    let upstream = Upstream::echo_through_tls(&Certificates::for_localhost());
    let other = Certificates::for_localhost();
    let ca_file = format!("ca_file = \"{}\"", other.cert_file().display());
    let gateway = Gateway::with(&config(ONE, &ca_file))
        .upstream(&upstream)
        .start();
    let response = gateway.client().get("/").send().await;
    assert_eq!(response.status, 502);
    assert_eq!(upstream.count(), 0);
}
