//! What is counted.
//!
//! Every counter's place is known when the policy is made, so counting is one atomic addition: no label
//! is hashed, no lock taken on a request's way. Labels hold names from the configuration only, never a
//! client, a path or a key: what a caller can make up would grow the series without bound.

mod count;
mod http2;
mod keyed;
mod latency;
mod scrape;
mod upstream;

use std::fmt;
use std::sync::Arc;

use http::StatusCode;

use crate::route::{RouteId, Routes};
use crate::throttle::{Limit, LimitId};
use crate::upstream::{Upstream, UpstreamId};

pub use count::{Count, Gauge};
pub use http2::{EarlyReset, Http2Metrics, LingeringStream};
pub use keyed::KeyedMetrics;
pub use latency::{Bounds, Latency, OfStore, OfUpstream};
pub use scrape::registry;
pub use upstream::{InFlight, RetryRefusal, UpstreamMetrics};

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
    /// Responses whose last byte was not written to the client's socket.
    pub truncated: Count,
    http2: Arc<Http2Metrics>,
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
    /// Whether keys are looked at: where they are not, there is nothing to tell of them.
    looks_at_keys: bool,
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

impl Metrics {
    /// Counters for everything the policy names.
    pub fn new(routes: &Routes, limits: &[Arc<Limit>], upstreams: &[Arc<Upstream>]) -> Self {
        let routes = routes
            .iter()
            .map(|route| (Arc::clone(&route.name), route.idempotency.is_some()));
        Self {
            routes: routes
                .chain([(NO_ROUTE.into(), false)])
                .map(|(name, looks_at_keys)| RouteMetrics::new(name, looks_at_keys))
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
            truncated: Count::default(),
            http2: Arc::default(),
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

    /// The counters of HTTP/2 streams.
    pub fn http2(&self) -> &Arc<Http2Metrics> {
        &self.http2
    }

    /// Counts a connection in, until what is returned is dropped.
    pub fn connected(&self) -> Connected {
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
    fn new(name: Arc<str>, looks_at_keys: bool) -> Arc<Self> {
        let by_status = (0..STATUSES).map(|_| Count::default()).collect();
        Arc::new(Self {
            name,
            by_status,
            delayed: Count::default(),
            keyed: KeyedMetrics::default(),
            looks_at_keys,
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
