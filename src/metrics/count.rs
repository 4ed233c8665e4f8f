//! Counters and gauges.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// A counter, which only increases.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

/// A gauge, which increases and decreases.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicI64);

impl Count {
    pub(crate) fn inc(&self) {
        self.add(1);
    }

    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
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
