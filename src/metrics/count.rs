//! Counters and gauges.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// A counter: a number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

/// A gauge: a number that grows and shrinks.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicI64);

impl Count {
    pub(crate) fn inc(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Returns the present count.
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Gauge {
    pub(crate) fn add(&self, more: i64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}
