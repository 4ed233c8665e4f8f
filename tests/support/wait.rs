//! Deadlines of tests.

use std::time::{Duration, Instant};

/// How long a test waits for an event before it fails. The time is long, so that tests pass on a busy machine.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Interval between two checks of a condition.
const INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `condition` returns true, and returns how long that took. Panics after [`TEST_TIMEOUT`] with `what`, a
/// description of the condition.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !condition().await {
        assert!(
            began.elapsed() < TEST_TIMEOUT,
            "timed out waiting until {what}"
        );
        tokio::time::sleep(INTERVAL).await;
    }
    began.elapsed()
}

/// Blocks the thread until `condition` returns true. Panics after [`TEST_TIMEOUT`] with `what`, a description of the
/// condition.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        std::thread::sleep(INTERVAL);
    }
}
