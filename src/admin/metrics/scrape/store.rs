//! How the store is, where it can be otherwise than well.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::{Scrape, counter, gauge};

impl Scrape {
    pub(super) fn encode_store(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(redis) = &self.redis else {
            return Ok(());
        };
        let health = redis.health();
        let mut degraded = encoder.encode_descriptor(
            "store_degraded",
            "Whether Redis is not asked because it fails, by what it is asked for",
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
            "Times Redis could not do what it was asked, by what it was asked for",
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
