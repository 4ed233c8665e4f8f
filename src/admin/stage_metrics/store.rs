//! Exports metrics of the health of the store. They are exported only if the store can fail.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;

use super::{StageMetrics, counter_by, counters, gauge_by};
use crate::store::Health;

impl StageMetrics {
    pub(super) fn encode_store(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let health = self.records.health();
        if health.is_empty() {
            return Ok(());
        }
        let label = |part: &Health| [("part", part.part.name())];
        gauge_by(
            encoder,
            "store_degraded",
            "1 if this part of the store is degraded, otherwise 0",
            health
                .iter()
                .map(|it| (label(it), it.degraded.is_some().into())),
        )?;
        counter_by(
            encoder,
            "store_failures",
            "Failed store operations including recovery attempts, by part",
            health.iter().map(|it| (label(it), it.failures)),
        )?;
        let Some(losses) = self.records.redis_data_losses() else {
            return Ok(());
        };
        let help = "Times Redis had lost the data of all gateways, such as by FLUSHALL";
        counters(encoder, &[("redis_data_losses", help, losses)])
    }
}
