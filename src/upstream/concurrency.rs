//! How many requests an upstream is sent at once, found out from how long it takes.
//!
//! An upstream that gets more than it can do answers everything later and later, until nobody waits for
//! it. What it can do at once nobody knows to write down, and it changes. So the limit grows while
//! latency stays near what it is with little to do, and shrinks when it rises (how, `gradient` says); what
//! is beyond it is shed at once, for an answer the caller can still use. A fixed limit would be simpler, and
//! is what `min = max` gives. The count of requests in flight is one for all workers, on a cache line
//! they share: this stage is optional, and a limit a worker would be wrong where workers differ in load.
//! It does not queue, and it is not fair between callers: that is for the limits of routes to be.

mod gradient;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use self::gradient::Gradient;
use super::settings::ConcurrencySettings;
use crate::clock::Moment;

/// The adaptive limit of one upstream, shared by all workers.
#[derive(Debug)]
pub(crate) struct Concurrency {
    gauge: Gauge,
    /// What is learnt from, of so many requests one: a power of two, less one.
    thinning: AtomicU64,
    gradient: Mutex<Gradient>,
}

/// What everybody reads and writes.
#[derive(Debug)]
#[repr(align(128))]
struct Gauge {
    in_flight: AtomicU32,
    limit: AtomicU32,
    shed: AtomicU64,
}

/// A place among the requests in flight, to be given back with [`Concurrency::left`].
///
/// No guard that gives itself back: it would have to share in the ownership of the limit, and every request
/// would count a reference that all workers count.
#[derive(Debug)]
#[must_use = "the place is taken until it is given back"]
pub(crate) struct Entry(());

/// What became of a request, as far as it says anything about load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was responded.
    Responded {
        /// After this long, from when it was sent to the head of its answer.
        latency: Duration,
    },
    /// It took too long, or came back as a 5xx: there was too much to do.
    Dropped,
}

impl Concurrency {
    /// A limit as it is before anything was learnt.
    pub(crate) fn new(settings: ConcurrencySettings) -> Self {
        let gradient = Gradient::new(settings);
        Self {
            gauge: Gauge {
                in_flight: AtomicU32::new(0),
                limit: AtomicU32::new(gradient.limit()),
                shed: AtomicU64::new(0),
            },
            thinning: AtomicU64::new(0),
            gradient: Mutex::new(gradient),
        }
    }

    /// Takes a place among the requests in flight; `None`, and counted as shed, if all are taken.
    pub(crate) fn enter(&self) -> Option<Entry> {
        let limit = self.limit();
        let entered =
            self.gauge
                .in_flight
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                    (taken < limit).then(|| taken + 1)
                });
        if entered.is_err() {
            self.gauge.shed.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(Entry(()))
    }

    /// Gives a place back, and learns from what became of the request, where that says anything.
    pub(crate) fn left(&self, _: Entry, outcome: Option<Outcome>, now: Moment) {
        let in_flight = self.gauge.in_flight.fetch_sub(1, Ordering::Relaxed);
        if let Some(outcome) = outcome {
            self.learn(outcome, in_flight, now);
        }
    }

    /// Learns from a request that was one of so many. From a sample, where there are very many; and from none
    /// that would have to wait for another worker.
    fn learn(&self, outcome: Outcome, in_flight: u32, now: Moment) {
        // The low bits of the time are as good as chance, and cost nothing.
        let is_spared = now.as_nanos() & self.thinning.load(Ordering::Relaxed) != 0;
        if outcome != Outcome::Dropped && is_spared {
            return;
        }
        let Some(mut gradient) = self.gradient.try_lock() else {
            return;
        };
        if gradient.note(outcome, in_flight, now) {
            self.gauge.limit.store(gradient.limit(), Ordering::Relaxed);
            self.thinning.store(gradient.thinning(), Ordering::Relaxed);
        }
    }

    /// How many there may be in flight.
    pub(crate) fn limit(&self) -> u32 {
        self.gauge.limit.load(Ordering::Relaxed)
    }

    /// How many there are.
    pub(crate) fn in_flight(&self) -> u32 {
        self.gauge.in_flight.load(Ordering::Relaxed)
    }

    /// How many found no place, ever.
    pub(crate) fn shed(&self) -> u64 {
        self.gauge.shed.load(Ordering::Relaxed)
    }
}
