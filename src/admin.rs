//! Admin API: liveness and readiness probes, metrics, idempotency records, circuit breakers and runs of the lab.
//!
//! The admin listener runs on its own thread, so metric scrapes and client requests do not delay each other. An
//! application that embeds the stages has no listener and uses only `stage_metrics`.

#[cfg(feature = "gateway")]
mod auth;
#[cfg(feature = "gateway")]
mod config;
#[cfg(feature = "gateway")]
mod index;
#[cfg(feature = "gateway")]
mod keys;
#[cfg(feature = "lab")]
mod lab;
#[cfg(feature = "gateway")]
pub(crate) mod listener;
#[cfg(feature = "gateway")]
mod problem;
#[cfg(feature = "gateway")]
mod scrape;
#[cfg(feature = "gateway")]
mod serve;
pub(crate) mod stage_metrics;
#[cfg(feature = "gateway")]
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
