//! A thousand at once under each of two hundred keys: two hundred executions.

use std::collections::HashMap;

use bytes::Bytes;

use crate::harness::{Gateway, Upstream, full};

const KEYS: usize = 200;
const DUPLICATES: usize = 1000;
const CONNECTIONS: usize = 10;

/// An upstream that answers with the key and the number of the execution, so that no two are alike.
fn telling_apart() -> Upstream {
    let executions = std::sync::atomic::AtomicUsize::new(0);
    Upstream::with(move |received| {
        let number = executions.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        async move {
            // Some duplicates come before it is answered, and some after.
            tokio::task::yield_now().await;
            let key = received.header("idempotency-key");
            let mut reply = full(format!("{key} was execution {number}"));
            let status = 200 + u16::try_from(number % 3).expect("small");
            *reply.status_mut() = status.try_into().expect("a status");
            reply
        }
    })
}

/// Sends all duplicates of a key at once, over several connections and so to several workers.
async fn crowd(gateway: &Gateway, upstream: &Upstream) {
    let client = gateway.client().h2();
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(client.keep_alive().await);
    }
    let mut answers: HashMap<usize, (u16, Bytes)> = HashMap::new();
    let mut executions = 0;
    for key in 0..KEYS {
        let name = format!("key-{key}");
        let asked: Vec<_> = (0..DUPLICATES)
            .map(|number| {
                let mut stream = connections[number % CONNECTIONS].stream_beside();
                let asking = client.post("/pay").key(&name).body("amount=1");
                tokio::spawn(async move { stream.send(asking).await })
            })
            .collect();
        for answer in asked {
            let answer = answer.await.expect("an answer");
            executions += usize::from(!answer.is_replay());
            let got = (answer.status, answer.body);
            let first = answers.entry(key).or_insert_with(|| got.clone());
            assert_eq!(got, *first, "{name}");
        }
        let (_, body) = &answers[&key];
        let said = format!("{name} was execution ");
        assert!(body.starts_with(said.as_bytes()), "{body:?}");
    }
    assert_eq!(upstream.count(), KEYS);
    assert_eq!(executions, KEYS, "each but the first is a replay");
    assert_eq!(gateway.counts().completed, KEYS as u64);
    assert_eq!(gateway.counts().in_progress, 0);
}

const MANY: &str = "[server]\nworkers = 2\nh2_max_streams = 128";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_thousand_duplicates_one_is_carried_out_in_memory() {
    let upstream = telling_apart();
    let gateway = Gateway::keyed("wait_timeout = \"1m\"")
        .and(MANY)
        .upstream(&upstream)
        .start();
    crowd(&gateway, &upstream).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_thousand_duplicates_one_is_carried_out_on_disk() {
    let directory = tempfile::tempdir().expect("a directory");
    let upstream = telling_apart();
    let gateway = Gateway::keyed("wait_timeout = \"1m\"")
        .and(MANY)
        .on_disk(directory.path())
        .upstream(&upstream)
        .start();
    crowd(&gateway, &upstream).await;
}
