//! Exports metrics of the runs and traces of scenarios. They are exported only if the configuration has a scenario.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;

use super::Scrape;
use crate::admin::stage_metrics::{counters, gauges, size};

impl Scrape {
    pub(super) fn encode_scenarios(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        if self.scenarios.iter().next().is_none() {
            return Ok(());
        }
        let usage = self.scenarios.usage();
        gauges(
            encoder,
            &[
                (
                    "scenario_runs",
                    "Runs of scenarios in memory",
                    size(usage.runs),
                ),
                (
                    "scenario_positions",
                    "Positions of clients and idempotency keys in scenarios",
                    size(usage.positions),
                ),
                (
                    "scenario_trace_bytes",
                    "Estimated size of the traces of scenarios, in bytes",
                    size(usage.trace_bytes),
                ),
            ],
        )?;
        counters(
            encoder,
            &[
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
            ],
        )
    }
}
