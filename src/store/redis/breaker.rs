//! Whether Redis is asked at all.
//!
//! Limits and records each have a breaker, because they differ in how long they can wait and in what a
//! Redis must be able to do for them: one that is full can still replay, and one that answers in 100 ms
//! is too slow for limits and soon enough for records. Requests only ever open a breaker; it is the
//! [monitor](super::monitor) that finds out when it may be closed, so no request is spent on finding out.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::settings::Nodes;
use crate::store::Part;

/// Failures in a row after which nobody asks any more.
const FAILURES: u32 = 3;

/// One that is opened again this soon was closed in vain.
const STEADY: Duration = Duration::from_secs(10);

/// How long it is then kept open, and twice as long every time.
const RELAPSE: Duration = Duration::from_millis(50);

/// And never longer: a Redis that is back is to be used soon.
const LONGEST: Duration = Duration::from_secs(1);

/// Whether Redis is asked for one of its parts.
#[derive(Debug)]
pub(super) struct Breaker {
    part: Part,
    /// Where Redis is, for whoever reads that it fails.
    nodes: Arc<str>,
    open: AtomicBool,
    /// In a row.
    failures: AtomicU32,
    /// Ever.
    all_failures: AtomicU64,
    story: Mutex<Story>,
}

/// How it came to this.
#[derive(Debug)]
struct Story {
    /// Why it is open, where that is known.
    why: Option<Arc<str>>,
    opened: Instant,
    closed: Option<Instant>,
    /// How often in a row it was opened soon after it had been closed.
    relapses: u32,
}

impl Story {
    fn open(&mut self, why: Arc<str>) {
        let relapsed = self.closed.is_some_and(|closed| closed.elapsed() < STEADY);
        self.relapses = if relapsed { self.relapses + 1 } else { 0 };
        self.opened = Instant::now();
        self.why = Some(why);
    }

    /// Whether it has been open for long enough, given how often closing it was of no use.
    fn may_close(&self) -> bool {
        let doubled = RELAPSE.saturating_mul(1 << self.relapses.min(10));
        self.relapses == 0 || self.opened.elapsed() >= doubled.min(LONGEST)
    }
}

impl Breaker {
    /// A breaker that is open until Redis was first reached.
    pub(super) fn new(part: Part, nodes: &Nodes) -> Self {
        Self {
            part,
            nodes: nodes.to_string().into(),
            open: AtomicBool::new(true),
            failures: AtomicU32::new(0),
            all_failures: AtomicU64::new(0),
            story: Mutex::new(Story {
                why: None,
                opened: Instant::now(),
                closed: None,
                relapses: 0,
            }),
        }
    }

    /// Whether Redis is not to be asked.
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Why it is not, where that is known.
    pub(super) fn why(&self) -> Option<Arc<str>> {
        self.story.lock().why.clone()
    }

    /// Times Redis could not do what it was asked.
    pub(super) fn failures(&self) -> u64 {
        self.all_failures.load(Ordering::Relaxed)
    }

    /// Redis did what it was asked.
    pub(super) fn succeeded(&self) {
        // Looked at first: all workers would take turns at a line that nearly never changes.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a failure that does not open the breaker.
    pub(super) fn count_failure(&self) {
        self.all_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Redis did not do what it was asked; whether it is not asked any more because of that.
    pub(super) fn failed(&self, why: &dyn fmt::Display) -> bool {
        self.count_failure();
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        failures >= FAILURES && self.open(why)
    }

    /// Nobody asks from now on; whether that is news.
    pub(super) fn open(&self, why: &dyn fmt::Display) -> bool {
        let mut story = self.story.lock();
        let news = !self.open.swap(true, Ordering::AcqRel);
        // Before it was ever reached, the first reason is news, too.
        if news || story.why.is_none() {
            let why: Arc<str> = why.to_string().into();
            let nodes = &*self.nodes;
            match self.part {
                Part::Limits => tracing::error!(
                    nodes,
                    reason = &*why,
                    "the store is degraded: Redis does not decide on limits, and each is kept as its \
                     `on_store_error` says"
                ),
                Part::Records => tracing::error!(
                    nodes,
                    reason = &*why,
                    "the store is degraded: Redis does not keep idempotency keys, and requests with one \
                     are refused"
                ),
            }
            story.open(why);
        }
        news
    }

    /// Opens the breaker and logs why, also if it is open for another reason.
    pub(super) fn open_for(&self, why: &dyn fmt::Display) {
        let mut story = self.story.lock();
        if story.why.as_deref() != Some(&*why.to_string()) {
            story.why = None;
        }
        drop(story);
        self.open(why);
    }

    /// Redis seems to be well and is asked again, unless that was of no use just before; whether it is.
    pub(super) fn close(&self) -> bool {
        let mut story = self.story.lock();
        if !self.is_open() {
            return true;
        }
        if !story.may_close() {
            return false;
        }
        self.failures.store(0, Ordering::Relaxed);
        self.open.store(false, Ordering::Release);
        // The first time there is nothing that it could have failed at.
        if story.why.take().is_some() {
            match self.part {
                Part::Limits => tracing::info!("Redis decides on limits again"),
                Part::Records => tracing::info!("Redis keeps idempotency keys again"),
            }
            story.closed = Some(Instant::now());
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes() -> Nodes {
        Nodes::Cluster(Vec::new())
    }

    fn closed() -> Breaker {
        let breaker = Breaker::new(Part::Limits, &nodes());
        breaker.close();
        breaker
    }

    #[test]
    fn it_is_open_until_redis_was_reached() {
        let breaker = Breaker::new(Part::Records, &nodes());
        assert!(breaker.is_open());
        breaker.close();
        assert!(!breaker.is_open());
    }

    #[test]
    fn failures_in_a_row_open_it_and_a_success_between_them_does_not() {
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
        assert_eq!(breaker.why().as_deref(), Some("late"));
        assert_eq!(breaker.failures(), 13);
        assert!(!breaker.failed(&"late"), "it is open already");
    }

    #[test]
    fn the_first_reason_stays_until_it_is_closed() {
        let breaker = closed();
        assert!(breaker.open(&"gone"));
        assert!(!breaker.open(&"late"));
        assert_eq!(breaker.why().as_deref(), Some("gone"));
        breaker.close();
        assert_eq!(breaker.why(), None);
    }

    #[test]
    fn a_permanent_reason_replaces_an_earlier_one() {
        let breaker = Breaker::new(Part::Records, &nodes());
        breaker.open(&"gone");
        breaker.open_for(&"format 1");
        assert_eq!(breaker.why().as_deref(), Some("format 1"));
        breaker.open(&"gone");
        assert_eq!(breaker.why().as_deref(), Some("format 1"));
        assert!(breaker.is_open());
    }

    #[test]
    fn one_that_was_closed_in_vain_stays_open_for_a_while() {
        let breaker = closed();
        breaker.open(&"gone");
        assert!(breaker.close());
        breaker.open(&"gone again");
        let since = Instant::now();
        while !breaker.close() {
            assert!(since.elapsed() < LONGEST * 20, "never closed");
        }
        assert!(since.elapsed() >= RELAPSE, "{:?}", since.elapsed());
    }
}
