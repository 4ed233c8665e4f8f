use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, State};
use axum::response::Response;
use axum::routing::post;
use http::{HeaderName, HeaderValue, StatusCode};
use http_body_util::BodyExt as _;
use tokio::sync::Notify;
use tower::ServiceExt as _;

use super::*;
use crate::respond::Hint;
use crate::throttle::{KeyPart, Quota};

#[derive(Clone, Default)]
struct Bank {
    payments: Arc<AtomicU32>,
    open: Arc<Notify>,
}

async fn pay(State(bank): State<Bank>) -> String {
    let number = bank.payments.fetch_add(1, Ordering::Relaxed) + 1;
    bank.open.notified().await;
    format!("payment {number}")
}

fn app(embedded: &Embedded, bank: &Bank) -> Router {
    Router::new()
        .route("/payments", post(pay))
        .with_state(bank.clone())
        .layer(embedded.idempotency())
        .layer(embedded.throttle())
        .layer(embedded.identify())
}

fn embedded() -> Embedded {
    let quota = Quota::new(NonZeroU32::MIN, Duration::from_secs(1), 3).unwrap();
    let limits = vec![Limit::per_client("device", quota)];
    Embedded::new(limits, Some(KeyRule::default()))
}

fn request(peer: Option<&str>) -> Request<Body> {
    let mut request = Request::post("/payments")
        .header("idempotency-key", "k")
        .body(Body::from("100"))
        .unwrap();
    if let Some(peer) = peer {
        let peer: SocketAddr = peer.parse().unwrap();
        request.extensions_mut().insert(ConnectInfo(peer));
    }
    request
}

async fn text(response: Response) -> String {
    let body = response.into_body().collect().await.unwrap();
    String::from_utf8(body.to_bytes().into()).unwrap()
}

#[tokio::test]
async fn the_layers_replay_keys_and_reject_requests_beyond_the_limit() {
    let (embedded, bank) = (embedded(), Bank::default());
    let app = app(&embedded, &bank);
    for replayed in [false, true, true, true] {
        bank.open.notify_one();
        let response = app
            .clone()
            .oneshot(request(Some("192.0.2.1:9")))
            .await
            .unwrap();
        assert_eq!(
            response.headers().contains_key("idempotent-replayed"),
            replayed
        );
        assert!(response.headers().contains_key("ratelimit"));
        assert_eq!(text(response).await, "payment 1");
    }
    let rejected = app
        .clone()
        .oneshot(request(Some("192.0.2.1:9")))
        .await
        .unwrap();
    assert_eq!(rejected.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(rejected.headers()["x-should-retry"], "true");
    let wait = rejected.headers()["retry-after-ms"].to_str().unwrap();
    assert!((1..=1_000).contains(&wait.parse().unwrap()), "{wait} ms");
    bank.open.notify_one();
    let other = app.oneshot(request(Some("192.0.2.2:9"))).await.unwrap();
    assert_eq!(text(other).await, "payment 2");
}

#[tokio::test]
async fn finish_waits_for_an_execution_whose_client_disconnected() {
    let (embedded, bank) = (embedded(), Bank::default());
    let app = app(&embedded, &bank);
    let sending = tokio::spawn(app.clone().oneshot(request(Some("192.0.2.1:9"))));
    while bank.payments.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    sending.abort();
    assert!(sending.await.unwrap_err().is_cancelled());
    bank.open.notify_one();
    embedded.finish().await;
    let replayed = app.oneshot(request(Some("192.0.2.1:9"))).await.unwrap();
    assert_eq!(text(replayed).await, "payment 1");
}

#[tokio::test]
async fn rejections_of_both_layers_have_the_configured_hints_and_link() {
    let link = "<https://docs.example/>; rel=\"describedby\"";
    let settings = RespondSettings {
        hints: [Hint::Stripe].into_iter().collect(),
        docs: Some(HeaderValue::from_static(link)),
        ..RespondSettings::default()
    };
    let (embedded, bank) = (embedded().speaking(settings), Bank::default());
    let app = app(&embedded, &bank);
    for (key, status, hint) in [
        ("two words", 400, "false"),
        ("two words", 400, "false"),
        ("two words", 400, "false"),
        ("two words", 400, "false"),
        ("k", 429, "true"),
    ] {
        let mut request = request(Some("192.0.2.1:9"));
        let headers = request.headers_mut();
        headers.insert("idempotency-key", HeaderValue::from_static(key));
        let response = app.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), status);
        let headers = response.headers();
        assert_eq!(headers["stripe-should-retry"], hint);
        assert_eq!(headers["link"], link);
        assert!(!headers.contains_key("retry-after-ms"));
    }
}

