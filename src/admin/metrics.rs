//! What is counted, and how it is told to Prometheus.
//!
//! Every counter's place is known when the policy is made, so counting is one atomic addition: no label
//! is hashed, no lock taken on a request's way. Labels hold names from the configuration only, never a
//! client, a path or a key: what a caller can make up would grow the series without bound.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use http::StatusCode;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::route::{RouteId, Routes};
use crate::store::memory::MemoryBuckets;
use crate::throttle::{Limit, LimitId};
use crate::upstream::{ForwardError, Upstream, UpstreamId};

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

/// One unit of a gauge, given back on drop.
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
    latency: [Count; LATENCY_BOUNDS.len() + 1],
    latency_micros: Count,
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
            ForwardError::TimedOut(_) => Self::Timeout,
            ForwardError::Exchange(_) | ForwardError::BadAnswer(_) => Self::Broken,
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
            latency: Default::default(),
            latency_micros: Count::default(),
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
        let bucket = LATENCY_BOUNDS
            .iter()
            .position(|&bound| latency <= Duration::from_millis(bound))
            .unwrap_or(LATENCY_BOUNDS.len());
        self.latency[bucket].inc();
        self.latency_micros
            .add(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX));
    }

    /// Counts an answer that did not come.
    pub fn failed(&self, error: &ForwardError) {
        self.failures[Failure::of(error) as usize].inc();
    }
}

/// What all workers count, and the bucket table, ready to be scraped.
pub fn registry(workers: &Arc<[Arc<Metrics>]>, buckets: &Arc<MemoryBuckets>) -> Registry {
    let mut registry = Registry::with_prefix("tidegate");
    let scrape = Scrape {
        workers: Arc::clone(workers),
        buckets: Arc::clone(buckets),
    };
    registry.register_collector(Box::new(scrape));
    registry
}

/// The counters as they stand when Prometheus asks.
#[derive(Debug)]
struct Scrape {
    workers: Arc<[Arc<Metrics>]>,
    buckets: Arc<MemoryBuckets>,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_routes(&mut encoder)?;
        self.encode_limits(&mut encoder)?;
        self.encode_upstreams(&mut encoder)?;
        let connections = self
            .workers
            .iter()
            .map(|worker| worker.connections.get())
            .sum();
        for (name, help, value) in [
            ("buckets", "Buckets tracked", size(self.buckets.tracked())),
            (
                "buckets_max",
                "Buckets tracked at most",
                size(self.buckets.capacity()),
            ),
            ("connections", "Client connections open", connections),
        ] {
            gauge(
                encoder.encode_descriptor(name, help, None, MetricType::Gauge)?,
                value,
            )?;
        }
        Ok(())
    }
}

impl Scrape {
    /// What all workers together counted; `count` picks it from the counters of one.
    fn sum(&self, count: impl Fn(&Metrics) -> u64) -> u64 {
        self.workers.iter().map(|worker| count(worker)).sum()
    }

    /// The names everything is counted under are the same in all workers.
    fn first(&self) -> &Metrics {
        self.workers.first().expect("there is at least one worker")
    }

    fn encode_routes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let routes = &self.first().routes;
        let mut requests = encoder.encode_descriptor(
            "requests",
            "Requests answered, by route and status",
            None,
            MetricType::Counter,
        )?;
        for (index, route) in routes.iter().enumerate() {
            for status in 0..STATUSES {
                let count = self.sum(|worker| worker.routes[index].by_status[status].get());
                if count > 0 {
                    let labels = [
                        ("route", &*route.name),
                        ("status", &(status + 100).to_string()),
                    ];
                    counter(requests.encode_family(&labels)?, count)?;
                }
            }
        }
        let mut delayed = encoder.encode_descriptor(
            "delayed",
            "Requests made to wait for their slot, by route",
            None,
            MetricType::Counter,
        )?;
        for (index, route) in routes.iter().enumerate() {
            let count = self.sum(|worker| worker.routes[index].delayed.get());
            counter(delayed.encode_family(&[("route", &*route.name)])?, count)?;
        }
        Ok(())
    }

    fn encode_limits(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        type Pick = fn(&LimitMetrics) -> &Count;
        let counters: [(&str, &str, Pick); 2] = [
            (
                "refused",
                "Requests refused, by the limit with the longest wait",
                |limit| &limit.refused,
            ),
            (
                "shadow_refused",
                "Requests a limit in shadow mode would have refused",
                |limit| &limit.shadow_refused,
            ),
        ];
        for (name, help, pick) in counters {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (index, limit) in self.first().limits.iter().enumerate() {
                let count = self.sum(|worker| pick(&worker.limits[index]).get());
                counter(family.encode_family(&[("limit", &*limit.name)])?, count)?;
            }
        }
        Ok(())
    }

    fn encode_upstreams(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let upstreams = &self.first().upstreams;
        let mut in_flight = encoder.encode_descriptor(
            "upstream_in_flight",
            "Requests underway, by upstream",
            None,
            MetricType::Gauge,
        )?;
        for (index, upstream) in upstreams.iter().enumerate() {
            let workers = self.workers.iter();
            let value = workers
                .map(|worker| worker.upstreams[index].in_flight.get())
                .sum();
            gauge(
                in_flight.encode_family(&[("upstream", &*upstream.name)])?,
                value,
            )?;
        }
        let mut failures = encoder.encode_descriptor(
            "upstream_failures",
            "Requests without an answer, by upstream and reason",
            None,
            MetricType::Counter,
        )?;
        for (index, upstream) in upstreams.iter().enumerate() {
            for reason in Failure::ALL {
                let labels = [("upstream", &*upstream.name), ("reason", reason.label())];
                let count =
                    self.sum(|worker| worker.upstreams[index].failures[reason as usize].get());
                counter(failures.encode_family(&labels)?, count)?;
            }
        }
        let mut latency = encoder.encode_descriptor(
            "upstream_latency_seconds",
            "Time to the head of an answer, by upstream",
            None,
            MetricType::Histogram,
        )?;
        for (index, upstream) in upstreams.iter().enumerate() {
            let labels = [("upstream", &*upstream.name)];
            self.encode_latency(latency.encode_family(&labels)?, index)?;
        }
        Ok(())
    }

    #[expect(clippy::cast_precision_loss, reason = "a scrape is for graphs")]
    fn encode_latency(&self, mut encoder: MetricEncoder<'_>, upstream: usize) -> fmt::Result {
        let bounds = LATENCY_BOUNDS.iter().map(|&millis| millis as f64 / 1e3);
        let buckets: Vec<_> = bounds
            .chain([f64::INFINITY])
            .enumerate()
            .map(|(index, bound)| {
                let count = self.sum(|worker| worker.upstreams[upstream].latency[index].get());
                (bound, count)
            })
            .collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let micros = self.sum(|worker| worker.upstreams[upstream].latency_micros.get());
        encoder.encode_histogram::<NoLabelSet>(micros as f64 / 1e6, count, &buckets, None)
    }
}

fn counter(mut encoder: MetricEncoder<'_>, count: u64) -> fmt::Result {
    encoder.encode_counter::<NoLabelSet, _, u64>(&count, None)
}

fn gauge(mut encoder: MetricEncoder<'_>, value: i64) -> fmt::Result {
    encoder.encode_gauge(&value)
}

fn size(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
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
