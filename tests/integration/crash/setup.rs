//! Gateways with a store on disk.

use std::path::Path;
use std::time::Duration;

use crate::support::{Client, ClientRequest, ClientResponse, Process, ProcessBuilder, TIDEGATE};

/// Maximum time between the start of a gateway and its readiness. A slower start fails the test.
const MAX_START: Duration = Duration::from_secs(5);

/// Prepares a gateway that forwards all paths to `upstream` and accepts idempotency keys. All processes that are started
/// from the result use the same store directory.
pub(crate) fn disk_gateway(upstream: &str) -> ProcessBuilder {
    disk_gateway_at(Path::new("store"), upstream)
}

/// Prepares a gateway like [`disk_gateway`], with the store directory `store`.
pub(crate) fn disk_gateway_at(store: &Path, upstream: &str) -> ProcessBuilder {
    Process::serving(&format!(
        r#"
        server = {{ listen = "127.0.0.1:0" }}
        admin = {{ listen = "127.0.0.1:0" }}
        log = {{ access = false }}
        store = {{ backend = "disk", path = "{}", max_keys = 10_000_000, max_bytes = "16GiB" }}
        upstream.api.servers = ["{upstream}"]
        [[route]]
        name = "all"
        path = "/"
        idempotency = {{ max_keys_per_scope = 10_000_000 }}
        "#,
        store.display()
    ))
    .binary_from_env("CRASH_TIDEGATE")
}

/// Creates a request with the idempotency key `key`. Its body is also `key`.
pub(crate) fn work_request(client: &Client, key: &str) -> ClientRequest {
    client.post("/work").key(key).body(key.to_owned())
}

/// Sends [`work_request`].
pub(crate) async fn post_work(client: &Client, key: &str) -> ClientResponse {
    work_request(client, key).send().await
}

impl ProcessBuilder {
    /// Starts a gateway and waits until it listens. Panics if this takes longer than [`MAX_START`].
    pub(crate) fn restart(&self) -> Process {
        self.start_within(MAX_START)
    }

    /// Starts the gateway that is built with the tests, with these failpoints. Other builds have no failpoints. Does not
    /// wait until the gateway listens.
    pub(crate) fn start_failing(&self, failpoints: &str) -> Process {
        let builder = self.clone().binary(TIDEGATE);
        builder.env("FAILPOINTS", failpoints).start()
    }
}
