//! Test harness: an upstream, a gateway in front of it, and a client.
//!
//! Upstreams and gateways listen on a free port of a loopback address and stop when they are dropped. They run on their
//! own threads, so they continue while a test blocks its thread.

mod certificates;
mod client;
#[allow(dead_code, reason = "the unit tests of the disk store use the rest")]
pub(crate) mod damage;
mod gateway;
pub(crate) mod load;
mod process;
pub(crate) mod raw_http;
#[allow(
    dead_code,
    unused_imports,
    reason = "the unit tests of the stores use the rest"
)]
pub(crate) mod redis;
#[allow(dead_code, reason = "the unit tests of the disk store use the rest")]
pub(crate) mod small_disk;
mod unreachable;
mod upstream;

use std::time::{Duration, Instant};

pub(crate) use certificates::Certificates;
pub(crate) use client::{Client, ClientRequest, ClientResponse};
pub(crate) use gateway::{Gateway, GatewayBuilder};
pub(crate) use process::Process;
pub(crate) use unreachable::{FullBacklog, RefusingPort};
pub(crate) use upstream::{Received, Reply, StatusSwitch, Upstream, empty, full};

/// How long a test waits for an event before it fails. The time is long, so that tests pass on a busy machine.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Waits until `condition` returns true. Panics after [`TEST_TIMEOUT`] with `what`, a description of the condition.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
