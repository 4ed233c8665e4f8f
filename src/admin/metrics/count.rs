//! The two kinds of number there are.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

/// A number that comes and goes.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

impl Count {
    /// One more.
    pub fn inc(&self) {
        self.add(1);
    }

    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Returns the count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Gauge {
    pub(super) fn add(&self, more: i64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}
