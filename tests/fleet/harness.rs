//! The parts of the test harness in `tests/gateway` that these tests use.
#![allow(dead_code, reason = "`tests/gateway` uses the rest")]

#[path = "../gateway/harness/certificates.rs"]
mod certificates;
#[path = "../gateway/harness/client.rs"]
mod client;
#[path = "../gateway/harness/process.rs"]
mod process;
#[path = "../gateway/harness/upstream.rs"]
mod upstream;

use std::time::{Duration, Instant};

pub(crate) use certificates::Certificates;
pub(crate) use client::{Client, ClientRequest, ClientResponse};
pub(crate) use process::Process;
pub(crate) use upstream::{Received, Reply, Upstream};

/// How long any expected event can take. This is far longer than a busy machine needs.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Waits until `condition` is true, and returns how long that took.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !condition().await {
        assert!(began.elapsed() < TEST_TIMEOUT, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    began.elapsed()
}
