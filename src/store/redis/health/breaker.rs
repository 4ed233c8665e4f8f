//! The circuit breaker for one part of the Redis store.
//!
//! Each part has its own breaker: a Redis without free memory can still replay records, and one that replies in 100 ms
//! is too slow for rate limits, but not for records. Requests only open a breaker, and the [monitor](super::Monitor)
//! closes it, so no request serves as a probe. The breaker of upstream servers has other rules (a failure ratio,
//! half-open requests, retry times).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::store::redis::settings::Nodes;
use crate::store::{Health, Part};

const FAILURES: u32 = 3;

/// A breaker that closes and opens again within this time has a relapse, and stays open for a minimum time.
const RELAPSE_WINDOW: Duration = Duration::from_secs(10);

/// Half of the minimum time after the first relapse. It doubles with each further relapse.
const MIN_OPEN: Duration = Duration::from_millis(50);

const LONGEST_MIN_OPEN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct StoreBreaker {
    part: Part,
    nodes: Arc<str>,
    open: AtomicBool,
    consecutive_failures: AtomicU32,
    all_failures: AtomicU64,
    history: Mutex<BreakerHistory>,
}

#[derive(Debug)]
struct BreakerHistory {
    /// `None` while the breaker is closed, and before the first probe.
    reason: Option<Arc<str>>,
    opened: Instant,
    closed: Option<Instant>,
    /// Number of consecutive relapses.
    relapses: u32,
}

