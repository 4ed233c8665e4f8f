//! Counters of the stages, one set per worker.
//!
//! Every counter exists when the gateway starts, so counting is one atomic addition: the request path hashes no label
//! and takes no lock. Each worker has its own set, because a counter that two cores write is the most expensive line
//! of a stage; a scrape adds the sets up. Labels are names from the configuration, never a client, a path or a key:
//! values that a caller chooses would grow the series without bound.
//!
//! The module imports nothing from the crate, so every stage can count. `admin` exports the counters.

mod count;
mod http2;
mod keyed;
mod latency;
mod upstream;

use std::fmt;
use std::sync::Arc;

use http::StatusCode;

pub(crate) use count::{Count, Gauge};
pub(crate) use http2::{EarlyReset, Http2Metrics};
pub(crate) use keyed::KeyOutcome;
pub(crate) use keyed::KeyedMetrics;
pub(crate) use latency::Snapshot;
pub(crate) use latency::{Latency, OfStore, OfUpstream};
pub(crate) use upstream::{InFlight, RetryRefusal, UpstreamFailure, UpstreamMetrics};

/// Number of status codes: 100 to 999.
pub(crate) const STATUSES: usize = 900;

/// Route label of requests that match no route.
const NO_ROUTE: &str = "(none)";

/// All counters of one worker.
pub(crate) struct Metrics {
    pub(crate) routes: Vec<Arc<RouteMetrics>>,
    pub(crate) limits: Vec<Arc<LimitMetrics>>,
    pub(crate) upstreams: Vec<Arc<UpstreamMetrics>>,
    /// Requests that match no route.
    pub(crate) unrouted: Arc<RouteMetrics>,
    pub(crate) connections: Arc<Gauge>,
    /// Responses whose last byte was not written to the client's socket.
    pub truncated: Count,
    pub(crate) http2: Arc<Http2Metrics>,
}

/// Counts a connection as open until it is dropped.
#[derive(Debug)]
pub(crate) struct Connected(Arc<Gauge>);

/// Counters of a route.
pub(crate) struct RouteMetrics {
    pub(crate) name: Arc<str>,
    pub(crate) by_status: Box<[Count]>,
    /// Requests that were delayed until their slot.
    pub delayed: Count,
    /// Requests with an idempotency key.
    pub keyed: KeyedMetrics,
    /// Whether the route has a rule for idempotency keys. Without one, `keyed` is not exported.
    pub(crate) has_keys: bool,
}

/// Counters of a limit.
#[derive(Debug)]
pub(crate) struct LimitMetrics {
    pub(crate) name: Arc<str>,
    /// Requests that the limit rejected.
    pub refused: Count,
    /// Requests that the limit would have rejected if it were not in shadow mode.
    pub shadow_refused: Count,
}

impl Metrics {
    /// Creates the counters for routes (with whether they have a rule for idempotency keys), limits and upstreams of
    /// these names, each in the order of the configuration.
    pub(crate) fn new<'a>(
        routes: impl IntoIterator<Item = (&'a Arc<str>, bool)>,
        limits: impl IntoIterator<Item = &'a Arc<str>>,
        upstreams: impl IntoIterator<Item = &'a Arc<str>>,
    ) -> Self {
        let routes = routes.into_iter();
        Self {
            routes: routes
                .map(|(name, has_keys)| RouteMetrics::new(Arc::clone(name), has_keys))
                .collect(),
            limits: limits.into_iter().map(LimitMetrics::new).collect(),
            upstreams: upstreams.into_iter().map(UpstreamMetrics::new).collect(),
            unrouted: RouteMetrics::new(NO_ROUTE.into(), false),
            connections: Arc::default(),
            truncated: Count::default(),
            http2: Arc::default(),
        }
    }

    /// Returns the counters of the routes, followed by those of requests without a route.
    pub(crate) fn all_routes(&self) -> impl Iterator<Item = &Arc<RouteMetrics>> {
        self.routes.iter().chain([&self.unrouted])
    }

    /// Counts a connection as open until the result is dropped.
    pub(crate) fn connected(&self) -> Connected {
        self.connections.add(1);
        Connected(Arc::clone(&self.connections))
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.add(-1);
    }
}

impl RouteMetrics {
    fn new(name: Arc<str>, has_keys: bool) -> Arc<Self> {
        let by_status = (0..STATUSES).map(|_| Count::default()).collect();
        Arc::new(Self {
            name,
            by_status,
            delayed: Count::default(),
            keyed: KeyedMetrics::default(),
            has_keys,
        })
    }

    /// Counts a request by the status of its response.
    pub(crate) fn responded(&self, status: StatusCode) {
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
