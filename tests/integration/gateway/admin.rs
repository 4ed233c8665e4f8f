//! Tests of the admin API: liveness and readiness probes, metrics and access control.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::raw_http::{RawClient, RawResponse};
use crate::support::{Client, Gateway, Upstream};

/// Returns the method, path and description of each operation of the admin API.
fn operations(document: &Value) -> Vec<(String, String, &Value)> {
    let paths = document["paths"]
        .as_object()
        .expect("the document has paths");
    let operations = paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().expect("a path has operations");
        methods
            .iter()
            .map(move |(method, operation)| (method.to_uppercase(), path.clone(), operation))
    });
    operations.collect()
}

/// Returns the targets of all references in a JSON document.
fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(members) => {
            found.extend(members.get("$ref").and_then(Value::as_str).map(Into::into));
            members.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

async fn openapi(admin: &Client) -> Value {
    let request = admin.get("/admin/v1/openapi.json");
    let request = request.header("Authorization", "Bearer s3cret-s3cret");
    request.send().await.json()
}

/// Sends `head` to the admin listener exactly as given, and returns the response.
fn send_head(gateway: &Gateway, head: &str) -> RawResponse {
    let address = gateway.admin().address();
    let mut client = RawClient::connect(address);
    client.send(format!("{head}\r\n\r\n")).response()
}

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
        "tidegate_admitted_total{route=\"all\",limit=\"device\"} 2",
        "tidegate_rejected_total{route=\"all\",limit=\"device\"} 3",
        "tidegate_shadow_rejected_total{route=\"all\",limit=\"device\"} 0",
        "tidegate_request_duration_seconds_count{route=\"all\"} 2",
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
async fn with_a_token_metrics_require_it_and_probes_do_not() {
    let upstream = Upstream::echo();
    let gateway = Gateway::proxying("[admin]\nlisten = \"127.0.0.1:0\"\ntoken = \"s3cret-s3cret\"")
        .upstream(&upstream)
        .start();
    let admin = gateway.admin();
    assert_eq!(admin.get("/livez").send().await.status, 200);
    assert_eq!(admin.get("/readyz").send().await.status, 200);
    assert_eq!(admin.get("/").send().await.status, 200);
    for path in ["/metrics", "/none"] {
        let rejected = admin.get(path).send().await;
        assert_eq!(rejected.status, 401, "{path}");
        assert_eq!(rejected.header("www-authenticate"), "Bearer");
    }
    let with_token = |path| {
        let request = admin.get(path);
        request.header("Authorization", "bearer s3cret-s3cret")
    };
    assert_eq!(with_token("/metrics").send().await.status, 200);
    assert_eq!(with_token("/none").send().await.status, 404);
}

#[tokio::test]
async fn an_ambiguous_or_foreign_host_gets_no_metrics() {
    let upstream = Upstream::echo();
    let gateway = Gateway::proxying("").upstream(&upstream).admin().start();
    for (head, expected) in [
        ("GET /metrics HTTP/1.1\r\nHost: localhost", 200),
        (
            "GET http://localhost/metrics HTTP/1.1\r\nHost: localhost",
            200,
        ),
        (
            "GET http://localhost:80/metrics HTTP/1.1\r\nHost: localhost",
            200,
        ),
        ("GET http://localhost/metrics HTTP/1.0", 200),
        ("GET /metrics HTTP/1.1", 400),
        (
            "GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: localhost",
            400,
        ),
        (
            "GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: evil.example",
            400,
        ),
        (
            "GET http://evil.example/metrics HTTP/1.1\r\nHost: localhost",
            400,
        ),
        (
            "GET http://evil.example/metrics HTTP/1.1\r\nHost: evil.example",
            403,
        ),
        (
            "GET http://localhost/metrics HTTP/1.1\r\nHost: evil.example",
            400,
        ),
        ("GET http://evil.example/metrics HTTP/1.0", 403),
        ("GET /metrics HTTP/1.0", 403),
        ("GET / HTTP/1.1\r\nHost: evil.example", 403),
    ] {
        let response = send_head(&gateway, head);
        assert_eq!(response.status, expected, "{head:?}");
        let text = String::from_utf8_lossy(&response.body);
        assert_eq!(text.contains("tidegate_"), expected == 200, "{head:?}");
    }
}

#[tokio::test]
async fn probes_are_served_under_any_host() {
    let upstream = Upstream::echo();
    let gateway = Gateway::proxying("").upstream(&upstream).admin().start();
    for probe in ["/livez", "/readyz"] {
        for head in [
            "HTTP/1.0",
            "HTTP/1.0\r\nHost: 10.0.0.1:9090",
            "HTTP/1.1\r\nHost: 10.0.0.1:9090",
            "HTTP/1.1\r\nHost: pod.example",
            "HTTP/1.1\r\nHost:",
            "HTTP/1.1\r\nHost: a b",
        ] {
            for method in ["GET", "HEAD"] {
                let head = format!("{method} {probe} {head}\r\nConnection: close");
                let mut client = RawClient::connect(gateway.admin().address());
                let (response, _) = client.send(format!("{head}\r\n\r\n")).read_to_end();
                let response = String::from_utf8_lossy(&response);
                assert!(response.contains(" 200 OK\r\n"), "{head:?}: {response}");
            }
        }
    }
}

#[tokio::test]
async fn the_index_page_lists_the_endpoints_and_needs_no_token() {
    let upstream = Upstream::echo();
    for token in ["", "token = \"s3cret-s3cret\"\n"] {
        let gateway = Gateway::proxying(&format!("[admin]\nlisten = \"127.0.0.1:0\"\n{token}"))
            .upstream(&upstream)
            .start();
        let curl = gateway
            .admin()
            .get("/")
            .header("Accept", "*/*")
            .send()
            .await;
        assert_eq!(curl.header("content-type"), "text/plain; charset=utf-8");
        assert_eq!(curl.header("x-content-type-options"), "nosniff");
        assert_eq!(curl.header("cache-control"), "no-store");
        for path in [
            "/livez",
            "/readyz",
            "/metrics",
            "/admin/v1/idempotency",
            "/admin/v1/upstreams",
        ] {
            assert!(curl.text().contains(path), "{path}");
        }
        assert_eq!(gateway.admin().post("/").send().await.status, 405);
    }
}

#[tokio::test]
async fn metrics_count_admin_connections() {
    let upstream = Upstream::echo();
    let gateway = Gateway::proxying("").upstream(&upstream).admin().start();
    let _idle = RawClient::connect(gateway.admin().address());
    // The second connection is the one that reads the metrics.
    gateway.wait_for_metric("admin_connections", 2).await;
    gateway.wait_for_metric("admin_connections_max", 256).await;
    gateway
        .wait_for_metric("admin_connections_replaced_total", 0)
        .await;
}

/// Two types with one name would share a schema, and the other schema would then be without a reference.
#[tokio::test]
async fn operations_have_different_ids_and_each_schema_is_defined_and_used() {
    let upstream = Upstream::echo();
    let gateway = Gateway::proxying("").upstream(&upstream).admin().start();
    let document = openapi(&gateway.admin()).await;
    let mut ids = BTreeSet::new();
    for (_, path, operation) in operations(&document) {
        let id = operation["operationId"].as_str().expect("an id");
        assert!(
            ids.insert(id),
            "{path} has the id {id} of another operation"
        );
    }
    let schemas = document["components"]["schemas"].as_object();
    let schemas = schemas.expect("the document has schemas").keys();
    let schemas: BTreeSet<_> = schemas
        .map(|name| format!("#/components/schemas/{name}"))
        .collect();
    let mut used = BTreeSet::new();
    references(&document, &mut used);
    assert_eq!(used, schemas);
}

#[tokio::test]
async fn each_operation_rejects_other_origins_rebound_hosts_and_requests_without_the_token() {
    let upstream = Upstream::echo();
    for token in ["", "token = \"s3cret-s3cret\"\n"] {
        let gateway = Gateway::proxying(&format!("[admin]\nlisten = \"127.0.0.1:0\"\n{token}"))
            .upstream(&upstream)
            .start();
        let admin = gateway.admin();
        let document = openapi(&admin).await;
        let operations = operations(&document);
        assert!(operations.len() > 20, "{document}");
        for (method, path, _) in operations {
            let send = |name, value| admin.request(&method, &path).header(name, value).send();
            let page = send("Sec-Fetch-Site", "cross-site").await;
            assert_eq!(page.status, 403, "{method} {path}");
            let foreign = [
                ("Host", "rebound.example"),
                ("Origin", "https://evil.example"),
            ];
            for (name, value) in foreign {
                let response = send(name, value).await;
                let expected = if token.is_empty() { 403 } else { 401 };
                assert_eq!(response.status, expected, "{method} {path} {name}");
            }
        }
        assert_eq!(admin.get("/readyz").send().await.text(), "ready\n");
    }
}

#[tokio::test]
async fn a_path_or_a_body_that_no_endpoint_reads_gets_a_problem_document() {
    let upstream = Upstream::echo();
    let gateway = Gateway::proxying("").upstream(&upstream).admin().start();
    let admin = gateway.admin();
    for path in ["clients/%FF", "upstreams/%FF", "limits/%FF/top"] {
        let response = admin.get(&format!("/admin/v1/{path}")).send().await;
        assert_eq!(response.status, 400, "{path}");
        assert_eq!(response.problem(), "about:blank", "{path}");
    }
    let large = admin.post("/admin/v1/explain").body(vec![b' '; 3 << 20]);
    let response = large.send().await;
    assert_eq!(
        (response.status, &*response.problem()),
        (413, "about:blank")
    );
}
