//! Servers that fail, stall, share load or speak TLS.

mod early_close;
mod idle;
mod responses;
mod uploads;

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use http_body_util::channel::Channel;

use crate::harness::{Certificates, Gateway, Upstream};

/// A gateway of one worker to these servers, with `more` under `[upstream.api]`.
fn config(servers: &str, more: &str) -> String {
    format!(
        "[server]\nworkers = 1\n[upstream.api]\nservers = {servers}\n{more}\n\
         [[route]]\nname = \"all\"\npath = \"/\"\n"
    )
}

const ONE: &str = "[\"{upstream}\"]";
const TWO: &str = "[\"{upstream}\", \"{upstream}\"]";

#[tokio::test]
async fn an_upstream_that_is_not_there_is_a_502() {
    let gateway = Gateway::with(&config(ONE, ""))
        .upstream_url(&Upstream::gone())
        .admin()
        .start();
    let answer = gateway
        .client()
        .get("/")
        .header("X-Request-Id", "r1")
        .send()
        .await;
    assert_eq!(answer.status, 502);
    assert_eq!(answer.problem(), "upstream-unavailable");
    assert_eq!(answer.header("x-request-id"), "r1");
    // Nothing about the inside is told.
    assert!(!answer.text().contains("127.0.0.1"), "{}", answer.text());
    let failures = "upstream_failures_total{upstream=\"api\",reason=\"connect\"}";
    assert!((gateway.metric(failures).await - 1.0).abs() < f64::EPSILON);
}

#[tokio::test]
async fn an_upstream_that_is_not_there_costs_its_token_all_the_same() {
    let gateway = Gateway::limited("rate = \"1/h\"")
        .upstream_url(&Upstream::gone())
        .start();
    assert_eq!(gateway.client().get("/").send().await.status, 502);
    assert_eq!(gateway.client().get("/").send().await.status, 429);
}

#[tokio::test]
async fn an_upstream_that_says_nothing_is_a_504_when_its_time_is_up() {
    let upstream = Upstream::silent();
    let gateway = Gateway::with(&config(ONE, "first_byte_timeout = \"300ms\""))
        .upstream(&upstream)
        .start();
    let start = Instant::now();
    let answer = gateway.client().get("/").send().await;
    let waited = start.elapsed();
    assert_eq!(answer.status, 504);
    assert_eq!(answer.problem(), "upstream-timeout");
    assert!(waited >= Duration::from_millis(300), "{waited:?}");
    assert!(waited < Duration::from_secs(10), "{waited:?}");
}

