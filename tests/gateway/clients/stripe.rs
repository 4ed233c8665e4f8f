//! Stripe's official Python client, with the keys it makes up itself.
//!
//! The API behind the gateway creates a customer each time it is asked, keys or no keys, and then fails in
//! one of the ways APIs do. The client repeats its request up to twice.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::run;
use crate::harness::{Gateway, Received, Upstream, eventually, full};
use crate::wire_raw;

/// Customers that were created.
type Created = Arc<Mutex<Vec<String>>>;

/// Creates a customer and describes it as Stripe does.
fn create(created: &Created) -> Value {
    let mut created = created.lock();
    let id = format!("cus_{}", created.len() + 1);
    created.push(id.clone());
    json!({"id": id, "object": "customer", "email": "ann@example.com", "livemode": false})
}

/// An API that creates a customer at once and answers when a permit is added, with this status.
fn api(status: u16, answer: fn(Value) -> Value) -> (Upstream, Created, Arc<Semaphore>) {
    let created = Created::default();
    let permits = Arc::new(Semaphore::new(0));
    let (customers, answers) = (Arc::clone(&created), Arc::clone(&permits));
    let upstream = Upstream::with(move |_| {
        let customer = create(&customers);
        let answers = Arc::clone(&answers);
        async move {
            answers.acquire().await.expect("never closed").forget();
            let mut reply = full(answer(customer).to_string());
            *reply.status_mut() = status.try_into().expect("a status");
            reply
        }
    });
    (upstream, created, permits)
}

/// Creates a customer through `gateway`, with this much patience in seconds for each try.
fn creating(gateway: &Gateway, timeout: &'static str) -> tokio::task::JoinHandle<Value> {
    let url = format!("http://{}", gateway.address());
    tokio::task::spawn_blocking(move || run("stripe_create.py", &[&url, timeout]))
}

/// How often the client has asked, as the gateway counts.
async fn asked(gateway: &Gateway) -> f64 {
    let mut asked = 0.0;
    for outcome in ["executed", "replayed", "waited", "unknown"] {
        let series = format!("idempotency_requests_total{{route=\"all\",outcome=\"{outcome}\"}}");
        asked += gateway.metric(&series).await;
    }
    asked
}

/// The same request once more, as `sent` shows it, from somebody who has the key and the credential.
async fn again(gateway: &Gateway, sent: &Received) -> crate::harness::Answer {
    let asking = gateway.client().post(&sent.target);
    let asking = asking.key(&sent.header("idempotency-key"));
    let asking = asking.header("Authorization", &sent.header("authorization"));
    asking.body(sent.body.clone()).send().await
}

#[tokio::test]
async fn a_call_that_succeeds_creates_one_customer() {
    let (upstream, created, permits) = api(200, |customer| customer);
    permits.add_permits(1);
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let result = creating(&gateway, "20").await.expect("no panic");
    assert_eq!(result, json!({"id": "cus_1", "replayed": null}));
    assert_eq!(*created.lock(), ["cus_1"]);
    let sent = upstream.last();
    assert_eq!(sent.target, "/v1/customers");
    assert_eq!(sent.header("authorization"), "Bearer sk_test_x");
    assert_eq!(&sent.body[..], b"email=ann%40example.com");
    assert!(!sent.header("idempotency-key").is_empty());
}

#[tokio::test]
async fn an_api_that_stalls_until_the_client_gives_up_has_created_one_customer() {
    let (upstream, created, permits) = api(200, |customer| customer);
    let gateway = Gateway::keyed("").admin().upstream(&upstream).start();
    let result = creating(&gateway, "1.5").await.expect("no panic");
    assert_eq!(result["error"], "APIConnectionError", "{result}");
    assert!((asked(&gateway).await - 3.0).abs() < 0.1);
    assert_eq!(*created.lock(), ["cus_1"]);
    // When it answers after all, that is recorded, and whoever asks under the key gets it.
    permits.add_permits(1);
    eventually("it is recorded", || gateway.counts().completed == 1).await;
    let replay = again(&gateway, &upstream.last()).await;
    assert!(replay.is_replay());
    assert_eq!(replay.json()["id"], "cus_1");
    assert_eq!(created.lock().len(), 1);
}

#[tokio::test]
async fn an_api_that_breaks_off_has_created_one_customer_and_the_client_is_told() {
    let created = Created::default();
    let customers = Arc::clone(&created);
    let upstream = wire_raw::Upstream::scripted(move |conversation| {
        if conversation.request().is_some() {
            create(&customers);
            conversation.will_reset();
        }
    });
    let gateway = Gateway::keyed("")
        .admin()
        .upstream_url(&format!("http://{}", upstream.address))
        .start();
    let result = creating(&gateway, "20").await.expect("no panic");
    assert_eq!(result["status"], 409, "{result}");
    let message = result["message"].to_string();
    assert!(message.contains("Outcome unknown: "), "{result}");
    assert!((asked(&gateway).await - 3.0).abs() < 0.1);
    assert_eq!(*created.lock(), ["cus_1"]);
    assert_eq!(gateway.counts().unknown, 1);
}

#[tokio::test]
async fn an_api_that_creates_and_then_fails_is_not_asked_again() {
    let (upstream, created, permits) = api(
        500,
        |customer| json!({"error": {"type": "api_error", "message": format!("created {}", customer["id"])}}),
    );
    permits.add_permits(10);
    let gateway = Gateway::keyed("").admin().upstream(&upstream).start();
    let result = creating(&gateway, "20").await.expect("no panic");
    assert_eq!(result["error"], "APIError", "{result}");
    assert_eq!(result["status"], 500);
    let message = result["message"].as_str().expect("a message");
    assert!(message.contains("created \"cus_1\""), "{result}");
    assert!((asked(&gateway).await - 3.0).abs() < 0.1);
    assert_eq!(*created.lock(), ["cus_1"]);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_client_that_gave_up_too_soon_gets_the_answer_when_it_asks_again() {
    let (upstream, created, permits) = api(200, |customer| customer);
    let gateway = Gateway::keyed("").admin().upstream(&upstream).start();
    let creating = creating(&gateway, "4");
    // The second try waits at the gateway for the first, which the client has given up.
    gateway.has_counted("waited", 1).await;
    permits.add_permits(1);
    let result = creating.await.expect("no panic");
    assert_eq!(result, json!({"id": "cus_1", "replayed": "true"}));
    assert_eq!(*created.lock(), ["cus_1"]);
    assert_eq!(upstream.count(), 1);
}
