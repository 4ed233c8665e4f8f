//! Exports metrics of the health of the store. They are exported only if the store can fail.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::{StageMetrics, counter, gauge};

impl StageMetrics {
    pub(super) fn encode_store(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let health = self.records.health();
        if health.is_empty() {
            return Ok(());
        }
        let mut degraded = encoder.encode_descriptor(
            "store_degraded",
            "1 if this part of the store is degraded, otherwise 0",
            None,
            MetricType::Gauge,
        )?;
        for part in &health {
            let labels = [("part", part.part.name())];
            gauge(
                degraded.encode_family(&labels)?,
                i64::from(part.degraded.is_some()),
            )?;
        }
        let mut failures = encoder.encode_descriptor(
            "store_failures",
            "Failed store operations including recovery attempts, by part",
            None,
            MetricType::Counter,
        )?;
        for part in &health {
            let labels = [("part", part.part.name())];
            counter(failures.encode_family(&labels)?, part.failures)?;
        }
        Ok(())
    }
}
