//! The test harness. It consists of modules of the harness of `tests/gateway`.
#![allow(dead_code, reason = "`tests/gateway` uses the other items")]

#[path = "../gateway/harness/certificates.rs"]
mod certificates;
#[path = "../gateway/harness/client.rs"]
mod client;
#[path = "../gateway/harness/process.rs"]
mod process;
#[path = "../gateway/harness/upstream.rs"]
mod upstream;

use std::path::PathBuf;
use std::time::{Duration, Instant};

pub(crate) use certificates::Certificates;
pub(crate) use client::{Client, ClientRequest as Request, ClientResponse as Response};
pub(crate) use process::Process;
pub(crate) use upstream::{Upstream, full};

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
