//! Tests of the format of rejections because of an idempotency key: content negotiation, CORS and `Retry-After`.

use super::{numbered_executions, numbered_on_permit};
use crate::support::{ClientResponse, Gateway, Upstream, eventually};

const APP: &str = "https://app.example";

const CORS: &str = "[respond]\nheaders = { \"X-Served-By\" = \"edge\" }\n\
                    [respond.cors]\norigins = [\"https://app.example\"]";

fn gateway(upstream: &Upstream) -> Gateway {
    Gateway::keyed("max_request = \"1KiB\"")
        .with_section(CORS)
        .upstream(upstream)
        .start()
}

/// Sends one request for each kind of rejection, with the header `name: value`. The test must have sent a request with
/// the idempotency key `k1` before. Returns status, title and response of each rejection.
async fn rejections(
    gateway: &Gateway,
    name: &str,
    value: &str,
) -> Vec<(u16, &'static str, ClientResponse)> {
    let send = |key: &str, body: String| {
        let request = gateway.client().post("/").header(name, value);
        request.key(key).body(body).send()
    };
    vec![
        (
            400,
            "Idempotency key invalid",
            send("no key", String::new()).await,
        ),
        (
            413,
            "Request body too large",
            send("k2", "x".repeat(2000)).await,
        ),
        (
            422,
            "Idempotency key reused",
            send("k1", "other".into()).await,
        ),
    ]
}

#[tokio::test]
async fn the_body_of_a_rejection_for_a_key_follows_accept() {
    let upstream = numbered_executions();
    let gateway = gateway(&upstream);
    assert_eq!(
        gateway.client().post("/").key("k1").send().await.status,
        201
    );
    for (status, title, response) in rejections(&gateway, "Accept", "text/html").await {
        assert_eq!(response.status, status);
        assert_eq!(response.header("content-type"), "text/html; charset=utf-8");
        let page = response.text();
        assert!(
            page.starts_with("<!doctype html>") && page.contains(title),
            "{page}"
        );
    }
    for (status, title, response) in rejections(&gateway, "Accept", "text/plain").await {
        assert_eq!(response.status, status);
        assert_eq!(response.header("content-type"), "text/plain; charset=utf-8");
        assert!(response.text().starts_with(title), "{}", response.text());
    }
    for (status, title, response) in rejections(&gateway, "Accept", "application/json").await {
        assert_eq!(response.json()["status"], status);
        assert_eq!(response.json()["title"], title);
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_browser_can_read_a_rejection_for_a_key_and_a_replay() {
    let upstream = numbered_executions();
    let gateway = gateway(&upstream);
    let send = || {
        let request = gateway.client().post("/").key("k1");
        request.header("Origin", APP).send()
    };
    for replayed in [false, true] {
        let response = send().await;
        assert_eq!(response.is_replay(), replayed);
        assert_eq!(response.header("access-control-allow-origin"), APP);
        assert!(
            !response.has("x-served-by"),
            "a replay must not have the header that is configured for rejections"
        );
    }
    for (status, _, response) in rejections(&gateway, "Origin", APP).await {
        assert_eq!(response.status, status);
        assert_eq!(response.header("access-control-allow-origin"), APP);
        assert_eq!(response.header("vary"), "Origin");
        let exposed = response.header("access-control-expose-headers");
        assert!(exposed.to_lowercase().contains("retry-after"), "{exposed}");
        assert_eq!(response.header("x-served-by"), "edge");
        assert_eq!(response.header("cache-control"), "no-store");
        assert!(response.has("x-request-id"));
    }
    for (status, _, response) in rejections(&gateway, "Origin", "https://evil.example").await {
        assert_eq!(response.status, status);
        assert!(!response.has("access-control-allow-origin"));
    }
}

#[tokio::test]
async fn cors_headers_are_not_replayed_to_another_origin() {
    let upstream = numbered_executions();
    let gateway = gateway(&upstream);
    let send = |origin: &str| {
        let request = gateway.client().post("/").key("k1");
        request.header("Origin", origin).send()
    };
    assert_eq!(send(APP).await.header("access-control-allow-origin"), APP);
    let replay = send("https://evil.example").await;
    assert!(replay.is_replay());
    assert!(!replay.has("access-control-allow-origin"), "{replay:?}");
}

#[tokio::test]
async fn retry_after_is_present_in_every_format() {
    let (upstream, permits) = numbered_on_permit();
    let gateway = Gateway::keyed("in_flight = \"conflict\"")
        .with_section(CORS)
        .upstream(&upstream)
        .start();
    let send = |accept: &str| {
        let request = gateway.client().post("/").key("k1");
        let request = request.header("Accept", accept);
        request.header("Origin", APP).send()
    };
    let first = tokio::spawn(send("*/*"));
    eventually("upstream has the first request", async || {
        upstream.count() == 1
    })
    .await;
    for (accept, kind) in [
        ("text/html", "text/html; charset=utf-8"),
        ("text/plain", "text/plain; charset=utf-8"),
        ("application/json", "application/problem+json"),
    ] {
        let response = send(accept).await;
        assert_eq!((response.status, response.retry_after()), (409, 1));
        assert_eq!(response.header("content-type"), kind);
        assert!(
            response.text().contains("Request in flight"),
            "{response:?}"
        );
        assert_eq!(response.header("access-control-allow-origin"), APP);
    }
    permits.add_permits(1);
    assert_eq!(
        first
            .await
            .expect("the request should get a response")
            .status,
        201
    );
}
