//! What is counted.
//!
//! Every counter's place is known when the policy is made, so counting is one atomic addition: no label
//! is hashed, no lock taken on a request's way. Labels hold names from the configuration only, never a
//! client, a path or a key: what a caller can make up would grow the series without bound.

mod scrape;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;

use crate::route::{RouteId, Routes};
use crate::throttle::{Limit, LimitId};
use crate::upstream::{ForwardError, Upstream, UpstreamId};

pub use scrape::registry;

/// Upper bounds of the latency histogram, in milliseconds.
const LATENCY_BOUNDS: [u64; 14] = [
    1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000,
];

/// Status codes have three digits: 100 to 999.
const STATUSES: usize = 900;

/// The route label of requests that fall under none.
const NO_ROUTE: &str = "(none)";

/// All counters of a worker. Each has its own, and they are added up when somebody asks: a counter
/// that two cores take turns at is the most expensive line of a stage.
pub struct Metrics {
    routes: Vec<Arc<RouteMetrics>>,
    limits: Vec<Arc<LimitMetrics>>,
    upstreams: Vec<Arc<UpstreamMetrics>>,
    connections: Arc<Gauge>,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

/// A number that comes and goes.
#[derive(Debug, Default)]
pub struct Gauge(AtomicI64);

/// One request underway upstream, until dropped.
#[derive(Debug)]
pub struct InFlight {
    upstream: Arc<UpstreamMetrics>,
}

/// One open connection, until dropped.
#[derive(Debug)]
pub struct Connected(Arc<Gauge>);

/// What is counted of a route.
pub struct RouteMetrics {
    name: Arc<str>,
    by_status: Box<[Count]>,
    /// Requests that were made to wait for their slot.
    pub delayed: Count,
    /// Requests with an idempotency key.
    pub keyed: KeyedMetrics,
}

/// What is counted of a route's requests with an idempotency key.
#[derive(Debug, Default)]
pub struct KeyedMetrics {
    /// Requests that were carried out: the first of their key.
    pub claims: Count,
    /// Requests that were answered from a record.
    pub replays: Count,
    /// Requests that waited for the first of their key.
    pub waits: Count,
    /// Requests that were told to come back because the first of their key was still running.
    pub conflicts: Count,
    /// Requests whose key stands for another request.
    pub mismatches: Count,
    /// Requests that were told that nobody knows what became of their key.
    pub unknowns: Count,
    /// Requests that were told that the answer was not kept.
    pub tombstones: Count,
    /// Requests whose key was missing or no key.
    pub invalid: Count,
    /// Requests for whose key there was no room.
    pub exhausted: Count,
    /// Executions whose outcome is not known.
    pub lost: Count,
    /// Executions that left their key free.
    pub released: Count,
    /// Times the store could not do what it was asked.
    pub store_errors: Count,
    /// How long the store took to answer a bid.
    pub claim_latency: Latency,
    /// How long the store took to keep an answer.
    pub complete_latency: Latency,
}

/// How long something took.
#[derive(Debug, Default)]
pub struct Latency {
    buckets: [Count; LATENCY_BOUNDS.len() + 1],
    micros: Count,
}

/// What is counted of a limit.
#[derive(Debug)]
pub struct LimitMetrics {
    name: Arc<str>,
    /// Requests it refused.
    pub refused: Count,
    /// Requests it would have refused, were it not in shadow mode.
    pub shadow_refused: Count,
}

/// What is counted of an upstream.
#[derive(Debug)]
pub struct UpstreamMetrics {
    name: Arc<str>,
    in_flight: Gauge,
    latency: Latency,
    failures: [Count; Failure::ALL.len()],
}

/// Why an upstream gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Connect,
    Timeout,
    Broken,
    Client,
}

impl Failure {
    const ALL: [Self; 4] = [Self::Connect, Self::Timeout, Self::Broken, Self::Client];

