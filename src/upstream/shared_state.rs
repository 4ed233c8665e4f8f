//! State of an upstream and its servers that all workers share. Each worker has its own connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::addresses::Addresses;
use super::breaker::Breaker;
use super::budget::Budget;
use super::concurrency::Concurrency;
use super::{Server, Upstream};
use crate::clock::Moment;

/// Fraction of the configured weight with which a recovered server starts.
const SLOW_START_MINIMUM: f64 = 0.1;

#[derive(Debug)]
pub(crate) struct UpstreamState {
    pub upstream: Arc<Upstream>,
    /// In the order of the configuration.
    pub servers: Box<[ServerState]>,
    pub budget: Option<Budget>,
    pub concurrency: Option<Arc<Concurrency>>,
    first_byte: Duration,
}

#[derive(Debug)]
pub(crate) struct ServerState {
    pub server: Server,
    pub addresses: Arc<Addresses>,
    pub breaker: Breaker,
    /// For each worker.
    in_flight: Arc<[PaddedCounter]>,
    ejection: Arc<Ejection>,
    slow_start: Duration,
}

#[derive(Debug, Default)]
struct Ejection {
    is_active: AtomicBool,
    /// In nanoseconds of the clock. 0 means never.
    restored_at: AtomicU64,
}

/// On its own cache lines, so that workers do not contend for one: 128 bytes, because many CPUs prefetch pairs of
/// 64-byte cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct PaddedCounter(AtomicU32);

impl UpstreamState {
    /// `first_byte` is the longest `first_byte_timeout` of the routes to this upstream.
    pub(crate) fn new(upstream: &Arc<Upstream>, first_byte: Duration, workers: usize) -> Self {
        let servers = upstream.servers.iter();
        Self {
            servers: servers
                .map(|server| ServerState::new(server, upstream, first_byte, workers))
                .collect(),
            budget: upstream.retry.map(|retry| Budget::new(retry.budget)),
            concurrency: upstream.concurrency.map(Concurrency::new).map(Arc::new),
            upstream: Arc::clone(upstream),
            first_byte,
        }
    }

    /// Circuits, health, budget and numbers in flight are shared with `self`, which requests in flight still use.
    pub(crate) fn renewed(
        self: &Arc<Self>,
        upstream: &Arc<Upstream>,
        first_byte: Duration,
        workers: usize,
    ) -> Arc<Self> {
        if *self.upstream == **upstream && self.first_byte == first_byte {
            return Arc::clone(self);
        }
        let mut new = Self::new(upstream, first_byte, workers);
        for server in &mut new.servers {
            let is_same = |it: &&ServerState| {
                (&it.server.authority, it.server.tls)
                    == (&server.server.authority, server.server.tls)
            };
            if let Some(known) = self.servers.iter().find(is_same) {
                server.addresses = Arc::clone(&known.addresses);
                server.in_flight = Arc::clone(&known.in_flight);
                let probe_timeout = upstream.timeouts.connect + first_byte;
                server.breaker = (known.breaker).renewed(&upstream.breaker, probe_timeout);
                if upstream.health.is_some() {
                    server.ejection = Arc::clone(&known.ejection);
                }
            }
        }
        if let (Some(known), Some(retry)) = (&self.budget, &upstream.retry) {
            new.budget = Some(known.renewed(retry.budget));
        }
        if let (Some(known), Some(settings)) = (&self.concurrency, upstream.concurrency) {
            if self.upstream.concurrency != upstream.concurrency {
                known.reconfigure(settings);
            }
            new.concurrency = Some(Arc::clone(known));
        }
        Arc::new(new)
    }
}

impl ServerState {
    fn new(server: &Server, upstream: &Upstream, first_byte: Duration, workers: usize) -> Self {
        Self {
            server: server.clone(),
            addresses: Arc::new(Addresses::of(server)),
            // A probe without a result after this time waits for its client, not for the server.
            breaker: Breaker::new(&upstream.breaker, upstream.timeouts.connect + first_byte),
            in_flight: (0..workers).map(|_| PaddedCounter::default()).collect(),
            ejection: Arc::default(),
            slow_start: upstream.slow_start,
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.server.authority.as_str()
    }

    pub(super) fn begin_request(&self, worker: usize) {
        self.in_flight[worker].0.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end_request(&self, worker: usize) {
        self.in_flight[worker].0.fetch_sub(1, Ordering::Relaxed);
    }

    /// Over all workers.
    pub(crate) fn in_flight(&self) -> u32 {
        let counts = self.in_flight.iter();
        counts.map(|count| count.0.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn is_ejected(&self) -> bool {
        self.ejection.is_active.load(Ordering::Relaxed)
    }

    /// The server receives no requests while another is available.
    pub(super) fn eject(&self) {
        self.ejection.is_active.store(true, Ordering::Relaxed);
    }

    pub(super) fn restore(&self, now: Moment) {
        self.ejection
            .restored_at
            .store(now.as_nanos().max(1), Ordering::Relaxed);
        self.ejection.is_active.store(false, Ordering::Relaxed);
    }

    /// Rises during `slow_start` after a recovery.
    pub(super) fn effective_weight(&self, now: Moment) -> f64 {
        let weight = f64::from(self.server.weight.get());
        let restored_at = match self.ejection.restored_at.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Moment::from_nanos(nanos)),
        };
        let Some(recovered) = restored_at.max(self.breaker.recovered_at()) else {
            return weight;
        };
        let since = now.since(recovered);
        if since >= self.slow_start {
            return weight;
        }
        let ramp = since.as_secs_f64() / self.slow_start.as_secs_f64();
        weight * ramp.max(SLOW_START_MINIMUM)
    }
}
