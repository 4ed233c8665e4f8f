//! Tests of the limits on the number of idempotency keys (`max_keys_per_scope`, `max_keys`) and on the size of the
//! idempotency store (`max_bytes`).

use super::{assert_execution, numbered_executions};
use crate::support::{Client, Gateway, Process};

async fn send(client: &Client, key: usize) -> crate::support::ClientResponse {
    client.post("/").key(&format!("key-{key}")).send().await
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
