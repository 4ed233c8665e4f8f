//! Counters of requests, limits, connections and upstreams.
//!
//! They are created when a configuration is loaded, so counting is one atomic addition: no label is hashed and no lock
//! is taken. Each worker has its own set, because a counter that two CPU cores write is slow; `admin` adds up the sets.
//! Label values are names from the configuration, never clients, paths or idempotency keys, because clients could then
//! create any number of time series.

mod count;
mod http2;
mod idempotency;
mod latency;
mod upstream;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use count::{Count, Gauge};
pub(crate) use http2::{EarlyReset, Http2Metrics};
pub(crate) use idempotency::KeyOutcome;
pub(crate) use idempotency::KeyedMetrics;
pub(crate) use latency::HistogramSnapshot;
pub(crate) use latency::{LatencyHistogram, StoreBounds, UpstreamBounds};
pub(crate) use upstream::{InFlight, RetryRejection, UpstreamFailure, UpstreamMetrics};

/// 100 to 999.
pub(crate) const STATUSES: usize = 900;

const NO_ROUTE: &str = "(none)";

/// Counters of one worker.
#[derive(Debug)]
pub(crate) struct Metrics {
    pub(crate) routes: Vec<Arc<RouteMetrics>>,
    pub(crate) limits: Vec<Arc<LimitMetrics>>,
    pub(crate) upstreams: Vec<Arc<UpstreamMetrics>>,
    /// Of requests that match no route.
    pub(crate) unrouted: Arc<RouteMetrics>,
    pub(crate) totals: Arc<Totals>,
}

/// Counters without a name from the configuration.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    /// Requests rejected because their path is ambiguous.
    pub ambiguous_paths: Count,
    /// Requests rejected because of `paths = "strict"`.
    pub strict_path_rejections: Count,
    /// Requests whose peer is not a trusted proxy.
    pub(crate) untrusted: Count,
    /// Responses whose last byte was not written to the client's socket.
    pub truncated: Count,
    /// Request bodies that arrived more slowly than `min_rate`.
    pub(crate) slow_bodies: Count,
    pub(crate) http2: Arc<Http2Metrics>,
    /// By [`TlsFailure`].
    pub(crate) tls_failures: [Count; TlsFailure::NAMES.len()],
    /// Bytes read from the sockets of clients.
    pub(crate) received: Count,
    pub(crate) sent: Count,
}

/// Why the TLS handshake with a client failed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TlsFailure {
    Timeout,
    /// The client closed the connection, as a TCP health check does.
    Closed,
    /// The client sent an alert, for example because it does not trust the certificate.
    Alert,
    /// The client does not use TLS, or has no version or cipher suite in common with the gateway.
    Protocol,
}

impl TlsFailure {
    /// Values of the label `reason`, in the order of the variants.
    pub(crate) const NAMES: [&str; 4] = ["timeout", "closed", "alert", "protocol"];
}

#[derive(Default)]
pub(crate) struct RouteMetrics {
    pub(crate) name: Arc<str>,
    /// Responses. The index is the status minus 100.
    pub(crate) by_status: Box<[Count]>,
    /// Time from the arrival of a request to the end of its response, without requests that a limit rejected.
    pub(crate) duration: LatencyHistogram<UpstreamBounds>,
    pub(crate) rejected: Count,
    pub delayed: Count,
    pub keyed: KeyedMetrics,
    /// Whether the route has, or had before a reload, a rule for idempotency keys. If not, `keyed` is not exported.
    has_keys: AtomicBool,
}

/// Counters of a limit on one route.
#[derive(Debug, Default)]
pub(crate) struct LimitMetrics {
    pub(crate) route: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) admitted: Count,
    /// Admitted requests that left a bucket with less than a fifth of its tokens.
    pub(crate) near: Count,
    pub(crate) rejected: Count,
    pub(crate) shadow_rejected: Count,
    /// Rejected requests whose client had been told to wait longer.
    pub(crate) early: Count,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            routes: Vec::new(),
            limits: Vec::new(),
            upstreams: Vec::new(),
            unrouted: RouteMetrics::new(NO_ROUTE.into(), false),
            totals: Arc::default(),
        }
    }
}

