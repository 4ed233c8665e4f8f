//! Exports metrics of requests with an idempotency key and of idempotency records.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::{StageMetrics, counter_by, counters, gauge_by, gauges, histogram};
use crate::idempotency::{RecordState, Records as _};
use crate::metrics::{
    Count, KeyOutcome, KeyedMetrics, LatencyHistogram, RouteMetrics, StoreBounds,
};
use crate::store::Bound;

impl StageMetrics {
    /// Encodes the outcomes of requests with an idempotency key, and the latency of the idempotency store.
    pub(super) fn encode_keyed(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let series = self.keyed_routes().flat_map(|(index, route)| {
            KeyOutcome::ALL.map(|outcome| {
                let count = self.sum(|worker| outcome.count(&worker.routes[index].keyed).get());
                (
                    [("route", &*route.name), ("outcome", outcome.label())],
                    count,
                )
            })
        });
        counter_by(
            encoder,
            "idempotency_requests",
            "Requests checked for an idempotency key, by route and outcome. A request that waited also counts with \
             its final outcome",
            series,
        )?;
        self.encode_executions(encoder)?;
        self.encode_store_latency(encoder)
    }

    fn encode_executions(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        type KeyedCounter = fn(&KeyedMetrics) -> &Count;
        let counters: [(&str, &str, KeyedCounter); 4] = [
            (
                "idempotency_executions_lost",
                "Executions whose outcome is unknown or whose response could not be recorded, by route",
                |keyed| &keyed.lost,
            ),
            (
                "idempotency_executions_released",
                "Executions that released their key, by route",
                |keyed| &keyed.released,
            ),
            (
                "idempotency_client_share_rejections",
                "Requests with a new key rejected because their client holds its share of the store, by route",
                |keyed| &keyed.client_share_rejections,
            ),
            (
                "idempotency_store_errors",
                "Failed store operations, by route",
                |keyed| &keyed.store_errors,
            ),
        ];
        for (name, help, pick) in counters {
            let series = self.keyed_routes().map(|(index, route)| {
                let count = self.sum(|worker| pick(&worker.routes[index].keyed).get());
                ([("route", &*route.name)], count)
            });
            counter_by(encoder, name, help, series)?;
        }
        Ok(())
    }

    fn encode_store_latency(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        type KeyedHistogram = fn(&KeyedMetrics) -> &LatencyHistogram<StoreBounds>;
        let operations: [(&str, KeyedHistogram); 2] = [
            ("claim", |keyed| &keyed.claim_latency),
            ("complete", |keyed| &keyed.complete_latency),
        ];
        let mut family = encoder.encode_descriptor(
            "idempotency_store_seconds",
            "Latency of store operations, by operation",
            None,
            MetricType::Histogram,
        )?;
        for (operation, pick) in operations {
            let routes = self.workers.iter().flat_map(|worker| &worker.routes);
            let snapshot = LatencyHistogram::sum(routes.map(|route| pick(&route.keyed)));
            histogram(
                family.encode_family(&[("operation", operation)])?,
                &snapshot,
            )?;
        }
        Ok(())
    }

    /// Encodes the number of idempotency records, their size, and the number of evicted responses. If several gateways
    /// share the store, only the number of records in progress is encoded, and this number counts only the executions
    /// of this gateway.
    pub(super) fn encode_records(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let counts = self.records.counts();
        let states: &[RecordState] = if self.records.is_shared() {
            &[RecordState::InProgress]
        } else {
            &RecordState::ALL
        };
        gauge_by(
            encoder,
            "idempotency_records",
            "Records of idempotency keys, by state",
            states
                .iter()
                .map(|&state| ([("state", state.name())], gauge_value(counts.of(state)))),
        )?;
        self.encode_capacity(encoder)?;
        if self.records.is_shared() {
            return Ok(());
        }
        if let Some(effective_ttl) = counts.effective_ttl {
            let help = "How long completed keys are kept: the longest ttl, or less while keys are forgotten early";
            let seconds = gauge_value(effective_ttl.as_secs());
            gauges(
                encoder,
                &[("idempotency_effective_ttl_seconds", help, seconds)],
            )?;
        }
        gauges(
            encoder,
            &[(
                "idempotency_bytes",
                "Approximate size of the stored responses in bytes",
                gauge_value(counts.bytes),
            )],
        )?;
        counters(
            encoder,
            &[
                (
                    "idempotency_forgotten",
                    "Completed keys forgotten before their ttl because the store was full",
                    counts.forgotten,
                ),
                (
                    "idempotency_evictions",
                    "Stored responses evicted because the store was full",
                    counts.evictions,
                ),
            ],
        )
    }

    fn encode_capacity(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(capacity_use) = self.records.capacity_use() else {
            return Ok(());
        };
        let names = match capacity_use.bound {
            Bound::MaxKeys => [
                ("idempotency_keys", "Stored idempotency keys"),
                (
                    "idempotency_keys_max",
                    "Limit of stored idempotency keys (max_keys)",
                ),
            ],
            Bound::MaxMemory => [
                (
                    "redis_memory_bytes",
                    "Memory in use by Redis, of the fullest server of a cluster",
                ),
                (
                    "redis_memory_bytes_max",
                    "Memory limit of this Redis server (maxmemory)",
                ),
            ],
        };
        let [(used, used_help), (max, max_help)] = names;
        gauges(
            encoder,
            &[
                (used, used_help, gauge_value(capacity_use.used)),
                (max, max_help, gauge_value(capacity_use.max)),
            ],
        )
    }

