//! One client cannot fill the key store for the others.

use tempfile::TempDir;

use super::{is_execution, is_problem, is_replay_of, numbering};
use crate::harness::{Answer, Client, Gateway, Plan};

/// Keys of the store in these tests: 80 % are 320 keys, and the share of a client is 40 keys.
const MAX_KEYS: usize = 400;

/// Keys that one client claims alone: one more than 80 % of the store.
const CLAIMED: usize = 321;

/// Whether each key has an `Authorization` header, and so a scope, of its own.
#[derive(Clone, Copy)]
enum Credentials {
    Invented,
    Missing,
}

fn in_memory() -> Plan {
    Gateway::keyed("").and(&format!("[store]\nmax_keys = {MAX_KEYS}"))
}

fn on_disk(directory: &TempDir) -> Plan {
    let path = directory.path().display();
    Gateway::keyed("").and(&format!(
        "[store]\nbackend = \"disk\"\npath = \"{path}\"\nmax_keys = {MAX_KEYS}"
    ))
}

async fn send(client: &Client, key: usize, credentials: Credentials) -> Answer {
    let request = client.post("/").key(&format!("key-{key}"));
    match credentials {
        Credentials::Invented => request.header("Authorization", &format!("Bearer {key}")),
        Credentials::Missing => request,
    }
    .send()
    .await
}

/// Sends 600 keys from one client, and then some from others.
async fn other_clients_can_claim(plan: Plan, credentials: Credentials) {
    let upstream = numbering();
    let gateway = plan.upstream(&upstream).admin().start();
    let client = gateway.client();
    for key in 1..=600 {
        let response = send(&client, key, credentials).await;
        if key <= CLAIMED {
            is_execution(&response, key);
        } else {
            is_problem(&response, 429, "idempotency-keys-exhausted");
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
    gateway.comes_to(rejections, 600 - 321).await;
    gateway.has_counted("exhausted", 600 - 321).await;

    let mut executions = CLAIMED;
    for source in ["127.0.0.2", "127.0.0.3", "127.0.0.4"] {
        let other = client.clone().from(source);
        for key in 1001..=1020 {
            executions += 1;
            let response = send(&other, key, Credentials::Missing).await;
            is_execution(&response, executions);
        }
    }
    for key in [1, 2, 100, CLAIMED] {
        is_replay_of(&send(&client, key, credentials).await, key);
    }
    let response = send(&client, 601, credentials).await;
    is_problem(&response, 429, "idempotency-keys-exhausted");
}

#[tokio::test]
async fn invented_credentials_do_not_fill_the_memory_store_for_other_clients() {
    other_clients_can_claim(in_memory(), Credentials::Invented).await;
}

#[tokio::test]
async fn keys_without_credentials_do_not_fill_the_memory_store_for_other_clients() {
    other_clients_can_claim(in_memory(), Credentials::Missing).await;
}

#[tokio::test]
async fn invented_credentials_do_not_fill_the_disk_store_for_other_clients() {
    let directory = TempDir::new().expect("a directory");
    other_clients_can_claim(on_disk(&directory), Credentials::Invented).await;
}

#[tokio::test]
async fn keys_without_credentials_do_not_fill_the_disk_store_for_other_clients() {
    let directory = TempDir::new().expect("a directory");
    other_clients_can_claim(on_disk(&directory), Credentials::Missing).await;
}