impl StoreBreaker {
    /// The breaker is open until the first successful probe.
    pub(crate) fn new(part: Part, nodes: &Nodes) -> Self {
        Self {
            part,
            nodes: nodes.to_string().into(),
            open: AtomicBool::new(true),
            consecutive_failures: AtomicU32::new(0),
            all_failures: AtomicU64::new(0),
            history: Mutex::new(BreakerHistory {
                reason: None,
                opened: Instant::now(),
                closed: None,
                relapses: 0,
            }),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    pub(crate) fn degraded(&self) -> Option<Arc<str>> {
        let reason = || self.history.lock().reason.clone();
        let unknown = || "Redis has not responded since startup".into();
        self.is_open().then(|| reason().unwrap_or_else(unknown))
    }

    pub(crate) fn health(&self) -> Health {
        Health {
            part: self.part,
            degraded: self.degraded(),
            failures: self.all_failures.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn succeeded(&self) {
        // Read first: if every call wrote it, its cache line would move between the worker threads.
        if self.consecutive_failures.load(Ordering::Relaxed) != 0 {
            self.consecutive_failures.store(0, Ordering::Relaxed);
        }
    }

    pub(crate) fn count_failure(&self) {
        self.all_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns whether this call opened the breaker.
    pub(crate) fn failed(&self, reason: &dyn fmt::Display) -> bool {
        self.count_failure();
        let failures = self.consecutive_failures.fetch_add(1, Ordering::Relaxed) + 1;
        failures >= FAILURES && self.open(reason)
    }

    /// Returns whether the breaker was closed before.
    pub(crate) fn open(&self, reason: &dyn fmt::Display) -> bool {
        let mut history = self.history.lock();
        let was_closed = !self.open.swap(true, Ordering::AcqRel);
        // At startup, the breaker is open without a reason. So the first reason is logged too.
        if was_closed || history.reason.is_none() {
            let reason: Arc<str> = reason.to_string().into();
            self.log_degraded(&reason);
            let closed = history.closed;
            let relapsed = closed.is_some_and(|closed| closed.elapsed() < RELAPSE_WINDOW);
            history.relapses = if relapsed { history.relapses + 1 } else { 0 };
            history.opened = Instant::now();
            history.reason = Some(reason);
        }
        was_closed
    }

    /// For a reason that only an operator can correct. It replaces any other reason.
    pub(super) fn open_permanently(&self, reason: &dyn fmt::Display) {
        let mut history = self.history.lock();
        if history.reason.as_deref() != Some(&*reason.to_string()) {
            history.reason = None;
        }
        drop(history);
        self.open(reason);
    }

    /// The breaker can have to stay open after a relapse. Returns whether it is closed.
    pub(super) fn close(&self) -> bool {
        let mut history = self.history.lock();
        if !self.is_open() {
            return true;
        }
        let min_open = MIN_OPEN.saturating_mul(1 << history.relapses.min(10));
        if history.relapses > 0 && history.opened.elapsed() < min_open.min(LONGEST_MIN_OPEN) {
            return false;
        }
        self.consecutive_failures.store(0, Ordering::Relaxed);
        self.open.store(false, Ordering::Release);
        // At startup, the breaker is open although no failure was logged.
        if history.reason.take().is_some() {
            let users = match self.part {
                Part::Limits => "rate limits",
                Part::Records => "idempotency records",
            };
            tracing::info!("store recovered: circuit breaker closed, {users} use Redis again");
            history.closed = Some(Instant::now());
        }
        true
    }

    fn log_degraded(&self, reason: &str) {
        let nodes = &*self.nodes;
        let effect = match self.part {
            Part::Limits => "rate limits, so `on_store_error` of each limit applies",
            Part::Records => "idempotency records, so requests with an idempotency key get 503",
        };
        tracing::error!(
            nodes,
            reason,
            "store degraded: Redis cannot be used for {effect}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes() -> Nodes {
        Nodes::Cluster(Vec::new())
    }

    fn closed() -> StoreBreaker {
        let breaker = StoreBreaker::new(Part::Limits, &nodes());
        breaker.close();
        breaker
    }

    #[test]
    fn the_breaker_is_open_until_the_first_probe_succeeds() {
        let breaker = StoreBreaker::new(Part::Records, &nodes());
        assert!(breaker.is_open());
        breaker.close();
        assert!(!breaker.is_open());
    }

    #[test]
    fn three_consecutive_failures_open_the_breaker_and_a_success_resets_the_count() {
        let breaker = closed();
        for _ in 0..5 {
            assert!(!breaker.failed(&"late"));
            assert!(!breaker.failed(&"late"));
            breaker.succeeded();
        }
        assert!(!breaker.is_open());
        breaker.failed(&"late");
        breaker.failed(&"late");
        assert!(breaker.failed(&"late"));
        assert!(breaker.is_open());
        assert_eq!(breaker.degraded().as_deref(), Some("late"));
        assert_eq!(breaker.health().failures, 13);
        assert!(!breaker.failed(&"late"), "the breaker is already open");
    }

    #[test]
    fn the_first_reason_is_reported_until_the_breaker_closes() {
        let breaker = closed();
        assert!(breaker.open(&"gone"));
        assert!(!breaker.open(&"late"));
        assert_eq!(breaker.degraded().as_deref(), Some("gone"));
        breaker.close();
        assert_eq!(breaker.degraded(), None);
    }

    #[test]
    fn a_permanent_reason_replaces_an_earlier_one() {
        let breaker = StoreBreaker::new(Part::Records, &nodes());
        breaker.open(&"gone");
        breaker.open_permanently(&"format 1");
        assert_eq!(breaker.degraded().as_deref(), Some("format 1"));
        breaker.open(&"gone");
        assert_eq!(breaker.degraded().as_deref(), Some("format 1"));
        assert!(breaker.is_open());
    }

    #[test]
    fn a_breaker_that_relapses_stays_open_for_a_minimum_time() {
        let breaker = closed();
        breaker.open(&"gone");
        assert!(breaker.close());
        breaker.open(&"gone again");
        let since = Instant::now();
        while !breaker.close() {
            assert!(
                since.elapsed() < LONGEST_MIN_OPEN * 20,
                "the circuit breaker never closes"
            );
        }
        assert!(since.elapsed() >= MIN_OPEN, "{:?}", since.elapsed());
    }
}
