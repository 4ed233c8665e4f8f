//! Metrics of requests with an idempotency key, and of the store of their records.

use std::fmt;

use super::StageMetrics;
use super::encoder::FamilyEncoder;
use crate::idempotency::{RecordState, Records as _};
use crate::metrics::{Count, KeyOutcome, KeyedMetrics, LatencyHistogram, StoreBounds};
use crate::store::{Bound, Health};

impl StageMetrics {
    /// Returns the position and the labels of each route with a rule for idempotency keys.
    fn keyed_routes(&self) -> impl Iterator<Item = (usize, [(&str, &str); 1])> {
        let routes = &self.first().routes;
        self.routes().filter(|(at, _)| routes[*at].has_keys())
    }

    pub(super) fn encode_keyed(&self, encoder: &mut FamilyEncoder<'_>) -> fmt::Result {
        let outcomes = self.keyed_routes().flat_map(|(at, [route])| {
            KeyOutcome::ALL.map(|outcome| {
                let count = self.sum_of_route(at, |route| outcome.count(&route.keyed).get());
                ([route, ("outcome", outcome.label())], count)
            })
        });
        let help = "Requests checked for an idempotency key, by route and outcome. A request that waited also counts \
                    with its final outcome";
        encoder.counters("idempotency_requests", help, outcomes)?;
        let mut by_route = |name, help, count: fn(&KeyedMetrics) -> &Count| {
            let series = self.keyed_routes().map(|(at, labels)| {
                let count = self.sum_of_route(at, |route| count(&route.keyed).get());
                (labels, count)
            });
            encoder.counters(name, help, series)
        };
        let help =
            "Executions whose outcome is unknown or whose response could not be recorded, by route";
        by_route("idempotency_executions_lost", help, |keyed| &keyed.lost)?;
        let (name, help) = (
            "idempotency_executions_released",
            "Executions that released their key, by route",
        );
        by_route(name, help, |keyed| &keyed.released)?;
        let (name, help) = (
            "idempotency_client_share_rejections",
            "Requests with a new key rejected because their client holds its share of the store, by route",
        );
        by_route(name, help, |keyed| &keyed.client_share_rejections)?;
        let help = "Failed store operations, by route";
        by_route("idempotency_store_errors", help, |keyed| {
            &keyed.store_errors
        })
    }

    pub(super) fn encode_store_latency(&self, encoder: &mut FamilyEncoder<'_>) -> fmt::Result {
        type KeyedHistogram = fn(&KeyedMetrics) -> &LatencyHistogram<StoreBounds>;
        let operations: [(&str, KeyedHistogram); 2] = [
            ("claim", |keyed| &keyed.claim_latency),
            ("complete", |keyed| &keyed.complete_latency),
        ];
        let series = operations.map(|(operation, latency)| {
            let routes = self.workers.iter().flat_map(|worker| &worker.routes);
            let sum = LatencyHistogram::sum(routes.map(|route| latency(&route.keyed)));
            ([("operation", operation)], sum)
        });
        let help = "Latency of store operations, by operation";
        encoder.histograms("idempotency_store_seconds", help, series)
    }

    /// If several gateways share the store, only the number of records in progress is encoded, which are the executions
    /// of this gateway.
    pub(super) fn encode_records(&self, encoder: &mut FamilyEncoder<'_>) -> fmt::Result {
        let counts = self.records.counts();
        let states: &[RecordState] = if self.records.is_shared() {
            &[RecordState::InProgress]
        } else {
            &RecordState::ALL
        };
        let states = states.iter();
        let states = states.map(|&state| ([("state", state.name())], counts.of(state)));
        let help = "Records of idempotency keys, by state";
        encoder.gauges("idempotency_records", help, states)?;
        self.encode_capacity(encoder)?;
        if self.records.is_shared() {
            return Ok(());
        }
        if let Some(ttl) = counts.effective_ttl {
            let help = "How long completed keys are kept: the longest ttl, or less while keys are forgotten early";
            encoder.gauge("idempotency_effective_ttl_seconds", help, ttl.as_secs())?;
        }
        let help = "Approximate size of the stored responses in bytes";
        encoder.gauge("idempotency_bytes", help, counts.bytes)?;
        let help = "Completed keys forgotten before their ttl because the store was full";
        encoder.counter("idempotency_forgotten", help, counts.forgotten)?;
        let help = "Stored responses evicted because the store was full";
        encoder.counter("idempotency_evictions", help, counts.evictions)
    }

    fn encode_capacity(&self, encoder: &mut FamilyEncoder<'_>) -> fmt::Result {
        let Some(capacity) = self.records.capacity_use() else {
            return Ok(());
        };
        match capacity.bound {
            Bound::MaxKeys => {
                let help = "Stored idempotency keys";
                encoder.gauge("idempotency_keys", help, capacity.used)?;
                let help = "Limit of stored idempotency keys (max_keys)";
                encoder.gauge("idempotency_keys_max", help, capacity.max)
            }
            Bound::MaxMemory => {
                let help = "Memory in use by Redis, of the fullest server of a cluster";
                encoder.gauge("redis_memory_bytes", help, capacity.used)?;
                let help = "Memory limit of this Redis server (maxmemory)";
                encoder.gauge("redis_memory_bytes_max", help, capacity.max)
            }
        }
    }

    /// Encodes nothing if the store cannot fail.
    pub(super) fn encode_health(&self, encoder: &mut FamilyEncoder<'_>) -> fmt::Result {
        let health = self.records.health();
        if health.is_empty() {
            return Ok(());
        }
        let label = |part: &Health| [("part", part.part.name())];
        let degraded = health.iter();
        let degraded = degraded.map(|it| (label(it), i64::from(it.degraded.is_some())));
        let help = "1 if this part of the store is degraded, otherwise 0";
        encoder.gauges("store_degraded", help, degraded)?;
        let failures = health.iter().map(|it| (label(it), it.failures));
        let help = "Failed store operations including recovery attempts, by part";
        encoder.counters("store_failures", help, failures)?;
        #[cfg(feature = "redis")]
        if let Some(losses) = self.records.redis_data_losses() {
            let help = "Times Redis had lost the data of all gateways, such as by FLUSHALL";
            encoder.counter("redis_data_losses", help, losses)?;
        }
        Ok(())
    }
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
        for state in ["in_progress", "completed", "unknown", "tombstone"] {
            let line = format!("tidegate_idempotency_records{{state=\"{state}\"}} 0\n");
            assert!(text.contains(&line), "{line} in\n{text}");
        }
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
