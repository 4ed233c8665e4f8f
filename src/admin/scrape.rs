//! Collects the values for Prometheus. Each counter is the sum over all workers. Gauges show the state of stores and
//! upstreams.

mod idempotency;
mod scenarios;
mod store;
mod upstreams;

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::connections::MAX_CONNECTIONS;
use crate::buffers::{Buffered, Buffers};
use crate::clock::Clock;
use crate::metrics::{
    AdminMetrics, Count, EarlyReset, HistogramSnapshot, LimitMetrics, Metrics, RouteMetrics,
    STATUSES,
};
use crate::pipeline::Shared;
use crate::scenario::Scenarios;
use crate::store::{BucketStore, RecordStore};
use crate::upstream::UpstreamState;
use crate::upstream::tunnel::Tunnels;

/// Creates the registry of all metrics, with the prefix `tidegate`.
pub(super) fn registry(shared: &Shared, admin: Arc<AdminMetrics>) -> Registry {
    let mut registry = Registry::with_prefix("tidegate");
    let scrape = Scrape {
        workers: Arc::clone(&shared.metrics),
        buckets: shared.buckets.clone(),
        records: shared.records.clone(),
        buffers: shared.buffers.clone(),
        tunnels: Arc::clone(&shared.tunnels),
        scenarios: shared.scenarios.clone(),
        upstream_states: Arc::clone(&shared.upstream_states),
        clock: shared.clock.clone(),
        admin,
    };
    registry.register_collector(Box::new(scrape));
    registry
}

