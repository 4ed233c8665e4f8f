//! Admin API: liveness and readiness probes, metrics, idempotency records, circuit breakers and runs of the lab.
//!
//! The admin listener runs on its own thread, so metric scrapes and client requests do not delay each other.

mod auth;
mod index;
mod keys;
mod lab;
pub(crate) mod listener;
mod problem;
mod scrape;
mod serve;
mod upstreams;

use std::time::Duration;

/// Converts a duration to seconds for JSON output. Fractions of a millisecond are cut off.
#[expect(
    clippy::cast_precision_loss,
    reason = "millisecond precision is sufficient"
)]
fn seconds(duration: Duration) -> f64 {
    duration.as_millis() as f64 / 1e3
}