impl Metrics {
    /// Creates the counters for a configuration, in its order; what `self` has keeps its counters. The flag of a route is
    /// whether it has a rule for idempotency keys. A limit is named with its route.
    pub(crate) fn renewed<'a>(
        &self,
        routes: impl IntoIterator<Item = (&'a Arc<str>, bool)>,
        limits: impl IntoIterator<Item = (&'a Arc<str>, &'a Arc<str>)>,
        upstreams: impl IntoIterator<Item = &'a Arc<str>>,
    ) -> Self {
        let route = |(name, has_keys): (&Arc<str>, bool)| {
            let known = self.routes.iter().find(|route| route.name == *name);
            let Some(known) = known else {
                return RouteMetrics::new(Arc::clone(name), has_keys);
            };
            known.has_keys.fetch_or(has_keys, Ordering::Relaxed);
            Arc::clone(known)
        };
        let limit = |(route, name): (&Arc<str>, &Arc<str>)| {
            let known = self.find_limit(route, name);
            known.map_or_else(|| LimitMetrics::new(route, name), Arc::clone)
        };
        let upstream = |name: &Arc<str>| {
            let known = self.upstreams.iter().find(|it| it.name == *name);
            known.map_or_else(|| UpstreamMetrics::new(name), Arc::clone)
        };
        Self {
            routes: routes.into_iter().map(route).collect(),
            limits: limits.into_iter().map(limit).collect(),
            upstreams: upstreams.into_iter().map(upstream).collect(),
            unrouted: Arc::clone(&self.unrouted),
            totals: Arc::clone(&self.totals),
        }
    }

    pub(crate) fn route(&self, name: &str) -> &Arc<RouteMetrics> {
        let found = self.routes.iter().find(|route| *route.name == *name);
        found.expect("every route of the configuration has counters")
    }

    pub(crate) fn limit(&self, route: &str, name: &str) -> &Arc<LimitMetrics> {
        let found = self.find_limit(route, name);
        found.expect("every limit of a route has counters")
    }

    fn find_limit(&self, route: &str, name: &str) -> Option<&Arc<LimitMetrics>> {
        let mut limits = self.limits.iter();
        limits.find(|limit| *limit.route == *route && *limit.name == *name)
    }

    pub(crate) fn upstream(&self, name: &str) -> &Arc<UpstreamMetrics> {
        let found = self.upstreams.iter().find(|it| *it.name == *name);
        found.expect("every upstream of the configuration has counters")
    }

    /// The last one is that of requests that match no route.
    pub(crate) fn all_routes(&self) -> impl Iterator<Item = &Arc<RouteMetrics>> {
        self.routes.iter().chain([&self.unrouted])
    }
}

impl RouteMetrics {
    pub(crate) fn new(name: Arc<str>, has_keys: bool) -> Arc<Self> {
        Arc::new(Self {
            name,
            by_status: (0..STATUSES).map(|_| Count::default()).collect(),
            has_keys: AtomicBool::new(has_keys),
            ..Self::default()
        })
    }

    pub(crate) fn has_keys(&self) -> bool {
        self.has_keys.load(Ordering::Relaxed)
    }

    pub(crate) fn responded(&self, status: u16) {
        self.by_status[usize::from(status) - 100].inc();
    }
}

impl LimitMetrics {
    pub(crate) fn new(route: &Arc<str>, name: &Arc<str>) -> Arc<Self> {
        Arc::new(Self {
            route: Arc::clone(route),
            name: Arc::clone(name),
            ..Self::default()
        })
    }
}

impl fmt::Debug for RouteMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteMetrics")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
