//! Test harness: an upstream, a gateway in front of it, and a client.
//!
//! Everything listens on port 0 of a loopback address and stops when it is dropped. Upstreams and gateways run on their
//! own threads, so a test can block without blocking them.

mod certificates;
mod client;
mod gateway;
pub(crate) mod load;
mod process;
mod unreachable;
mod upstream;

use std::time::{Duration, Instant};

pub(crate) use certificates::Certificates;
pub(crate) use client::{Client, ClientRequest, ClientResponse};
pub(crate) use gateway::{Gateway, GatewayBuilder};
pub(crate) use process::Process;
pub(crate) use unreachable::{FullBacklog, RefusingPort};
pub(crate) use upstream::{Received, Reply, StatusSwitch, Upstream, empty, full};

/// Time limit for an event that must happen. It is generous, so that a busy machine does not fail the test.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Waits until `condition` holds, and panics after [`TEST_TIMEOUT`].
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
