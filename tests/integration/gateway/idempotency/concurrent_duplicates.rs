//! Tests that the gateway executes one of a thousand concurrent duplicate requests, for each of two hundred idempotency
//! keys.

use std::collections::HashMap;

use bytes::Bytes;

use crate::support::{Gateway, Upstream, full};

const KEYS: usize = 200;
const DUPLICATES: usize = 1000;
const CONNECTIONS: usize = 10;

/// Creates an upstream whose responses contain the idempotency key and the number of the execution. The number makes
/// each response unique.
fn unique_responses() -> Upstream {
    let executions = std::sync::atomic::AtomicUsize::new(0);
    Upstream::with(move |received| {
        let number = executions.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        async move {
            // Yielding delays the response, so that some duplicate requests arrive before the response and others after
            // it.
            tokio::task::yield_now().await;
            let key = received.header("idempotency-key");
            let mut reply = full(format!("{key} was execution {number}"));
            let status =
                200 + u16::try_from(number % 3).expect("the status code should fit in 16 bits");
            *reply.status_mut() = status.try_into().expect("the status code should be valid");
            reply
        }
    })
}

/// Sends all duplicate requests of each idempotency key concurrently, over several connections on several workers.
/// Asserts that upstream receives one request for each key.
async fn assert_one_execution_per_key(gateway: &Gateway, upstream: &Upstream) {
    let client = gateway.client().h2();
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(client.keep_alive().await);
    }
    let mut responses: HashMap<usize, (u16, Bytes)> = HashMap::new();
    let mut executions = 0;
    for key in 0..KEYS {
        let name = format!("key-{key}");
        let pending: Vec<_> = (0..DUPLICATES)
            .map(|number| {
                let mut stream = connections[number % CONNECTIONS].open_stream();
                let request = client.post("/pay").key(&name).body("amount=1");
                tokio::spawn(async move { stream.send(request).await })
            })
            .collect();
        for response in pending {
            let response = response.await.expect("the request should get a response");
            executions += usize::from(!response.is_replay());
            let received = (response.status, response.body);
            let first = responses.entry(key).or_insert_with(|| received.clone());
            assert_eq!(received, *first, "{name}");
        }
        let (_, body) = &responses[&key];
        let expected_start = format!("{name} was execution ");
        assert!(body.starts_with(expected_start.as_bytes()), "{body:?}");
    }
    assert_eq!(upstream.count(), KEYS);
    assert_eq!(
        executions, KEYS,
        "every response except the first of each key should be a replay"
    );
    assert_eq!(gateway.counts().completed, KEYS as u64);
    assert_eq!(gateway.counts().in_progress, 0);
}

const TWO_WORKERS: &str = "[server]\nworkers = 2\nh2_max_streams = 128";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_thousand_duplicates_one_is_executed_in_memory() {
    let upstream = unique_responses();
    let gateway = Gateway::keyed("wait_timeout = \"1m\"")
        .with_section(TWO_WORKERS)
        .upstream(&upstream)
        .start();
    assert_one_execution_per_key(&gateway, &upstream).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_thousand_duplicates_one_is_executed_on_disk() {
    let directory = tempfile::tempdir().expect("the temporary directory should be created");
    let upstream = unique_responses();
    let gateway = Gateway::keyed("wait_timeout = \"1m\"")
        .with_section(TWO_WORKERS)
        .on_disk(directory.path())
        .upstream(&upstream)
        .start();
    assert_one_execution_per_key(&gateway, &upstream).await;
}
