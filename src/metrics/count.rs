//! Counters and gauges that threads share without a lock.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicI64);

impl Count {
    /// Returns the value before.
    pub(crate) fn inc(&self) -> u64 {
        self.add(1)
    }

    pub(crate) fn add(&self, more: u64) -> u64 {
        self.0.fetch_add(more, Ordering::Relaxed)
    }

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
