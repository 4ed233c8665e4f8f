//! Exports metrics of the runs and traces of scenarios. They are exported only if the configuration has a scenario.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::Scrape;
use crate::admin::stage_metrics::{counter, gauge, size};

impl Scrape {
    pub(super) fn encode_scenarios(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.scenarios.iter().next().is_none() {
            return Ok(());
        }
        let usage = self.scenarios.usage();
        for (name, help, value) in [
            ("scenario_runs", "Runs of scenarios in memory", usage.runs),
            (
                "scenario_positions",
                "Positions of clients and idempotency keys in scenarios",
                usage.positions,
            ),
            (
                "scenario_trace_bytes",
                "Estimated size of the traces of scenarios, in bytes",
                usage.trace_bytes,
            ),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            gauge(metric, size(value))?;
        }
        for (name, help, count) in [
            (
                "scenario_requests_untraced",
                "Requests of scenarios that are not in the trace because it is full",
                usage.untraced,
            ),
            (
                "scenario_runs_removed",
                "Runs of scenarios that were removed because there are too many",
                usage.removed_runs,
            ),
        ] {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            counter(metric, count)?;
        }
        Ok(())
    }
}
