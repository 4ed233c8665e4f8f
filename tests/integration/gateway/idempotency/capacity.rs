//! Tests of the limits on the number of idempotency keys (`max_keys_per_scope`, `max_keys`) and on the size of the
//! idempotency store (`max_bytes`).

use tidegate::idempotency::RecordCounts;

use super::{
    assert_execution, assert_problem, assert_replay_of, numbered_executions, numbered_on_permit,
};
use crate::support::{Client, Gateway, Process, Upstream, eventually, full};

async fn send(client: &Client, key: usize) -> crate::support::ClientResponse {
    client.post("/").key(&format!("key-{key}")).send().await
}

#[tokio::test]
async fn max_keys_per_scope_rejects_new_keys_of_that_scope_only() {
    let upstream = numbered_executions();
    let gateway = Gateway::keyed("max_keys_per_scope = 100")
        .upstream(&upstream)
        .start();
    let client = gateway.client();
    let mut connection = client.keep_alive().await;
    for key in 1..=1000 {
        let request = client.post("/").key(&format!("key-{key}"));
        let response = connection.send(request).await;
        if key <= 100 {
            assert_execution(&response, key);
        } else {
            assert_problem(&response, 429, "idempotency-keys-exhausted");
            // `Retry-After` is almost one day, because the oldest idempotency key expires one day after its request.
            assert!(
                (86_000..=86_400).contains(&response.retry_after()),
                "{response:?}"
            );
        }
    }
    assert_eq!(upstream.count(), 100);
    assert_eq!(gateway.counts().completed, 100);
    // A scope with 100 keys still gets replays of its own responses, and every other scope can claim 100 keys.
    for key in [1, 50, 100] {
        assert_replay_of(&send(&client, key).await, key);
    }
    let other = client.clone().from("127.0.0.9");
    assert_execution(&send(&other, 1).await, 101);
    let credential = client
        .post("/")
        .key("key-1")
        .header("Authorization", "Bearer a");
    assert_execution(&credential.send().await, 102);
    // A request without an idempotency key is executed, because it does not count against `max_keys_per_scope`.
    assert_execution(&client.post("/").send().await, 103);
}

#[tokio::test]
async fn a_released_key_does_not_count() {
    let upstream = super::numbered_executions_with(401);
    let gateway = Gateway::keyed("max_keys_per_scope = 2")
        .upstream(&upstream)
        .start();
    for number in 1..=10 {
        assert_execution(&send(&gateway.client(), number).await, number);
    }
    assert_eq!(gateway.counts(), RecordCounts::default());
}

#[tokio::test]
async fn keys_in_progress_count() {
    let (upstream, permits) = numbered_on_permit();
    let gateway = Gateway::keyed("max_keys_per_scope = 2")
        .upstream(&upstream)
        .start();
    let client = gateway.client();
    let running: Vec<_> = (1..=2)
        .map(|key| {
            let client = client.clone();
            tokio::spawn(async move { send(&client, key).await })
        })
        .collect();
    eventually("upstream has both requests", async || upstream.count() == 2).await;
    let rejected = send(&client, 3).await;
    assert_problem(&rejected, 429, "idempotency-keys-exhausted");
    permits.add_permits(2);
    for response in running {
        assert_eq!(
            response
                .await
                .expect("the request should get a response")
                .status,
            201
        );
    }
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn a_full_store_rejects_new_keys_and_replays_the_others() {
    let upstream = numbered_executions();
    let gateway = Gateway::keyed("")
        .with_section("[store]\nmax_keys = 3")
        .upstream(&upstream)
        .start();
    let client = gateway.client();
    for key in 1..=3 {
        assert_execution(&send(&client, key).await, key);
    }
    let rejected = send(&client.clone().from("127.0.0.2"), 4).await;
    assert_problem(&rejected, 503, "store-unavailable");
    assert!(rejected.retry_after() >= 1);
    // The client whose own keys fill the idempotency store gets 429. Other clients get 503.
    let rejected = send(&client, 4).await;
    assert_problem(&rejected, 429, "idempotency-keys-exhausted");
    for key in 1..=3 {
        assert_replay_of(&send(&client, key).await, key);
    }
    assert_execution(&client.post("/").send().await, 4);
}

#[tokio::test]
async fn a_full_store_forgets_old_keys_and_readyz_and_metrics_mention_it() {
    let upstream = numbered_executions();
    let gateway = Gateway::keyed("")
        .with_section("[store]\nmax_keys = 10\nmin_ttl = \"1ms\"")
        .upstream(&upstream)
        .admin()
        .start();
    let client = gateway.client();
    let readyz = async || gateway.admin().get("/readyz").send().await.text();
    assert_eq!(readyz().await, "ready\n");
    for key in 1..=100 {
        assert_execution(&send(&client, key).await, key);
    }
    let text = readyz().await;
    assert!(
        text.starts_with("ready\nidempotency keys: 90 % of max_keys in use, full in: "),
        "{text}"
    );
    for (metric, value) in [("keys", 9), ("keys_max", 10), ("forgotten_total", 91)] {
        let found: u64 = gateway
            .admin()
            .metric(&format!("idempotency_{metric}"))
            .await;
        assert_eq!(found, value, "{metric}");
    }
}

#[test]
fn serve_warns_if_the_worst_case_exceeds_the_memory_limit() {
    for (max_keys, message) in [
        (1_000, "worst-case memory of this configuration"),
        (
            1_000_000_000_000_u64,
            "worst-case memory exceeds the memory limit",
        ),
    ] {
        let gateway = Process::serving(&format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nmax_buffered = \"64MiB\"\n[store]\nmax_keys = {max_keys}\n\
             [upstream.api]\nservers = [\"http://127.0.0.1:9\"]\n\
             [[route]]\nname = \"all\"\npath = \"/\"\nidempotency = {{}}\n"
        ))
        .start();
        gateway.wait_for_line(message);
        gateway.address();
    }
}

#[tokio::test]
async fn evicted_responses_become_tombstones_and_nothing_is_executed_twice() {
    const KEYS: usize = 64;
    let upstream = Upstream::with(|received| async move {
        let body = [&received.body[..], &vec![b'.'; 8 << 10]].concat();
        full(body)
    });
    let gateway = Gateway::keyed("max_response = \"16KiB\"")
        .with_section("[store]\nmax_bytes = \"64KiB\"")
        .upstream(&upstream)
        .start();
    let client = gateway.client();
    let send = |key: usize| {
        let request = client.post("/").key(&format!("key-{key}"));
        request.body(format!("{key};")).send()
    };
    for key in 0..KEYS {
        assert_eq!(send(key).await.status, 200);
    }
    // `counts()` also evicts responses, so the store is within `max_bytes` when it returns.
    let counts = gateway.counts();
    assert!(
        counts.evictions > 0 && counts.bytes <= 64 << 10,
        "{counts:?}"
    );
    assert_eq!(counts.completed + counts.tombstones, KEYS as u64);
    let mut replayed = 0;
    for key in 0..KEYS {
        let response = send(key).await;
        if response.status == 200 {
            assert!(response.is_replay());
            assert!(
                response.text().starts_with(&format!("{key};")),
                "{response:?}"
            );
            replayed += 1;
        } else {
            assert_problem(&response, 409, "response-not-retained");
        }
    }
    assert_eq!(upstream.count(), KEYS);
    assert!(
        (1..=8).contains(&replayed),
        "{replayed} responses of 8 KiB were replayed from a store of 64 KiB"
    );
}
