//! What an operator sees: probes, metrics.
//!
//! The admin listener runs beside the workers on a thread of its own, so a scrape never waits for
//! traffic nor traffic for a scrape.

pub mod listener;
pub mod metrics;

pub use metrics::{InFlight, KeyedMetrics, Metrics};