#[tokio::test]
async fn the_total_bounds_the_wait_for_an_answer() {
    let upstream = Upstream::silent();
    let gateway = Gateway::with(&config(ONE, "timeout = \"300ms\""))
        .upstream(&upstream)
        .start();
    let start = Instant::now();
    let answer = gateway.client().get("/").send().await;
    assert_eq!(answer.status, 504);
    assert_eq!(answer.problem(), "upstream-timeout");
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn the_total_cuts_off_a_body_that_trickles_on() {
    let upstream = Upstream::with(|_| async {
        let (mut drops, body) = Channel::new(1);
        tokio::spawn(async move {
            while drops.send_data(Bytes::from_static(b"drop ")).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        http::Response::new(body.boxed_unsync())
    });
    let gateway = Gateway::with(&config(ONE, "timeout = \"500ms\""))
        .upstream(&upstream)
        .start();
    let start = Instant::now();
    let answer = gateway.client().get("/").try_send().await;
    assert!(answer.is_err(), "it never ends, yet it looked complete");
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn a_body_that_stalls_is_cut_off_and_never_looks_complete() {
    let upstream = Upstream::saying("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf ");
    let gateway = Gateway::with(&config(ONE, "idle_timeout = \"300ms\""))
        .upstream(&upstream)
        .start();
    for client in [gateway.client(), gateway.client().h2()] {
        let answer = client.get("/").try_send().await;
        assert!(answer.is_err(), "{answer:?}");
    }
}

#[tokio::test]
async fn an_answer_that_is_not_http_is_a_502() {
    for bytes in [
        "hello\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    ] {
        let upstream = Upstream::saying(bytes);
        let gateway = Gateway::with(&config(ONE, "")).upstream(&upstream).start();
        let answer = gateway.client().get("/").send().await;
        assert_eq!(answer.status, 502, "{bytes}");
        assert_eq!(answer.problem(), "upstream-unavailable", "{bytes}");
    }
}

#[tokio::test]
async fn connections_are_used_again() {
    let upstream = Upstream::echo();
    let gateway = Gateway::with(&config(ONE, "")).upstream(&upstream).start();
    for _ in 0..20 {
        let answer = gateway.client().post("/").body("x").send().await;
        assert_eq!(answer.status, 200);
    }
    assert!(upstream.connections() <= 2, "{}", upstream.connections());
}

#[tokio::test]
async fn a_connection_upstream_closed_meanwhile_is_not_noticed_by_clients() {
    let upstream = Upstream::with(|received| async move {
        let mut reply = crate::harness::full(received.body);
        reply
            .headers_mut()
            .insert("connection", http::HeaderValue::from_static("close"));
        reply
    });
    let gateway = Gateway::with(&config(ONE, "")).upstream(&upstream).start();
    for _ in 0..20 {
        let answer = gateway.client().post("/").body("x").send().await;
        assert_eq!((answer.status, answer.text().as_str()), (200, "x"));
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
    // They are drawn: a hundred each, by more than five standard deviations to either side.
    assert!(
        one.count() >= 60 && other.count() >= 60,
        "{} and {}",
        one.count(),
        other.count()
    );
}

#[tokio::test]
async fn a_server_that_is_not_there_is_passed_over() {
    let upstream = Upstream::echo();
    let gateway = Gateway::with(&config(TWO, ""))
        .upstream_url(&Upstream::gone())
        .upstream(&upstream)
        .start();
    for _ in 0..6 {
        // A body, too: nothing of it was sent to the other.
        let answer = gateway.client().post("/").body("paid once").send().await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.json()["body"], "paid once");
    }
    assert_eq!(upstream.count(), 6);
}

#[tokio::test]
async fn a_request_that_was_sent_is_not_sent_again() {
    let broken = Upstream::saying("junk\r\n\r\n");
    let fine = Upstream::echo();
    let gateway = Gateway::with(&config(TWO, ""))
        .upstream(&broken)
        .upstream(&fine)
        .start();
    // They are drawn, so it may take a while until each was asked.
    let (mut asked, mut failed) = (0, 0);
    while asked < 100 && (failed == 0 || fine.count() == 0) {
        asked += 1;
        failed += usize::from(gateway.client().post("/").send().await.status == 502);
    }
    assert!(failed > 0, "the broken server was never asked");
    assert_eq!(fine.count(), asked - failed);
}

#[tokio::test]
async fn an_upstream_behind_tls_is_checked_against_the_certificates_given() {
    let certificates = Certificates::for_localhost();
    let upstream = Upstream::echo_through_tls(&certificates);
    let ca_file = format!("ca_file = \"{}\"", certificates.cert_file().display());
    let gateway = Gateway::with(&config(ONE, &ca_file))
        .upstream(&upstream)
        .start();
    let asking = gateway.client().get("/x").header("Host", "shop.example");
    let answer = asking.send().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.json()["target"], "/x");
    // The certificate is the server's; the Host is the client's.
    assert_eq!(upstream.last().header("host"), "shop.example");
}

#[tokio::test]
async fn an_upstream_whose_certificate_nobody_vouches_for_gets_nothing() {
    let upstream = Upstream::echo_through_tls(&Certificates::for_localhost());
    let other = Certificates::for_localhost();
    let ca_file = format!("ca_file = \"{}\"", other.cert_file().display());
    let gateway = Gateway::with(&config(ONE, &ca_file))
        .upstream(&upstream)
        .start();
    let answer = gateway.client().get("/").send().await;
    assert_eq!(answer.status, 502);
    assert_eq!(upstream.count(), 0);
}
