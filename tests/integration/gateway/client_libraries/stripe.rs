//! Tests with Stripe's official Python client, which generates the idempotency keys.
//!
//! The API behind the gateway ignores the idempotency key: it creates a customer for each request. In most tests, it
//! then fails: it responds late or with a 500, or resets the connection. The client retries a request up to twice.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::run;
use crate::support::raw_http;
use crate::support::{Gateway, Received, Upstream, eventually, reply};

/// Ids of the customers that the API has created, in the order of creation.
type Created = Arc<Mutex<Vec<String>>>;

/// Adds a customer to `created` and returns the customer in Stripe's JSON format.
fn create(created: &Created) -> Value {
    let mut created = created.lock();
    let id = format!("cus_{}", created.len() + 1);
    created.push(id.clone());
    json!({"id": id, "object": "customer", "email": "ann@example.com", "livemode": false})
}

/// Creates an API that creates a customer immediately and responds with `status` when the test adds a permit.
fn api(status: u16, response: fn(Value) -> Value) -> (Upstream, Created, Arc<Semaphore>) {
    let created = Created::default();
    let customers = Arc::clone(&created);
    let (upstream, permits) = Upstream::on_permit(move |_| {
        let customer = create(&customers);
        reply(status, response(customer).to_string())
    });
    (upstream, created, permits)
}

/// Starts a script that creates a customer through `gateway`. `timeout` is the timeout of each attempt, in seconds.
fn spawn_create(gateway: &Gateway, timeout: &'static str) -> tokio::task::JoinHandle<Value> {
    let url = format!("http://{}", gateway.address());
    tokio::task::spawn_blocking(move || run("stripe_create.py", &[&url, timeout]))
}

/// Returns the number of requests with an idempotency key that the gateway has received.
async fn requests_sent(gateway: &Gateway) -> f64 {
    let mut requests_sent = 0.0;
    for outcome in ["executed", "replayed", "waited", "unknown"] {
        let series = format!("idempotency_requests_total{{route=\"all\",outcome=\"{outcome}\"}}");
        requests_sent += gateway.metric(&series).await;
    }
    requests_sent
}

/// Sends the request `sent` again, with the same idempotency key and credentials.
async fn send_again(gateway: &Gateway, sent: &Received) -> crate::support::ClientResponse {
    let request = gateway.client().post(&sent.target);
    let request = request.key(&sent.header("idempotency-key"));
    let request = request.header("Authorization", &sent.header("authorization"));
    request.body(sent.body.clone()).send().await
}

#[tokio::test]
async fn a_call_that_succeeds_creates_one_customer() {
    let (upstream, created, permits) = api(200, |customer| customer);
    permits.add_permits(1);
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let result = spawn_create(&gateway, "20")
        .await
        .expect("the task does not panic");
    assert_eq!(result, json!({"id": "cus_1", "replayed": null}));
    assert_eq!(*created.lock(), ["cus_1"]);
    let sent = upstream.last();
    assert_eq!(sent.target, "/v1/customers");
    assert_eq!(sent.header("authorization"), "Bearer sk_test_x");
    assert_eq!(&sent.body[..], b"email=ann%40example.com");
    assert!(!sent.header("idempotency-key").is_empty());
}

#[tokio::test]
async fn an_api_slower_than_the_client_timeout_creates_one_customer() {
    let (upstream, created, permits) = api(200, |customer| customer);
    let gateway = Gateway::keyed("").admin().upstream(&upstream).start();
    let result = spawn_create(&gateway, "1.5")
        .await
        .expect("the task does not panic");
    assert_eq!(result["error"], "APIConnectionError", "{result}");
    assert!((requests_sent(&gateway).await - 3.0).abs() < 0.1);
    assert_eq!(*created.lock(), ["cus_1"]);
    // The response arrives after the client has given up. The gateway stores it and replays it to a request with the
    // same idempotency key.
    permits.add_permits(1);
    eventually("the gateway stores the response", async || {
        gateway.counts().completed == 1
    })
    .await;
    let replay = send_again(&gateway, &upstream.last()).await;
    assert!(replay.is_replay());
    assert_eq!(replay.json()["id"], "cus_1");
    assert_eq!(created.lock().len(), 1);
}

#[tokio::test]
async fn an_api_that_resets_the_connection_creates_one_customer_and_the_client_gets_409() {
    let created = Created::default();
    let customers = Arc::clone(&created);
    let upstream = raw_http::RawUpstream::scripted(move |connection| {
        if connection.request().is_some() {
            create(&customers);
            connection.reset_on_close();
        }
    });
    let gateway = Gateway::keyed("")
        .admin()
        .upstream_url(&format!("http://{}", upstream.address))
        .start();
    let result = spawn_create(&gateway, "20")
        .await
        .expect("the task does not panic");
    assert_eq!(result["status"], 409, "{result}");
    let message = result["message"].to_string();
    assert!(
        message.contains("Outcome unknown: "),
        "unexpected result of the client library: {result}"
    );
    assert!((requests_sent(&gateway).await - 3.0).abs() < 0.1);
    assert_eq!(*created.lock(), ["cus_1"]);
    assert_eq!(gateway.counts().unknown, 1);
}

#[tokio::test]
async fn a_500_after_the_creation_is_replayed_and_creates_one_customer() {
    let (upstream, created, permits) = api(
        500,
        |customer| json!({"error": {"type": "api_error", "message": format!("created {}", customer["id"])}}),
    );
    permits.add_permits(10);
    let gateway = Gateway::keyed("").admin().upstream(&upstream).start();
    let result = spawn_create(&gateway, "20")
        .await
        .expect("the task does not panic");
    assert_eq!(result["error"], "APIError", "{result}");
    assert_eq!(result["status"], 500);
    let message = result["message"]
        .as_str()
        .expect("the result has a message");
    assert!(
        message.contains("created \"cus_1\""),
        "unexpected result of the client library: {result}"
    );
    assert!((requests_sent(&gateway).await - 3.0).abs() < 0.1);
    assert_eq!(*created.lock(), ["cus_1"]);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_retry_after_a_client_timeout_gets_the_response_to_the_first_attempt() {
    let (upstream, created, permits) = api(200, |customer| customer);
    let gateway = Gateway::keyed("").admin().upstream(&upstream).start();
    let spawn_create = spawn_create(&gateway, "4");
    // The second attempt waits at the gateway for the result of the first, which the client has abandoned.
    gateway.wait_for_outcome("waited", 1).await;
    permits.add_permits(1);
    let result = spawn_create.await.expect("the task does not panic");
    assert_eq!(result, json!({"id": "cus_1", "replayed": "true"}));
    assert_eq!(*created.lock(), ["cus_1"]);
    assert_eq!(upstream.count(), 1);
}
