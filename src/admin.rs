//! What an operator sees and may change: probes, metrics, the records of idempotency keys, the circuits of
//! upstreams.
//!
//! The admin listener runs beside the workers on a thread of its own, so a scrape never waits for
//! traffic nor traffic for a scrape.

mod auth;
mod keys;
pub(crate) mod listener;
mod problem;
mod scrape;
mod serving;
mod upstreams;

use std::time::Duration;

/// A time as JSON has it, in seconds, to the millisecond.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn seconds(duration: Duration) -> f64 {
    duration.as_millis() as f64 / 1e3
}
