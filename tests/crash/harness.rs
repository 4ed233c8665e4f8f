//! What these tests are written in: the parts of the gateway tests' harness that are of use here.
//!
//! Not all of them are used, and that is fine.
#![allow(
    dead_code,
    reason = "the harness is that of the gateway's tests, which use all of it"
)]

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
pub(crate) use client::{Answer, Asking, Client};
pub(crate) use process::Process;
pub(crate) use upstream::{Upstream, full};

/// How long anything may take that is bound to happen; far more than a busy machine needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The gateway under test: the one built with the tests, unless `CRASH_TIDEGATE` names another.
pub(crate) fn tidegate() -> PathBuf {
    match std::env::var_os("CRASH_TIDEGATE") {
        Some(path) => path.into(),
        None => env!("CARGO_BIN_EXE_tidegate").into(),
    }
}

/// Waits until `condition` holds.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
