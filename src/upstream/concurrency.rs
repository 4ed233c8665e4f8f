//! Adaptive concurrency limit: the maximum number of requests in flight to an upstream, derived from its latency.
//!
//! The limit grows while latency stays near the latency without load, and shrinks when latency rises. A fixed limit is
//! hard to choose, because the capacity of an upstream is rarely known and changes. `min = max` gives one. Requests
//! above the limit are rejected immediately, before the client times out.
//!
//! All workers share one counter of requests in flight. This costs contention for one cache line, but a limit per
//! worker would be wrong if the load of the workers differs. The limit is not fair between clients: rate limits of
//! routes are.

mod gradient;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use self::gradient::Gradient;
use super::settings::ConcurrencySettings;
use crate::clock::Moment;

#[derive(Debug)]
pub(crate) struct Concurrency {
    counters: ConcurrencyCounters,
    gradient: Mutex<Gradient>,
}

/// Counters that every request reads and writes, on their own cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct ConcurrencyCounters {
    in_flight: AtomicU32,
    limit: AtomicU32,
    shed: AtomicU64,
}

/// One request in flight, until [`Concurrency::release`]. A dropped slot stays occupied: releasing it on drop would
/// require a reference to the limit, and each request would then write a reference count that all workers share.
#[derive(Debug)]
#[must_use = "the slot is occupied until it is released"]
pub(crate) struct ConcurrencySlot(());

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadSample {
    Responded {
        /// Of the response head, from the start of the attempt.
        latency: Duration,
    },
    /// A timeout, or the status 429, 503 or 504.
    Dropped,
}

impl Concurrency {
    pub(crate) fn new(settings: ConcurrencySettings) -> Self {
        let gradient = Gradient::new(settings);
        Self {
            counters: ConcurrencyCounters {
                in_flight: AtomicU32::new(0),
                limit: AtomicU32::new(gradient.limit()),
                shed: AtomicU64::new(0),
            },
            gradient: Mutex::new(gradient),
        }
    }

    /// Requests in flight keep their slots.
    pub(crate) fn reconfigure(&self, settings: ConcurrencySettings) {
        let mut gradient = self.gradient.lock();
        *gradient = Gradient::new(settings);
        self.counters
            .limit
            .store(gradient.limit(), Ordering::Relaxed);
    }

    pub(crate) fn acquire(&self) -> Option<ConcurrencySlot> {
        let limit = self.limit();
        let acquired = self.counters.in_flight.fetch_update(
            Ordering::Relaxed,
            Ordering::Relaxed,
            |in_flight| (in_flight < limit).then(|| in_flight + 1),
        );
        if acquired.is_err() {
            self.counters.shed.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(ConcurrencySlot(()))
    }

    /// A `sample` of `None` says nothing about the load of the upstream.
    pub(crate) fn release(&self, _: ConcurrencySlot, sample: Option<LoadSample>, now: Moment) {
        let in_flight = self.counters.in_flight.fetch_sub(1, Ordering::Relaxed);
        if let Some(sample) = sample {
            self.record(sample, in_flight, now);
        }
    }

    /// `in_flight` includes the request that ended. The result is not recorded if another worker has locked the
    /// gradient.
    fn record(&self, sample: LoadSample, in_flight: u32, now: Moment) {
        let Some(mut gradient) = self.gradient.try_lock() else {
            return;
        };
        if gradient.record(sample, in_flight, now) {
            self.counters
                .limit
                .store(gradient.limit(), Ordering::Relaxed);
        }
    }

    pub(crate) fn limit(&self) -> u32 {
        self.counters.limit.load(Ordering::Relaxed)
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.counters.in_flight.load(Ordering::Relaxed)
    }

    pub(crate) fn shed(&self) -> u64 {
        self.counters.shed.load(Ordering::Relaxed)
    }
}
