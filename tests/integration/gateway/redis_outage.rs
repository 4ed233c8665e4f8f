//! Tests of a gateway with a Redis store, with and without a Redis outage.

use crate::support::redis::RedisServer;
use crate::support::{Gateway, Process, Upstream, eventually};

fn gateway(server: &RedisServer, upstream: &Upstream, limit: &str) -> Gateway {
    let url = server.url();
    // The timeouts are long, so that a slow machine does not look like a Redis outage.
    Gateway::limited(limit)
        .with_section(&format!(
            "[store]\nbackend = \"redis\"\nurl = \"{url}\"\nlimits_timeout = \"5s\"\nrecords_timeout = \"5s\""
        ))
        .upstream(upstream)
        .admin()
        .start()
}

/// Waits until the body of `/readyz` starts with `text`, and returns the body.
async fn wait_until_ready(gateway: &Gateway, text: &str) -> String {
    let mut body = String::new();
    eventually(&format!("/readyz starts with {text:?}"), async || {
        let response = gateway.admin().get("/readyz").send().await;
        assert_eq!(response.status, 200);
        body = response.text();
        body.starts_with(text)
    })
    .await;
    body
}

#[tokio::test]
async fn two_gateways_share_a_quota_and_report_when_redis_is_down() {
    let server = RedisServer::start();
    let upstream = Upstream::echo();
    let gateways = [0; 2].map(|_| gateway(&server, &upstream, "rate = \"1/h\"\nburst = 3"));
    for number in 0..4 {
        let response = gateways[number % 2].client().get("/").send().await;
        assert_eq!(response.status, 200, "request {number}");
    }
    for gateway in &gateways {
        let response = gateway.client().get("/").send().await;
        assert_eq!(response.status, 429);
        assert_eq!(response.header("retry-after"), "3600");
        assert_eq!(wait_until_ready(gateway, "ready").await, "ready\n");
    }

    server.kill();
    let gateway = &gateways[0];
    let text = wait_until_ready(gateway, "ready, degraded: limits: ").await;
    assert!(text.contains("\nready, degraded: records: "), "{text}");
    // The gateway has the last state of the bucket in memory.
    assert_eq!(gateway.client().get("/").send().await.status, 429);
    let metrics = gateway.admin().get("/metrics").send().await.text();
    assert!(metrics.contains("tidegate_store_degraded{part=\"limits\"} 1\n"));
    assert!(metrics.contains("tidegate_store_failures_total{part=\"limits\"} "));

    server.restart();
    wait_until_ready(gateway, "ready\n").await;
    let metrics = gateway.admin().get("/metrics").send().await.text();
    assert!(metrics.contains("tidegate_store_degraded{part=\"limits\"} 0\n"));
    // The restarted Redis contains no data, so the bucket has all four tokens again. This request takes one of them.
    let response = gateway.client().get("/").send().await;
    assert_eq!(response.header("ratelimit"), "\"device\";r=3;t=3600");
}

#[tokio::test]
async fn a_closed_limit_rejects_requests_while_redis_is_down() {
    let server = RedisServer::start();
    let upstream = Upstream::echo();
    let limit = "rate = \"1/h\"\nburst = 3\non_store_error = \"closed\"";
    let gateway = gateway(&server, &upstream, limit);
    assert_eq!(gateway.client().get("/").send().await.status, 200);
    server.kill();
    let response = gateway.client().get("/").send().await;
    assert_eq!(response.status, 503);
    assert_eq!(
        response.json()["type"],
        "urn:tidegate:problem:store-unavailable"
    );
}

#[tokio::test]
async fn a_redis_that_fills_up_is_reported() {
    let server = RedisServer::start();
    server.command(&["CONFIG", "SET", "maxmemory", "40mb"]);
    let gateway = Process::serving(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
         [store]\nbackend = \"redis\"\nurl = \"{}\"\n\
         [upstream.api]\nservers = [\"http://127.0.0.1:9\"]\n\
         [[route]]\nname = \"all\"\npath = \"/\"\nidempotency = {{}}\n",
        server.url()
    ))
    .start();
    assert_eq!(gateway.readyz().await, "ready\n");
    server.command(&["SETRANGE", "filler", "24000000", "x"]);
    let line = gateway.wait_for_line("Redis reached 50 % of its `maxmemory`");
    assert!(line.contains("full_in="), "{line}");
    eventually("/readyz states the use", async || {
        let text = gateway.readyz().await;
        text.contains("% of maxmemory of Redis in use, full in: ")
    })
    .await;
    assert_eq!(gateway.metric("redis_memory_bytes_max").await, 40 << 20);
    assert!(gateway.metric("redis_memory_bytes").await > 24_000_000);
}