/// Collector that reads the counters and states when Prometheus scrapes `/metrics`.
#[derive(Debug)]
struct Scrape {
    workers: Arc<[Arc<Metrics>]>,
    buckets: BucketStore,
    records: RecordStore,
    buffers: Buffers,
    tunnels: Arc<Tunnels>,
    scenarios: Scenarios,
    upstream_states: Arc<[Arc<UpstreamState>]>,
    clock: Clock,
    admin: Arc<AdminMetrics>,
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_routes(&mut encoder)?;
        self.encode_limits(&mut encoder)?;
        self.encode_upstreams(&mut encoder)?;
        self.encode_servers(&mut encoder)?;
        self.encode_keyed(&mut encoder)?;
        self.encode_records(&mut encoder)?;
        self.encode_store(&mut encoder)?;
        for (name, help, count) in [
            (
                "ambiguous_paths",
                "Requests rejected because their path is ambiguous",
                self.sum(|worker| worker.ambiguous_paths.get()),
            ),
            (
                "responses_truncated",
                "Responses whose last byte was not written to the client's socket",
                self.sum(|worker| worker.truncated.get()),
            ),
            (
                "slow_bodies",
                "Request bodies that arrived more slowly than min_rate",
                self.sum(|worker| worker.slow_bodies.get()),
            ),
            (
                "tunnels_rejected",
                "Upgrade requests rejected because of max_tunnels_per_client",
                self.tunnels.rejected.get(),
            ),
            (
                "tunnels_timed_out",
                "Upgraded connections closed because of tunnel_timeout",
                self.tunnels.timed_out.get(),
            ),
            (
                "admin_connections_replaced",
                "Admin connections closed because a new connection replaced them",
                self.admin.replaced.get(),
            ),
        ] {
            counter(
                encoder.encode_descriptor(name, help, None, MetricType::Counter)?,
                count,
            )?;
        }
        self.encode_http2(&mut encoder)?;
        self.encode_scenarios(&mut encoder)?;
        self.encode_buffers(&mut encoder)?;
        let buckets = self.buckets.local();
        let workers = || self.workers.iter();
        let connections = workers().map(|worker| worker.connections.get()).sum();
        let lingering = workers().map(|worker| worker.http2.lingering.get()).sum();
        for (name, help, value) in [
            ("buckets", "Tracked buckets", size(buckets.tracked())),
            (
                "buckets_max",
                "Limit of tracked buckets (max_clients)",
                size(buckets.capacity()),
            ),
            ("connections", "Open client connections", connections),
            (
                "tunnels",
                "Upgraded connections, including pending upgrades",
                self.tunnels.open.get(),
            ),
            (
                "admin_connections",
                "Open connections of the admin listener",
                self.admin.connections.get(),
            ),
            (
                "admin_connections_max",
                "Limit of the open connections of the admin listener",
                size(MAX_CONNECTIONS),
            ),
            (
                "buffered_bytes",
                "Bytes of bodies held in memory",
                size(self.buffers.in_use()),
            ),
            (
                "buffered_bytes_max",
                "Limit of the bytes of bodies held in memory (max_buffered)",
                size(self.buffers.bounds().total),
            ),
            (
                "http2_lingering_streams",
                "HTTP/2 streams that stay open after their response because the client is still sending",
                lingering,
            ),
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
    /// Adds up a counter over all workers. `count` reads the counter of one worker.
    fn sum(&self, count: impl Fn(&Metrics) -> u64) -> u64 {
        self.workers.iter().map(|worker| count(worker)).sum()
    }

    /// Adds up a counter of the route at `index` over all workers.
    fn sum_of_route(&self, index: usize, count: impl Fn(&RouteMetrics) -> u64) -> u64 {
        self.sum(|worker| {
            worker
                .all_routes()
                .nth(index)
                .map_or(0, |route| count(route))
        })
    }

    /// Returns the counters of the first worker. Callers read only their names, which are the same for all workers.
    fn first(&self) -> &Metrics {
        self.workers.first().expect("there is at least one worker")
    }

    fn encode_routes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut requests = encoder.encode_descriptor(
            "requests",
            "Requests with a response, by route and status",
            None,
            MetricType::Counter,
        )?;
        for (index, route) in self.first().all_routes().enumerate() {
            for status in 0..STATUSES {
                let count = self.sum_of_route(index, |route| route.by_status[status].get());
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
            "Requests delayed by a limit, by route",
            None,
            MetricType::Counter,
        )?;
        for (index, route) in self.first().all_routes().enumerate() {
            let count = self.sum_of_route(index, |route| route.delayed.get());
            counter(delayed.encode_family(&[("route", &*route.name)])?, count)?;
        }
        Ok(())
    }

    fn encode_limits(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        type LimitCounter = fn(&LimitMetrics) -> &Count;
        let counters: [(&str, &str, LimitCounter); 2] = [
            (
                "refused",
                "Requests rejected, by the limit with the longest wait",
                |limit| &limit.refused,
            ),
            (
                "shadow_refused",
                "Requests that a limit in shadow mode would have rejected, by limit",
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

    fn encode_buffers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut exceeded = encoder.encode_descriptor(
            "buffers_exceeded",
            "Bodies that exceeded max_buffered or max_buffered_per_client, by kind: rejected keyed requests and replays, \
             uploads streamed early, responses not stored, copies for retries dropped",
            None,
            MetricType::Counter,
        )?;
        for kind in Buffered::ALL {
            let labels = [("kind", kind.label())];
            counter(
                exceeded.encode_family(&labels)?,
                self.buffers.exceeded(kind),
            )?;
        }
        Ok(())
    }

    fn encode_http2(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut resets = encoder.encode_descriptor(
            "http2_early_resets",
            "HTTP/2 streams reset after their response while the client was still sending, by the bound reached",
            None,
            MetricType::Counter,
        )?;
        for (index, reason) in EarlyReset::ALL.into_iter().enumerate() {
            let count = self.sum(|worker| worker.http2.early_resets[index].get());
            counter(resets.encode_family(&[("reason", reason.label())])?, count)?;
        }
        Ok(())
    }
}

fn counter(mut encoder: MetricEncoder<'_>, count: u64) -> fmt::Result {
    encoder.encode_counter::<NoLabelSet, _, u64>(&count, None)
}

fn gauge(mut encoder: MetricEncoder<'_>, value: i64) -> fmt::Result {
    encoder.encode_gauge(&value)
}

fn histogram(mut encoder: MetricEncoder<'_>, snapshot: &HistogramSnapshot) -> fmt::Result {
    encoder.encode_histogram::<NoLabelSet>(snapshot.sum, snapshot.count(), &snapshot.buckets, None)
}

fn size(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
