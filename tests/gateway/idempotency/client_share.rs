//! One client cannot fill the key store for the others.

use tempfile::TempDir;

use super::{assert_execution, assert_problem, assert_replay_of, numbered_executions};
use crate::harness::{Client, ClientResponse, Gateway, GatewayBuilder};

/// Capacity of the store in keys. 80 % are 320 keys, and the share of one client is 40 keys.
const MAX_KEYS: usize = 400;

/// Keys that a single client can claim: one more than 80 % of the store.
const CLAIMED: usize = 321;

/// Whether each key has its own `Authorization` header, and thus its own scope.
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

/// Asserts that 600 keys of one client do not keep other clients from claiming keys.
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
                detail.contains("client holds 40 idempotency keys or more"),
                "{detail}"
            );
            assert!(
                (86_000..=86_400).contains(&response.retry_after()),
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
    let directory = TempDir::new().expect("a directory");
    assert_other_clients_can_claim(on_disk(&directory), Credentials::Invented).await;
}

#[tokio::test]
async fn keys_without_credentials_do_not_fill_the_disk_store_for_other_clients() {
    let directory = TempDir::new().expect("a directory");
    assert_other_clients_can_claim(on_disk(&directory), Credentials::Missing).await;
}
