//! Tests of the admin API: liveness and readiness probes, metrics and access control.

use crate::support::{Gateway, Upstream};

#[tokio::test]
async fn a_gateway_that_serves_is_alive_and_ready() {
    let upstream = Upstream::echo();
    let gateway = Gateway::proxying("").upstream(&upstream).admin().start();
    for probe in ["/livez", "/readyz"] {
        assert_eq!(
            gateway.admin().get(probe).send().await.status,
            200,
            "{probe}"
        );
    }
    assert_eq!(gateway.admin().get("/else").send().await.status, 404);
    // The listener for client requests does not serve admin paths, so it forwards `/metrics` to the upstream.
    let response = gateway.client().get("/metrics").send().await;
    assert_eq!(response.json()["target"], "/metrics");
}

#[tokio::test]
async fn metrics_count_requests_and_rejections() {
    let upstream = Upstream::echo();
    let gateway = Gateway::limited("rate = \"1/h\"\nburst = 1")
        .upstream(&upstream)
        .admin()
        .start();
    for expected in [200, 200, 429, 429, 429] {
        assert_eq!(gateway.client().get("/").send().await.status, expected);
    }
    assert_eq!(gateway.client().get("/%00").send().await.status, 400);
    let response = gateway.admin().get("/metrics").send().await;
    assert!(
        response
            .header("content-type")
            .starts_with("application/openmetrics-text")
    );
    let text = response.text();
    for line in [
        "tidegate_requests_total{route=\"all\",status=\"200\"} 2",
        "tidegate_requests_total{route=\"all\",status=\"429\"} 3",
        "tidegate_requests_total{route=\"(none)\",status=\"400\"} 1",
        "tidegate_refused_total{limit=\"device\"} 3",
        "tidegate_shadow_refused_total{limit=\"device\"} 0",
        "tidegate_buckets 1",
        "tidegate_buckets_max 1000000",
        "tidegate_upstream_in_flight{upstream=\"api\"} 0",
        "tidegate_upstream_latency_seconds_count{upstream=\"api\"} 2",
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "the metrics do not contain {line:?}:\n{text}"
        );
    }
    assert!(text.ends_with("# EOF\n"));
}

#[tokio::test]
async fn metric_labels_contain_configured_names_and_nothing_from_requests() {
    let upstream = Upstream::echo();
    let gateway = Gateway::with(
        r#"
        [client]
        trusted_proxies = ["127.0.0.1"]
        [upstream.api]
        servers = ["{upstream}"]
        [limit.device]
        rate = "1/h"
        key = "header:X-Odd"
        [[route]]
        name = "all"
        path = "/in"
        limits = ["device"]
        "#,
    )
    .upstream(&upstream)
    .admin()
    .start();
    let series = async || {
        let text = gateway.admin().get("/metrics").send().await.text();
        let names = text.lines().filter(|line| !line.starts_with('#'));
        let names = names.filter_map(|line| line.rsplit_once(' '));
        (
            names.map(|(name, _)| name.to_owned()).collect::<Vec<_>>(),
            text.clone(),
        )
    };
    let send = async |number: usize| {
        for path in ["in", "out"] {
            let request = gateway
                .client()
                .request("ODDMETHOD", &format!("/{path}/oddpath{number}"));
            request
                .header("X-Forwarded-For", &format!("203.0.113.{number}"))
                .header("X-Odd", &format!("oddvalue{number}"))
                .header("Host", &format!("oddhost{number}.example"))
                .send()
                .await;
        }
    };
    send(0).await;
    let (before, _) = series().await;
    for number in 1..20 {
        send(number).await;
    }
    let (after, text) = series().await;
    assert_eq!(before, after);
    for part in ["odd", "ODD", "203.0.113"] {
        assert!(
            !text.contains(part),
            "the metrics contain {part:?}:\n{text}"
        );
    }
}

#[tokio::test]
async fn dns_rebinding_and_foreign_origins_get_no_metrics() {
    let upstream = Upstream::echo();
    let gateway = Gateway::proxying("").upstream(&upstream).admin().start();
    let port = 9_090;
    for host in [
        "rebound.example",
        "rebound.example:9090",
        "localhost.evil.example",
        "10.0.0.1",
    ] {
        let response = gateway
            .admin()
            .get("/metrics")
            .header("Host", host)
            .send()
            .await;
        assert_eq!(response.status, 403, "{host}");
        assert!(!response.text().contains("tidegate_"));
    }
    let page = gateway
        .admin()
        .get("/metrics")
        .header("Origin", "https://evil.example");
    assert_eq!(page.send().await.status, 403);
    for host in [
        format!("localhost:{port}"),
        format!("127.0.0.1:{port}"),
        format!("[::1]:{port}"),
    ] {
        let response = gateway
            .admin()
            .get("/metrics")
            .header("Host", &host)
            .send()
            .await;
        assert_eq!(response.status, 200, "{host}");
    }
}

#[tokio::test]
async fn with_a_token_metrics_require_it_and_probes_do_not() {
    let upstream = Upstream::echo();
    let gateway = Gateway::proxying("[admin]\nlisten = \"127.0.0.1:0\"\ntoken = \"s3cret-s3cret\"")
        .upstream(&upstream)
        .start();
    let admin = gateway.admin();
    assert_eq!(admin.get("/livez").send().await.status, 200);
    assert_eq!(admin.get("/readyz").send().await.status, 200);
    let rejected = admin.get("/metrics").send().await.status;
    assert!(
        [401, 403].contains(&rejected),
        "unexpected status {rejected}"
    );
    let request = admin
        .get("/metrics")
        .header("Authorization", "Bearer s3cret-s3cret");
    assert_eq!(request.send().await.status, 200);
}
