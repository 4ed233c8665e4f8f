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

use std::time::{Duration, Instant};

pub(crate) use certificates::Certificates;
pub(crate) use client::{Answer, Asking, Client};
pub(crate) use process::Process;
pub(crate) use upstream::{Received, Reply, Upstream};

/// How long anything may take that is bound to happen; far more than a busy machine needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `condition` holds, and says how long that took.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !condition().await {
        assert!(began.elapsed() < PATIENCE, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    began.elapsed()
}
