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

use crate::support::{Certificates, Gateway, Upstream};

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
