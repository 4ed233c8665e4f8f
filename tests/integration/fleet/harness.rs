//! The parts of the test harness that these tests use.

use std::time::{Duration, Instant};

pub(crate) use crate::support::{
    Certificates, Client, ClientRequest, ClientResponse, Process, Received, Reply, Upstream,
};

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
