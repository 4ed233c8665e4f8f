//! Prometheus metrics of the stages that the gateway and embedding applications share: requests, limits, idempotency
//! keys, stores and buffered bodies. `scrape` adds those that only the gateway has.
//!
//! `prometheus-client` encodes the values, but does not keep them: its histogram takes a lock for each value and cannot be
//! read back, and a sum over workers needs a collector in any case.

pub(crate) mod encoder;
mod idempotency;

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use self::encoder::FamilyEncoder;
use crate::metrics::{Count, LimitMetrics, Metrics, RouteMetrics, STATUSES};
use crate::request::buffers::{Buffered, Buffers};
use crate::store::{BucketStore, RecordStore};

/// Value of `Content-Type`.
pub(crate) const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Debug)]
pub(crate) struct StageMetrics {
    /// Counters of each worker. There is at least one worker, and all workers have the same routes and limits.
    pub(crate) workers: Arc<[Arc<Metrics>]>,
    pub(crate) buckets: BucketStore,
    pub(crate) records: RecordStore,
    pub(crate) buffers: Buffers,
}

impl Collector for StageMetrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_all(&mut FamilyEncoder(encoder))
    }
}

impl StageMetrics {
    pub(crate) fn encode_all(&self, encoder: &mut FamilyEncoder<'_>) -> fmt::Result {
        self.encode_routes(encoder)?;
        self.encode_limits(encoder)?;
        self.encode_keyed(encoder)?;
        self.encode_store_latency(encoder)?;
        self.encode_records(encoder)?;
        self.encode_health(encoder)?;
        self.encode_buffers(encoder)?;
        let buckets = self.buckets.local();
        let help = "Charges to overflow buckets, which clients share because max_clients buckets are tracked";
        encoder.counter("overflow_charges", help, buckets.shared_charges())?;
        encoder.gauge("buckets", "Tracked buckets", buckets.tracked())?;
        let help = "Limit of tracked buckets (max_clients)";
        encoder.gauge("buckets_max", help, buckets.capacity() as u64)
    }

    /// Returns the metrics in the `OpenMetrics` text format, with the prefix `tidegate`.
    pub(crate) fn into_text(self) -> String {
        let mut registry = Registry::with_prefix("tidegate");
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        encode(&mut text, &registry).expect("writing to a string succeeds");
        text
    }

    /// Adds up a counter over all workers.
    pub(crate) fn sum(&self, count: impl Fn(&Metrics) -> u64) -> u64 {
        self.workers.iter().map(|worker| count(worker)).sum()
    }

    /// The first worker, for names and positions, which are the same for all workers.
    pub(crate) fn first(&self) -> &Metrics {
        self.workers.first().expect("there is at least one worker")
    }

    /// Returns the position and the labels of each route of the configuration.
    pub(crate) fn routes(&self) -> impl Iterator<Item = (usize, [(&str, &str); 1])> {
        let routes = self.first().routes.iter().enumerate();
        routes.map(|(at, route)| (at, [("route", &*route.name)]))
    }

    fn sum_of_route(&self, at: usize, count: impl Fn(&RouteMetrics) -> u64) -> u64 {
        self.sum(|worker| count(&worker.routes[at]))
    }

    fn encode_routes(&self, encoder: &mut FamilyEncoder<'_>) -> fmt::Result {
        let by_status = self
            .first()
            .all_routes()
            .enumerate()
            .flat_map(|(at, route)| {
                let count = move |status: usize| {
                    self.sum(|worker| {
                        let route = worker.all_routes().nth(at);
                        route.map_or(0, |route| route.by_status[status].get())
                    })
                };
                let counts = (0..STATUSES).map(move |status| (status + 100, count(status)));
                let counts = counts.filter(|(_, count)| *count > 0);
                counts.map(|(status, count)| {
                    let labels = ([("route", &*route.name)], [("status", status)]);
                    (labels, count)
                })
            });
        let help = "Requests with a response, by route and status";
        encoder.counters("requests", help, by_status)?;
        // A request that matches no route has no limits, so it is never delayed.
        let delayed = self.routes().map(|(at, labels)| {
            let count = self.sum_of_route(at, |route| route.delayed.get());
            (labels, count)
        });
        encoder.counters("delayed", "Requests delayed by a limit, by route", delayed)
    }

    fn encode_limits(&self, encoder: &mut FamilyEncoder<'_>) -> fmt::Result {
        let mut by_limit = |name, help, count: fn(&LimitMetrics) -> &Count| {
            let limits = self.first().limits.iter().enumerate();
            let series = limits.map(|(at, limit)| {
                let labels = [("route", &*limit.route), ("limit", &*limit.name)];
                (labels, self.sum(|worker| count(&worker.limits[at]).get()))
            });
            encoder.counters(name, help, series)
        };
        let help = "Admitted requests, by route and limit";
        by_limit("admitted", help, |limit| &limit.admitted)?;
        let help = "Admitted requests that left a bucket with less than a fifth of its tokens, by route and limit";
        by_limit("near_limit", help, |limit| &limit.near)?;
        let help = "Requests rejected, by route and the limit with the longest wait";
        by_limit("rejected", help, |limit| &limit.rejected)?;
        let help = "Requests that a limit in shadow mode would have rejected, by route and limit";
        by_limit("shadow_rejected", help, |limit| &limit.shadow_rejected)?;
        let help = "Rejected requests of a key that a rejection had told to wait longer, by route and limit";
        by_limit("early_returns", help, |limit| &limit.early)
    }

    fn encode_buffers(&self, encoder: &mut FamilyEncoder<'_>) -> fmt::Result {
        let buffers = &self.buffers;
        let help = "Bodies that exceeded max_buffered or max_buffered_per_client, by kind: rejected keyed requests and \
                    replays, uploads streamed early, responses not stored, copies for retries dropped";
        let exceeded = Buffered::ALL.map(|kind| ([("kind", kind.label())], buffers.exceeded(kind)));
        encoder.counters("buffers_exceeded", help, exceeded)?;
        let help = "Bytes of bodies held in memory";
        encoder.gauge("buffered_bytes", help, buffers.in_use())?;
        let help = "Limit of the bytes of bodies held in memory (max_buffered)";
        encoder.gauge("buffered_bytes_max", help, buffers.bounds().total as u64)
    }
}
