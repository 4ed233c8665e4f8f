//! Collects the values for Prometheus: the metrics of the [stages](crate::admin::stage_metrics), and those of
//! connections, upstreams and scenarios. Each counter is the sum over all workers.

mod scenarios;
mod upstreams;

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::serve::MAX_CONNECTIONS;
use crate::admin::stage_metrics::{StageMetrics, counter, gauge, histogram, size};
use crate::clock::Clock;
use crate::http::connections::Connections;
use crate::metrics::{EarlyReset, LatencyHistogram};
use crate::pipeline::{GatewayState, log};
use crate::scenario::Scenarios;
use crate::server::reload::Reloader;
use crate::upstream::UpstreamState;
use crate::upstream::tunnel::Tunnels;

/// Creates the registry of all metrics, with the prefix `tidegate`.
pub(super) fn registry(
    shared: &GatewayState,
    admin: Arc<Connections>,
    reloader: Option<Arc<Reloader>>,
) -> Registry {
    let mut registry = Registry::with_prefix("tidegate");
    let scrape = Scrape {
        stages: StageMetrics {
            workers: Arc::clone(&shared.metrics),
            buckets: shared.store.buckets.clone(),
            records: shared.store.records.clone(),
            buffers: shared.buffers.clone(),
        },
        connections: Arc::clone(&shared.connections),
        tunnels: Arc::clone(&shared.tunnels),
        scenarios: shared.scenarios.clone(),
        upstream_states: Arc::clone(&shared.upstream_states),
        clock: shared.clock.clone(),
        admin,
        reloader,
    };
    registry.register_collector(Box::new(scrape));
    registry
}

/// Collector that reads the counters and states when Prometheus scrapes `/metrics`.
struct Scrape {
    stages: StageMetrics,
    connections: Arc<Connections>,
    tunnels: Arc<Tunnels>,
    scenarios: Scenarios,
    upstream_states: Arc<[Arc<UpstreamState>]>,
    clock: Clock,
    admin: Arc<Connections>,
    reloader: Option<Arc<Reloader>>,
}

impl Scrape {
    fn encode_totals(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for (name, help, count) in [
            (
                "ambiguous_paths",
                "Requests rejected because their path is ambiguous",
                self.stages
                    .sum(|worker| worker.totals.ambiguous_paths.get()),
            ),
            (
                "strict_path_rejections",
                "Requests rejected because of paths = \"strict\"",
                self.stages
                    .sum(|worker| worker.totals.strict_path_rejections.get()),
            ),
            (
                "responses_truncated",
                "Responses whose last byte was not written to the client's socket",
                self.stages.sum(|worker| worker.totals.truncated.get()),
            ),
            (
                "slow_bodies",
                "Request bodies that arrived more slowly than min_rate",
                self.stages.sum(|worker| worker.totals.slow_bodies.get()),
            ),
            (
                "connections_replaced",
                "Idle client connections closed because a new connection replaced them",
                self.connections.replaced.get(),
            ),
            (
                "connections_rejected",
                "Client connections closed because of max_connections_per_client",
                self.connections.rejected.get(),
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
                "Idle admin connections closed because a new connection replaced them",
                self.admin.replaced.get(),
            ),
            (
                "log_lines_dropped",
                "Log lines dropped because the queue of the log was full",
                log::dropped_lines(),
            ),
            (
                "admin_connections_rejected",
                "Admin connections closed because their client had 64 of them",
                self.admin.rejected.get(),
            ),
        ] {
            counter(
                encoder.encode_descriptor(name, help, None, MetricType::Counter)?,
                count,
            )?;
        }
        Ok(())
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.stages.encode_all(&mut encoder)?;
        self.encode_upstreams(&mut encoder)?;
        self.encode_servers(&mut encoder)?;
        self.encode_totals(&mut encoder)?;
        self.encode_http2(&mut encoder)?;
        self.encode_scenarios(&mut encoder)?;
        self.encode_reloads(&mut encoder)?;
        self.encode_durations(&mut encoder)?;
        let workers = || self.stages.workers.iter();
        let lingering = workers()
            .map(|worker| worker.totals.http2.lingering.get())
            .sum();
        for (name, help, value) in [
            (
                "connections",
                "Open client connections",
                size(self.connections.count()),
            ),
            (
                "tunnels",
                "Upgraded connections, including pending upgrades",
                self.tunnels.open.get(),
            ),
            (
                "admin_connections",
                "Open connections of the admin listener",
                size(self.admin.count()),
            ),
            (
                "admin_connections_max",
                "Limit of the open connections of the admin listener",
                size(MAX_CONNECTIONS),
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

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrape").finish_non_exhaustive()
    }
}

impl Scrape {
    fn encode_reloads(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(reloader) = &self.reloader else {
            return Ok(());
        };
        let mut reloads = encoder.encode_descriptor(
            "config_reloads",
            "Reloads of the configuration, by result",
            None,
            MetricType::Counter,
        )?;
        for (result, count) in [
            ("applied", &reloader.applied),
            ("rejected", &reloader.rejected),
        ] {
            counter(reloads.encode_family(&[("result", result)])?, count.get())?;
        }
        Ok(())
    }

    fn encode_durations(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut durations = encoder.encode_descriptor(
            "request_duration_seconds",
            "Time from the arrival of a request to the end of its response, by route, without rejections by limits",
            None,
            MetricType::Histogram,
        )?;
        for (index, route) in self.stages.first().routes.iter().enumerate() {
            let workers = self.stages.workers.iter();
            let sum = LatencyHistogram::sum(workers.map(|it| &it.routes[index].duration));
            histogram(durations.encode_family(&[("route", &*route.name)])?, &sum)?;
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
            let count = self
                .stages
                .sum(|worker| worker.totals.http2.early_resets[index].get());
            counter(resets.encode_family(&[("reason", reason.label())])?, count)?;
        }
        Ok(())
    }
}
