//! A refusal for a key is told like any other: as the client asked for it, and so that browsers can read it.

use super::{held, numbering};
use crate::harness::{Answer, Gateway, Upstream, eventually};

const APP: &str = "https://app.example";

const CORS: &str = "[respond]\nheaders = { \"X-Served-By\" = \"edge\" }\n\
                    [respond.cors]\norigins = [\"https://app.example\"]";

fn gateway(upstream: &Upstream) -> Gateway {
    Gateway::keyed("max_request = \"1KiB\"")
        .and(CORS)
        .upstream(upstream)
        .start()
}

/// A refusal of each kind that needs no preparation but one request under `k1`.
async fn refusals(gateway: &Gateway, name: &str, value: &str) -> Vec<(u16, &'static str, Answer)> {
    let ask = |key: &str, body: String| {
        let asking = gateway.client().post("/").header(name, value);
        asking.key(key).body(body).send()
    };
    vec![
        (
            400,
            "Idempotency key invalid",
            ask("no key", String::new()).await,
        ),
        (
            413,
            "Request body too large",
            ask("k2", "x".repeat(2000)).await,
        ),
        (
            422,
            "Idempotency key reused",
            ask("k1", "other".into()).await,
        ),
    ]
}

#[tokio::test]
async fn the_body_of_a_refusal_for_a_key_follows_accept() {
    let upstream = numbering();
    let gateway = gateway(&upstream);
    assert_eq!(
        gateway.client().post("/").key("k1").send().await.status,
        201
    );
    for (status, title, answer) in refusals(&gateway, "Accept", "text/html").await {
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("content-type"), "text/html; charset=utf-8");
        let page = answer.text();
        assert!(
            page.starts_with("<!doctype html>") && page.contains(title),
            "{page}"
        );
    }
    for (status, title, answer) in refusals(&gateway, "Accept", "text/plain").await {
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("content-type"), "text/plain; charset=utf-8");
        assert!(answer.text().starts_with(title), "{}", answer.text());
    }
    for (status, title, answer) in refusals(&gateway, "Accept", "application/json").await {
        assert_eq!(answer.json()["status"], status);
        assert_eq!(answer.json()["title"], title);
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_browser_may_read_a_refusal_for_a_key_and_a_replay() {
    let upstream = numbering();
    let gateway = gateway(&upstream);
    let ask = || {
        let asking = gateway.client().post("/").key("k1");
        asking.header("Origin", APP).send()
    };
    for replayed in [false, true] {
        let answer = ask().await;
        assert_eq!(answer.is_replay(), replayed);
        assert_eq!(answer.header("access-control-allow-origin"), APP);
        assert!(!answer.has("x-served-by"), "that is for refusals");
    }
    for (status, _, answer) in refusals(&gateway, "Origin", APP).await {
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("access-control-allow-origin"), APP);
        assert_eq!(answer.header("vary"), "Origin");
        let exposed = answer.header("access-control-expose-headers");
        assert!(exposed.to_lowercase().contains("retry-after"), "{exposed}");
        assert_eq!(answer.header("x-served-by"), "edge");
        assert_eq!(answer.header("cache-control"), "no-store");
        assert!(answer.has("x-request-id"));
    }
    for (status, _, answer) in refusals(&gateway, "Origin", "https://evil.example").await {
        assert_eq!(answer.status, status);
        assert!(!answer.has("access-control-allow-origin"));
    }
}

#[tokio::test]
async fn leave_to_read_an_answer_is_not_replayed_to_another_origin() {
    let upstream = numbering();
    let gateway = gateway(&upstream);
    let ask = |origin: &str| {
        let asking = gateway.client().post("/").key("k1");
        asking.header("Origin", origin).send()
    };
    assert_eq!(ask(APP).await.header("access-control-allow-origin"), APP);
    let replay = ask("https://evil.example").await;
    assert!(replay.is_replay());
    assert!(!replay.has("access-control-allow-origin"), "{replay:?}");
}

#[tokio::test]
async fn when_to_come_back_is_said_in_every_form() {
    let (upstream, permits) = held();
    let gateway = Gateway::keyed("in_flight = \"conflict\"")
        .and(CORS)
        .upstream(&upstream)
        .start();
    let ask = |accept: &str| {
        let asking = gateway.client().post("/").key("k1");
        let asking = asking.header("Accept", accept);
        asking.header("Origin", APP).send()
    };
    let first = tokio::spawn(ask("*/*"));
    eventually("the first is running", || upstream.count() == 1).await;
    for (accept, kind) in [
        ("text/html", "text/html; charset=utf-8"),
        ("text/plain", "text/plain; charset=utf-8"),
        ("application/json", "application/problem+json"),
    ] {
        let answer = ask(accept).await;
        assert_eq!((answer.status, answer.retry_after()), (409, 1));
        assert_eq!(answer.header("content-type"), kind);
        assert!(answer.text().contains("Request in flight"), "{answer:?}");
        assert_eq!(answer.header("access-control-allow-origin"), APP);
    }
    permits.add_permits(1);
    assert_eq!(first.await.expect("an answer").status, 201);
}
