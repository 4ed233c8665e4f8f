//! What the tests are written in: an upstream, a gateway in front of it, a client that asks.
//!
//! Everything listens on port 0 of a loopback address and ends when it is dropped. An upstream and a gateway
//! live on threads of their own, so a test may block without holding them up.

mod certificates;
mod client;
mod gateway;
pub(crate) mod load;
mod nobody;
mod process;
mod upstream;

use std::time::{Duration, Instant};

pub(crate) use certificates::Certificates;
pub(crate) use client::{Answer, Asking, Client};
pub(crate) use gateway::{Gateway, Plan};
pub(crate) use nobody::{Deaf, Refusing};
pub(crate) use process::Process;
pub(crate) use upstream::{Mood, Received, Reply, Upstream, empty, full};

/// How long anything may take that is bound to happen; far more than a busy machine needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `condition` holds.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
