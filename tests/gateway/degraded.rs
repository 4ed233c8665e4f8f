//! A gateway whose store is in Redis, when Redis is there and when it is not.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::harness::{Gateway, Upstream};
use crate::redis::RedisServer;

fn gateway(server: &RedisServer, upstream: &Upstream, limit: &str) -> Gateway {
    let url = server.url();
    // A busy machine is not what this is about.
    Gateway::limited(limit)
        .and(&format!(
            "[store]\nbackend = \"redis\"\nurl = \"{url}\"\nlimits_timeout = \"5s\"\nrecords_timeout = \"5s\""
        ))
        .upstream(upstream)
        .admin()
        .start()
}

/// Waits until `/readyz` says this of the limits.
async fn until_ready(gateway: &Gateway, text: &str) -> String {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let answer = gateway.admin().get("/readyz").send().await;
        assert_eq!(answer.status, 200);
        if answer.text().starts_with(text) {
            return answer.text();
        }
        assert!(Instant::now() < deadline, "{}", answer.text());
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn two_gateways_hold_a_client_to_one_quota_and_say_when_they_cannot() {
    let server = RedisServer::start();
    let upstream = Upstream::echo();
    let gateways = [0; 2].map(|_| gateway(&server, &upstream, "rate = \"1/h\"\nburst = 3"));
    for turn in 0..4 {
        let answer = gateways[turn % 2].client().get("/").send().await;
        assert_eq!(answer.status, 200, "request {turn}");
    }
    for gateway in &gateways {
        let answer = gateway.client().get("/").send().await;
        assert_eq!(answer.status, 429);
        assert_eq!(answer.header("retry-after"), "3600");
        assert_eq!(until_ready(gateway, "ready").await, "ready\n");
    }

    server.kill();
    let gateway = &gateways[0];
    let text = until_ready(gateway, "ready, degraded: limits: ").await;
    assert!(text.contains("\nready, degraded: records: "), "{text}");
    // It knows what Redis told it.
    assert_eq!(gateway.client().get("/").send().await.status, 429);
    let metrics = gateway.admin().get("/metrics").send().await.text();
    assert!(metrics.contains("tidegate_store_degraded{part=\"limits\"} 1\n"));
    assert!(metrics.contains("tidegate_store_failures_total{part=\"limits\"} "));

    server.restart();
    until_ready(gateway, "ready\n").await;
    let metrics = gateway.admin().get("/metrics").send().await.text();
    assert!(metrics.contains("tidegate_store_degraded{part=\"limits\"} 0\n"));
    // It is another one, and everybody begins anew.
    let answer = gateway.client().get("/").send().await;
    assert_eq!(answer.header("ratelimit"), "\"device\";r=3;t=3600");
}

#[tokio::test]
async fn a_closed_limit_refuses_what_cannot_be_counted() {
    let server = RedisServer::start();
    let upstream = Upstream::echo();
    let limit = "rate = \"1/h\"\nburst = 3\non_store_error = \"closed\"";
    let gateway = gateway(&server, &upstream, limit);
    assert_eq!(gateway.client().get("/").send().await.status, 200);
    server.kill();
    let answer = gateway.client().get("/").send().await;
    assert_eq!(answer.status, 503);
    assert_eq!(
        answer.json()["type"],
        "urn:tidegate:problem:store-unavailable"
    );
}
