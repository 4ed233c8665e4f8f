//! Tests that one client cannot fill the idempotency store and thereby block other clients.

use tempfile::TempDir;

use super::{assert_execution, assert_problem, assert_replay_of, numbered_executions};
use crate::support::{Client, ClientResponse, Gateway, GatewayBuilder};

/// Maximum number of idempotency keys in the store. While more than 80 % of them (320 keys) are in use, each client is
/// limited to a share of 40 keys.
const MAX_KEYS: usize = 400;

/// Number of idempotency keys that a single client can claim in an empty store: one more than 80 % of [`MAX_KEYS`].
/// After this claim, more than 80 % of the keys are in use, so the share of 40 keys applies and further claims fail.
const CLAIMED: usize = 321;

/// Whether requests have an `Authorization` header. `Invented`: each request has its own value, so each idempotency key
/// is in its own scope. `Missing`: no request has the header.
#[derive(Clone, Copy)]
enum Credentials {
    Invented,
    Missing,
}

fn in_memory() -> GatewayBuilder {
    Gateway::keyed("").with_section(&format!("[store]\nmax_keys = {MAX_KEYS}"))
}

fn on_disk(directory: &TempDir) -> GatewayBuilder {
    let path = directory.path().display();
    Gateway::keyed("").with_section(&format!(
        "[store]\nbackend = \"disk\"\npath = \"{path}\"\nmax_keys = {MAX_KEYS}"
    ))
}

async fn send(client: &Client, key: usize, credentials: Credentials) -> ClientResponse {
    let request = client.post("/").key(&format!("key-{key}"));
    match credentials {
        Credentials::Invented => request.header("Authorization", &format!("Bearer {key}")),
        Credentials::Missing => request,
    }
    .send()
    .await
}

/// Asserts that other clients can still claim idempotency keys after one client has tried to claim 600.
async fn assert_other_clients_can_claim(builder: GatewayBuilder, credentials: Credentials) {
    let upstream = numbered_executions();
    let gateway = builder.upstream(&upstream).admin().start();
    let client = gateway.client();
    for key in 1..=600 {
        let response = send(&client, key, credentials).await;
        if key <= CLAIMED {
            assert_execution(&response, key);
        } else {
            assert_problem(&response, 429, "idempotency-keys-exhausted");
            let detail = response.json()["detail"].to_string();
            assert!(
                detail.contains("client has 40 idempotency keys or more"),
                "{detail}"
            );
            // The oldest key can be forgotten after `min_ttl`, one hour.
            assert!(
                (3_500..=3_600).contains(&response.retry_after()),
                "{response:?}"
            );
        }
    }
    assert_eq!(upstream.count(), CLAIMED);
    let rejections = "idempotency_client_share_rejections_total{route=\"all\"}";
    gateway.wait_for_metric(rejections, 600 - 321).await;
    gateway.wait_for_outcome("exhausted", 600 - 321).await;

    let mut executions = CLAIMED;
    for source in ["127.0.0.2", "127.0.0.3", "127.0.0.4"] {
        let other = client.clone().from(source);
        for key in 1001..=1020 {
            executions += 1;
            let response = send(&other, key, Credentials::Missing).await;
            assert_execution(&response, executions);
        }
    }
    for key in [1, 2, 100, CLAIMED] {
        assert_replay_of(&send(&client, key, credentials).await, key);
    }
    let response = send(&client, 601, credentials).await;
    assert_problem(&response, 429, "idempotency-keys-exhausted");
}

#[tokio::test]
async fn invented_credentials_do_not_fill_the_memory_store_for_other_clients() {
    assert_other_clients_can_claim(in_memory(), Credentials::Invented).await;
}

#[tokio::test]
async fn keys_without_credentials_do_not_fill_the_memory_store_for_other_clients() {
    assert_other_clients_can_claim(in_memory(), Credentials::Missing).await;
}

#[tokio::test]
async fn invented_credentials_do_not_fill_the_disk_store_for_other_clients() {
    let directory = TempDir::new().expect("the temporary directory should be created");
    assert_other_clients_can_claim(on_disk(&directory), Credentials::Invented).await;
}

#[tokio::test]
async fn keys_without_credentials_do_not_fill_the_disk_store_for_other_clients() {
    let directory = TempDir::new().expect("the temporary directory should be created");
    assert_other_clients_can_claim(on_disk(&directory), Credentials::Missing).await;
}
