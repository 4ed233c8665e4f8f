//! Keys take room, and what happens where there is none left.

use tidegate::idempotency::RecordCounts;

use super::{held, is_execution, is_problem, is_replay_of, numbering};
use crate::harness::{Client, Gateway, Upstream, eventually, full};

async fn ask(client: &Client, key: usize) -> crate::harness::Answer {
    client.post("/").key(&format!("key-{key}")).send().await
}

#[tokio::test]
async fn a_client_with_too_many_keys_is_slowed_down_and_nobody_else() {
    let upstream = numbering();
    let gateway = Gateway::keyed("max_keys_per_scope = 100")
        .upstream(&upstream)
        .start();
    let client = gateway.client();
    let mut connection = client.keep_alive().await;
    for key in 1..=1000 {
        let asking = client.post("/").key(&format!("key-{key}"));
        let answer = connection.send(asking).await;
        if key <= 100 {
            is_execution(&answer, key);
        } else {
            is_problem(&answer, 429, "idempotency-keys-exhausted");
            // The first of them expires in a day.
            assert!(
                (86_000..=86_400).contains(&answer.retry_after()),
                "{answer:?}"
            );
        }
    }
    assert_eq!(upstream.count(), 100);
    assert_eq!(gateway.counts().completed, 100);
    // What it has is kept, and others have a hundred of their own.
    for key in [1, 50, 100] {
        is_replay_of(&ask(&client, key).await, key);
    }
    let other = client.clone().from("127.0.0.9");
    is_execution(&ask(&other, 1).await, 101);
    let credential = client
        .post("/")
        .key("key-1")
        .header("Authorization", "Bearer a");
    is_execution(&credential.send().await, 102);
    // Without a key there is nothing to run out of.
    is_execution(&client.post("/").send().await, 103);
}

#[tokio::test]
async fn a_key_that_was_released_takes_no_room() {
    let upstream = super::numbering_with(401);
    let gateway = Gateway::keyed("max_keys_per_scope = 2")
        .upstream(&upstream)
        .start();
    for number in 1..=10 {
        is_execution(&ask(&gateway.client(), number).await, number);
    }
    assert_eq!(gateway.counts(), RecordCounts::default());
}

#[tokio::test]
async fn what_is_in_progress_counts_among_a_clients_keys() {
    let (upstream, permits) = held();
    let gateway = Gateway::keyed("max_keys_per_scope = 2")
        .upstream(&upstream)
        .start();
    let client = gateway.client();
    let running: Vec<_> = (1..=2)
        .map(|key| {
            let client = client.clone();
            tokio::spawn(async move { ask(&client, key).await })
        })
        .collect();
    eventually("both are running", || upstream.count() == 2).await;
    let refused = ask(&client, 3).await;
    is_problem(&refused, 429, "idempotency-keys-exhausted");
    permits.add_permits(2);
    for answer in running {
        assert_eq!(answer.await.expect("an answer").status, 201);
    }
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn a_full_store_rejects_new_keys_and_replays_the_others() {
    let upstream = numbering();
    let gateway = Gateway::keyed("")
        .and("[store]\nmax_keys = 3")
        .upstream(&upstream)
        .start();
    let client = gateway.client();
    for key in 1..=3 {
        is_execution(&ask(&client, key).await, key);
    }
    let rejected = ask(&client.clone().from("127.0.0.2"), 4).await;
    is_problem(&rejected, 503, "store-unavailable");
    assert!(rejected.retry_after() >= 1);
    // The client that fills the store gets 429.
    let rejected = ask(&client, 4).await;
    is_problem(&rejected, 429, "idempotency-keys-exhausted");
    for key in 1..=3 {
        is_replay_of(&ask(&client, key).await, key);
    }
    is_execution(&client.post("/").send().await, 4);
}

#[tokio::test]
async fn answers_go_before_promises_and_nothing_runs_twice() {
    const KEYS: usize = 64;
    let upstream = Upstream::with(|received| async move {
        let body = [&received.body[..], &vec![b'.'; 8 << 10]].concat();
        full(body)
    });
    let gateway = Gateway::keyed("max_response = \"16KiB\"")
        .and("[store]\nmax_bytes = \"64KiB\"")
        .upstream(&upstream)
        .start();
    let client = gateway.client();
    let ask = |key: usize| {
        let asking = client.post("/").key(&format!("key-{key}"));
        asking.body(format!("{key};")).send()
    };
    for key in 0..KEYS {
        assert_eq!(ask(key).await.status, 200);
    }
    // To count them is also to see to it that they fit.
    let counts = gateway.counts();
    assert!(
        counts.evictions > 0 && counts.bytes <= 64 << 10,
        "{counts:?}"
    );
    assert_eq!(counts.completed + counts.tombstones, KEYS as u64);
    let mut replayed = 0;
    for key in 0..KEYS {
        let answer = ask(key).await;
        if answer.status == 200 {
            assert!(answer.is_replay());
            assert!(answer.text().starts_with(&format!("{key};")), "{answer:?}");
            replayed += 1;
        } else {
            is_problem(&answer, 409, "response-not-retained");
        }
    }
    assert_eq!(upstream.count(), KEYS);
    assert!((1..=8).contains(&replayed), "{replayed} of 8 KiB in 64 KiB");
}
