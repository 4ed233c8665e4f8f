//! Prometheus metrics of the stages that the gateway and embedding applications share: requests, limits, idempotency
//! keys, stores and buffered bodies.
//!
//! Each counter is the sum over all workers. Gauges show the state of the store and of the buffers. `admin` adds the
//! metrics that only the gateway has.

mod idempotency;
mod store;

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use crate::metrics::{Count, HistogramSnapshot, LimitMetrics, Metrics, RouteMetrics, STATUSES};
use crate::request::buffers::{Buffered, Buffers};
use crate::store::{BucketStore, RecordStore};

/// Value of `Content-Type` of the metrics as text.
pub(crate) const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Sources of the metrics of the stages.
#[derive(Debug)]
pub(crate) struct StageMetrics {
    /// Counters of each worker. There is at least one worker, and all workers have the same routes and limits.
    pub(crate) workers: Arc<[Arc<Metrics>]>,
    /// Store of the buckets of rate limits.
    pub(crate) buckets: BucketStore,
    /// Store of idempotency records.
    pub(crate) records: RecordStore,
    /// Bounds on buffered bodies, and the bytes in use.
    pub(crate) buffers: Buffers,
}

impl Collector for StageMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_all(&mut encoder)
    }
}

impl StageMetrics {
    /// Encodes all metrics of the stages.
    pub(crate) fn encode_all(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_routes(encoder)?;
        self.encode_limits(encoder)?;
        self.encode_keyed(encoder)?;
        self.encode_records(encoder)?;
        self.encode_store(encoder)?;
        self.encode_buffers(encoder)?;
        let buckets = self.buckets.local();
        counters(
            encoder,
            &[(
                "overflow_charges",
                "Charges to overflow buckets, which clients share because max_clients buckets are tracked",
                buckets.shared_charges(),
            )],
        )?;
        gauges(
            encoder,
            &[
                ("buckets", "Tracked buckets", size(buckets.tracked())),
                (
                    "buckets_max",
                    "Limit of tracked buckets (max_clients)",
                    size(buckets.capacity()),
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
            ],
        )
    }

    /// Returns the metrics in the `OpenMetrics` text format, with the prefix `tidegate`.
    pub(crate) fn into_text(self) -> String {
        let mut registry = Registry::with_prefix("tidegate");
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        encode(&mut text, &registry).expect("writing to a string succeeds");
        text
    }

    /// Adds up a counter over all workers. `count` reads the counter of one worker.
    pub(crate) fn sum(&self, count: impl Fn(&Metrics) -> u64) -> u64 {
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
    pub(crate) fn first(&self) -> &Metrics {
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
        // A request that matches no route has no limits, so it is never delayed.
        let routes = self.first().routes.iter().enumerate();
        let series = routes.map(|(index, route)| {
            let count = self.sum_of_route(index, |route| route.delayed.get());
            ([("route", &*route.name)], count)
        });
        counter_by(
            encoder,
            "delayed",
            "Requests delayed by a limit, by route",
            series,
        )
    }

    fn encode_limits(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        type LimitCounter = fn(&LimitMetrics) -> &Count;
        let counters: [(&str, &str, LimitCounter); 5] = [
            (
                "admitted",
                "Admitted requests, by route and limit",
                |limit| &limit.admitted,
            ),
            (
                "near_limit",
                "Admitted requests that left a bucket with less than a fifth of its tokens, by route and limit",
                |limit| &limit.near,
            ),
            (
                "rejected",
                "Requests rejected, by route and the limit with the longest wait",
                |limit| &limit.rejected,
            ),
            (
                "shadow_rejected",
                "Requests that a limit in shadow mode would have rejected, by route and limit",
                |limit| &limit.shadow_rejected,
            ),
            (
                "early_returns",
                "Rejected requests of a key that a rejection had told to wait longer, by route and limit",
                |limit| &limit.early,
            ),
        ];
        for (name, help, pick) in counters {
            let limits = self.first().limits.iter().enumerate();
            let series = limits.map(|(index, limit)| {
                let count = self.sum(|worker| pick(&worker.limits[index]).get());
                ([("route", &*limit.route), ("limit", &*limit.name)], count)
            });
            counter_by(encoder, name, help, series)?;
        }
        Ok(())
    }

    fn encode_buffers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        counter_by(
            encoder,
            "buffers_exceeded",
            "Bodies that exceeded max_buffered or max_buffered_per_client, by kind: rejected keyed requests and replays, \
             uploads streamed early, responses not stored, copies for retries dropped",
            Buffered::ALL.map(|kind| ([("kind", kind.label())], self.buffers.exceeded(kind))),
        )
    }
}

/// Encodes counters without labels: the name, help and value of each.
pub(crate) fn counters(
    encoder: &mut DescriptorEncoder<'_>,
    table: &[(&str, &str, u64)],
) -> fmt::Result {
    for &(name, help, count) in table {
        let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        counter(metric, count)?;
    }
    Ok(())
}

/// Encodes gauges without labels: the name, help and value of each.
pub(crate) fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    table: &[(&str, &str, i64)],
) -> fmt::Result {
    for &(name, help, value) in table {
        let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        gauge(metric, value)?;
    }
    Ok(())
}

/// Encodes a counter with labels: the labels and value of each of its series.
pub(crate) fn counter_by<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    series: impl IntoIterator<Item = (L, u64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, count) in series {
        counter(family.encode_family(&labels)?, count)?;
    }
    Ok(())
}

/// Encodes a gauge with labels: the labels and value of each of its series.
pub(crate) fn gauge_by<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    series: impl IntoIterator<Item = (L, i64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in series {
        gauge(family.encode_family(&labels)?, value)?;
    }
    Ok(())
}

/// Encodes the value of a counter.
pub(crate) fn counter(mut encoder: MetricEncoder<'_>, count: u64) -> fmt::Result {
    encoder.encode_counter::<NoLabelSet, _, u64>(&count, None)
}

/// Encodes the value of a gauge.
pub(crate) fn gauge(mut encoder: MetricEncoder<'_>, value: i64) -> fmt::Result {
    encoder.encode_gauge(&value)
}

/// Encodes a latency histogram, in seconds.
pub(crate) fn histogram(
    mut encoder: MetricEncoder<'_>,
    snapshot: &HistogramSnapshot,
) -> fmt::Result {
    encoder.encode_histogram::<NoLabelSet>(snapshot.sum, snapshot.count(), &snapshot.buckets, None)
}

/// Converts a size to the value of a gauge.
pub(crate) fn size(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