    fn of(error: &ForwardError) -> Self {
        match error {
            ForwardError::Connect(_) => Self::Connect,
            ForwardError::TimedOut(_) | ForwardError::NotReachedInTime(_) => Self::Timeout,
            ForwardError::Exchange(_) | ForwardError::Unsent(_) | ForwardError::BadAnswer(_) => {
                Self::Broken
            }
            ForwardError::TooLarge(_) | ForwardError::ClientFailed(_) => Self::Client,
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Broken => "broken",
            Self::Client => "client",
        }
    }
}

impl Metrics {
    /// Counters for everything the policy names.
    pub fn new(routes: &Routes, limits: &[Arc<Limit>], upstreams: &[Arc<Upstream>]) -> Self {
        let names = routes.iter().map(|route| Arc::clone(&route.name));
        Self {
            routes: names
                .chain([NO_ROUTE.into()])
                .map(RouteMetrics::new)
                .collect(),
            limits: limits
                .iter()
                .map(|limit| LimitMetrics::new(&limit.name))
                .collect(),
            upstreams: upstreams
                .iter()
                .map(|upstream| UpstreamMetrics::new(&upstream.name))
                .collect(),
            connections: Arc::default(),
        }
    }

    /// The counters of a route, or of what falls under none.
    pub fn route(&self, route: Option<RouteId>) -> &RouteMetrics {
        match route {
            Some(RouteId(index)) => &self.routes[index],
            None => &self.routes[self.routes.len() - 1],
        }
    }

    /// The counters of a limit.
    pub fn limit(&self, LimitId(index): LimitId) -> &LimitMetrics {
        &self.limits[usize::from(index)]
    }

    /// The counters of an upstream.
    pub fn upstream(&self, UpstreamId(index): UpstreamId) -> &Arc<UpstreamMetrics> {
        &self.upstreams[index]
    }

    /// Counts a connection in, until what is returned is dropped.
    pub fn connected(&self) -> Connected {
        self.connections.add(1);
        Connected(Arc::clone(&self.connections))
    }
}

impl Count {
    /// One more.
    pub fn inc(&self) {
        self.add(1);
    }

    fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Latency {
    /// One more that took this long.
    pub fn record(&self, latency: Duration) {
        let bucket = LATENCY_BOUNDS
            .iter()
            .position(|&bound| latency <= Duration::from_millis(bound))
            .unwrap_or(LATENCY_BOUNDS.len());
        self.buckets[bucket].inc();
        self.micros
            .add(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX));
    }
}

impl Gauge {
    fn add(&self, more: i64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.upstream.in_flight.add(-1);
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}

impl RouteMetrics {
    fn new(name: Arc<str>) -> Arc<Self> {
        let by_status = (0..STATUSES).map(|_| Count::default()).collect();
        Arc::new(Self {
            name,
            by_status,
            delayed: Count::default(),
            keyed: KeyedMetrics::default(),
        })
    }

    /// Counts a request by the status it was answered with.
    pub fn answered(&self, status: StatusCode) {
        let index = usize::from(status.as_u16()) - 100;
        self.by_status[index].inc();
    }
}

impl LimitMetrics {
    fn new(name: &Arc<str>) -> Arc<Self> {
        Arc::new(Self {
            name: Arc::clone(name),
            refused: Count::default(),
            shadow_refused: Count::default(),
        })
    }
}

impl UpstreamMetrics {
    fn new(name: &Arc<str>) -> Arc<Self> {
        Arc::new(Self {
            name: Arc::clone(name),
            in_flight: Gauge::default(),
            latency: Latency::default(),
            failures: Default::default(),
        })
    }

    /// Counts a request as underway, until what is returned is dropped.
    pub fn in_flight(self: &Arc<Self>) -> InFlight {
        self.in_flight.add(1);
        InFlight {
            upstream: Arc::clone(self),
        }
    }

    /// Counts an answer that began after `latency`.
    pub fn answered(&self, latency: Duration) {
        self.latency.record(latency);
    }

    /// Counts an answer that did not come.
    pub fn failed(&self, error: &ForwardError) {
        self.failures[Failure::of(error) as usize].inc();
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl fmt::Debug for RouteMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteMetrics")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