/// The test sends two headers in all spellings that the gateway treats as equal. One header is in the key of the rate
/// limit, and the other is in the scope of idempotency keys.
#[tokio::test]
async fn equal_spellings_of_a_header_share_one_bucket_and_one_scope() {
    let quota = Quota::new(NonZeroU32::MIN, Duration::from_hours(1), 1).unwrap();
    let limit = Limit {
        key: [KeyPart::Header(HeaderName::from_static("x-tenant"))].into(),
        ..Limit::per_client("tenant", quota)
    };
    let embedded = Embedded::new(vec![limit], Some(KeyRule::default()));
    let bank = Bank::default();
    let app = app(&embedded, &bank);
    let status_of = async |lines: &[(&str, &str)]| {
        let mut request = request(Some("192.0.2.1:9"));
        for (name, value) in lines {
            let name: HeaderName = name.parse().unwrap();
            request.headers_mut().append(name, value.parse().unwrap());
        }
        bank.open.notify_one();
        let response: Response = app.clone().oneshot(request).await.unwrap();
        response.status().as_u16()
    };
    for (lines, expected) in [
        (&[("x-tenant", "real")][..], 200),
        (&[("x-tenant", "real"), ("authorization", "Bearer t")], 200),
        (&[("x-tenant", "real")], 429),
        (&[("x-tenant", " real")], 400),
        (&[("x-tenant", "real"), ("x-tenant", "n")], 400),
        (&[("x-tenant", "n"), ("connection", "x-tenant")], 200),
        (&[("x_tenant", "n"), ("authorization", "bearer  t")], 200),
        (&[("x-tenant", "")], 429),
        (&[("authorization", "a"), ("authorization", "b")], 400),
    ] {
        assert_eq!(status_of(lines).await, expected, "{lines:?}");
    }
    assert_eq!(bank.payments.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_request_without_a_peer_address_is_neither_limited_nor_replayed() {
    let (embedded, bank) = (embedded(), Bank::default());
    let app = app(&embedded, &bank);
    for number in 1..=6 {
        bank.open.notify_one();
        let response = app.clone().oneshot(request(None)).await.unwrap();
        assert_eq!(text(response).await, format!("payment {number}"));
    }
}

#[tokio::test]
async fn a_keyed_request_body_that_exceeds_the_buffer_bounds_gets_503() {
    for (total, status) in [(2, 503), (1_000, 200)] {
        let embedded = embedded().buffering(BufferBounds {
            total,
            per_client: total,
        });
        let bank = Bank::default();
        bank.open.notify_one();
        let response = app(&embedded, &bank).oneshot(request(Some("192.0.2.1:9")));
        let response = response.await.unwrap();
        assert_eq!(response.status(), status);
        let payments = u32::from(status == 200);
        assert_eq!(bank.payments.load(Ordering::Relaxed), payments);
    }
}

#[tokio::test]
async fn an_error_of_the_application_is_returned_and_leaves_the_key_unknown() {
    let embedded = embedded();
    let failing = tower::service_fn(|_: Request<Body>| async {
        Err::<Response, _>(std::io::Error::other("broken"))
    });
    let service = tower::ServiceBuilder::new()
        .layer(embedded.identify())
        .layer(embedded.idempotency())
        .service(failing);
    let first = service.clone().oneshot(request(Some("192.0.2.1:1"))).await;
    assert_eq!(first.unwrap_err().to_string(), "broken");
    let second = service.oneshot(request(Some("192.0.2.1:1"))).await.unwrap();
    assert_eq!(second.status(), StatusCode::CONFLICT);
}
