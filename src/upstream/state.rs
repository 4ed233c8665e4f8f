//! How the servers of an upstream stand, as all workers know it.
//!
//! Connections are each worker's own; what is learnt of a server by one worker holds for all: its
//! breaker, whether checks find it well, how many requests it has underway, and how many retries there may
//! still be. On a request's way that nothing goes wrong with, a worker writes only to lines of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::breaker::Breaker;
use super::budget::Budget;
use super::concurrency::Concurrency;
use super::{Server, Upstream};
use crate::clock::Moment;

/// The least share a server that came back begins with.
const SLOWEST_START: f64 = 0.1;

/// How the servers of one upstream stand.
#[derive(Debug)]
pub(crate) struct UpstreamState {
    /// The upstream.
    pub upstream: Arc<Upstream>,
    /// Its servers, in their order.
    pub servers: Box<[ServerState]>,
    /// How many retries there may be, where there are any.
    pub budget: Option<Budget>,
    /// How many requests there may be at once, where that is bounded.
    pub concurrency: Option<Concurrency>,
}

/// How one server stands.
#[derive(Debug)]
pub(crate) struct ServerState {
    /// The server.
    pub server: Server,
    /// Whether it is left alone.
    pub breaker: Breaker,
    /// Requests it has underway, by each worker.
    in_flight: Box<[Padded]>,
    /// Whether checks took it out.
    ejected: AtomicBool,
    /// When checks last let it in again, as nanoseconds; 0 for never.
    readmitted: AtomicU64,
    slow_start: Duration,
}

/// A count on a cache line of its own, as two cores that took turns at one would wait for each other.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded(AtomicU32);

impl UpstreamState {
    /// Of an upstream that nothing is known of, for this many workers.
    pub(crate) fn new(upstream: &Arc<Upstream>, workers: usize) -> Self {
        let servers = upstream.servers.iter();
        Self {
            servers: servers
                .map(|server| ServerState::new(server, upstream, workers))
                .collect(),
            budget: upstream
                .retry
                .map(|retry| Budget::new(retry.budget, workers)),
            concurrency: upstream.concurrency.map(Concurrency::new),
            upstream: Arc::clone(upstream),
        }
    }
}

impl ServerState {
    fn new(server: &Server, upstream: &Upstream, workers: usize) -> Self {
        Self {
            server: server.clone(),
            // As long as the server may take: what is slower than that is the client, over its request.
            breaker: Breaker::new(
                &upstream.breaker,
                upstream.timeouts.connect + upstream.timeouts.first_byte,
                workers,
            ),
            in_flight: (0..workers).map(|_| Padded::default()).collect(),
            ejected: AtomicBool::new(false),
            readmitted: AtomicU64::new(0),
            slow_start: upstream.slow_start,
        }
    }

    /// What it is called in logs, metrics and the admin API.
    pub(crate) fn name(&self) -> &str {
        self.server.authority.as_str()
    }

    /// One more request is underway, by this worker.
    pub(super) fn enter(&self, worker: usize) {
        self.in_flight[worker].0.fetch_add(1, Ordering::Relaxed);
    }

    /// One of this worker's requests is over.
    pub(super) fn leave(&self, worker: usize) {
        self.in_flight[worker].0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Requests underway, by all workers.
    pub(crate) fn in_flight(&self) -> u32 {
        let counts = self.in_flight.iter();
        counts.map(|count| count.0.load(Ordering::Relaxed)).sum()
    }

    /// Whether checks took it out.
    pub(crate) fn is_ejected(&self) -> bool {
        self.ejected.load(Ordering::Relaxed)
    }

    /// Checks take it out.
    pub(super) fn eject(&self) {
        self.ejected.store(true, Ordering::Relaxed);
    }

    /// Checks let it in again.
    pub(super) fn readmit(&self, now: Moment) {
        self.readmitted
            .store(now.as_nanos().max(1), Ordering::Relaxed);
        self.ejected.store(false, Ordering::Relaxed);
    }

    /// Its share of the load beside those of the others: less than its weight at first, when it came back.
    pub(super) fn share(&self, now: Moment) -> f64 {
        let weight = f64::from(self.server.weight.get());
        let readmitted = match self.readmitted.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Moment::from_nanos(nanos)),
        };
        let Some(back) = readmitted.max(self.breaker.recovered_at()) else {
            return weight;
        };
        let since = now.since(back);
        if since >= self.slow_start {
            return weight;
        }
        let ramp = since.as_secs_f64() / self.slow_start.as_secs_f64();
        weight * ramp.max(SLOWEST_START)
    }
}
