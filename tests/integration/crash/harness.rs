//! The parts of the test harness that these tests use.

use std::path::PathBuf;
use std::time::{Duration, Instant};

pub(crate) use crate::support::{
    Client, ClientRequest as Request, ClientResponse as Response, Process, Upstream, full,
};

/// Maximum duration of every wait in the tests. A busy machine needs far less.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the path of the gateway under test. This is `CRASH_TIDEGATE` if it is set, and otherwise the binary that is
/// built with the tests.
pub(crate) fn tidegate() -> PathBuf {
    match std::env::var_os("CRASH_TIDEGATE") {
        Some(path) => path.into(),
        None => env!("CARGO_BIN_EXE_tidegate").into(),
    }
}

/// Waits until `condition` returns `true`. Panics with `what` after [`TEST_TIMEOUT`].
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