    /// Returns the routes that have a rule for idempotency keys, each with its index.
    fn keyed_routes(&self) -> impl Iterator<Item = (usize, &RouteMetrics)> {
        let routes = self.first().routes.iter().enumerate();
        routes
            .filter(|(_, route)| route.has_keys())
            .map(|(index, route)| (index, &**route))
    }
}

fn gauge_value(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::clock::Clock;
    use crate::metrics::Metrics;
    use crate::request::buffers::{BufferBounds, Buffers};
    use crate::store::memory::MemoryBuckets;
    use crate::store::memory::records::MemoryRecords;
    use crate::store::{BucketStore, RecordStore, StoreCapacity};

    /// Creates the counters of two workers. The gateway has two routes, and the first route has a rule for idempotency
    /// keys.
    fn workers() -> [Arc<Metrics>; 2] {
        let routes = [("payments".into(), true), ("reports".into(), false)];
        [0; 2].map(|_| {
            let routes = routes.iter().map(|(name, has_keys)| (name, *has_keys));
            Arc::new(Metrics::default().renewed(routes, [], []))
        })
    }

    fn scraped(workers: &[Arc<Metrics>]) -> String {
        StageMetrics {
            workers: workers.into(),
            buckets: BucketStore::Memory(Arc::new(MemoryBuckets::new(1, Clock::real()))),
            records: RecordStore::Memory(MemoryRecords::new(
                StoreCapacity::default(),
                Clock::real(),
            )),
            buffers: Buffers::new(BufferBounds::default()),
        }
        .into_text()
    }

    #[test]
    fn each_counter_of_keyed_requests_is_exported_as_the_sum_over_workers() {
        let workers = workers();
        let counts: [fn(&KeyedMetrics) -> &Count; 13] = [
            |keyed| &keyed.claims,
            |keyed| &keyed.replays,
            |keyed| &keyed.waits,
            |keyed| &keyed.conflicts,
            |keyed| &keyed.mismatches,
            |keyed| &keyed.unknowns,
            |keyed| &keyed.tombstones,
            |keyed| &keyed.invalid,
            |keyed| &keyed.exhausted,
            |keyed| &keyed.lost,
            |keyed| &keyed.released,
            |keyed| &keyed.store_errors,
            |keyed| &keyed.client_share_rejections,
        ];
        for worker in &workers {
            let keyed = &worker.routes[0].keyed;
            for (times, count) in (1..).zip(counts) {
                count(keyed).add(times);
            }
        }
        let text = scraped(&workers);
        for (series, count) in [
            ("requests_total{route=\"payments\",outcome=\"executed\"}", 2),
            ("requests_total{route=\"payments\",outcome=\"replayed\"}", 4),
            ("requests_total{route=\"payments\",outcome=\"waited\"}", 6),
            ("requests_total{route=\"payments\",outcome=\"conflict\"}", 8),
            (
                "requests_total{route=\"payments\",outcome=\"mismatch\"}",
                10,
            ),
            ("requests_total{route=\"payments\",outcome=\"unknown\"}", 12),
            (
                "requests_total{route=\"payments\",outcome=\"not_retained\"}",
                14,
            ),
            ("requests_total{route=\"payments\",outcome=\"invalid\"}", 16),
            (
                "requests_total{route=\"payments\",outcome=\"exhausted\"}",
                18,
            ),
            ("executions_lost_total{route=\"payments\"}", 20),
            ("executions_released_total{route=\"payments\"}", 22),
            ("store_errors_total{route=\"payments\"}", 24),
            ("client_share_rejections_total{route=\"payments\"}", 26),
        ] {
            let line = format!("tidegate_idempotency_{series} {count}");
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn a_route_without_a_key_rule_has_no_key_series() {
        let text = scraped(&workers());
        let keyed = |line: &&str| line.starts_with("tidegate_idempotency_");
        assert!(text.lines().filter(keyed).count() > 0);
        for name in ["reports", "(none)"] {
            let label = format!("route=\"{name}\"");
            assert!(!text.lines().filter(keyed).any(|line| line.contains(&label)));
        }
    }

    #[test]
    fn store_latency_is_exported_by_operation_over_all_routes() {
        let workers = workers();
        for (worker, micros) in workers.iter().zip([50, 60]) {
            let keyed = &worker.routes[0].keyed;
            keyed.claim_latency.record(Duration::from_micros(micros));
        }
        let text = scraped(&workers);
        for line in [
            "seconds_bucket{le=\"0.00005\",operation=\"claim\"} 1",
            "seconds_bucket{le=\"0.0001\",operation=\"claim\"} 2",
            "seconds_bucket{le=\"1.0\",operation=\"claim\"} 2",
            "seconds_bucket{le=\"+Inf\",operation=\"claim\"} 2",
            "seconds_count{operation=\"claim\"} 2",
            "seconds_sum{operation=\"claim\"} 0.00011",
            "seconds_count{operation=\"complete\"} 0",
        ] {
            let line = format!("tidegate_idempotency_store_{line}");
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }
}
