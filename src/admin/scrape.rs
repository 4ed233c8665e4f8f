//! Collects the values for Prometheus: the metrics of the [stages](crate::admin::stage_metrics), and those of
//! connections, upstreams and scenarios. Each counter is the sum over all workers.

mod process;
mod scenarios;
pub(super) mod text;
mod upstreams;

use std::fmt;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::serve::MAX_CONNECTIONS;
use crate::admin::stage_metrics::{
    StageMetrics, counter_by, counters, gauge_by, gauges, histogram, size,
};
use crate::clock::Clock;
use crate::config::Policy;
use crate::http::connections::Connections;
use crate::metrics::{Count, EarlyReset, LatencyHistogram, TlsFailure, Totals};
use crate::pipeline::{GatewayState, log};
use crate::scenario::Scenarios;
use crate::server::reload::Reloader;
use crate::upstream::UpstreamState;
use crate::upstream::tunnel::Tunnels;

/// Creates the registry of all metrics, with the prefix `tidegate` except for those of the process.
pub(super) fn registry(
    shared: &GatewayState,
    admin: Arc<Connections>,
    reloader: Option<Arc<Reloader>>,
) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(process::Process));
    let scrape = Scrape {
        stages: StageMetrics {
            workers: Arc::clone(&shared.metrics),
            buckets: shared.store.buckets.clone(),
            records: shared.store.records.clone(),
            buffers: shared.buffers.clone(),
        },
        policy: Arc::clone(&shared.policy),
        connections: Arc::clone(&shared.connections),
        tunnels: Arc::clone(&shared.tunnels),
        scenarios: shared.scenarios.clone(),
        upstream_states: Arc::clone(&shared.upstream_states),
        clock: shared.clock.clone(),
        admin,
        reloader,
    };
    let own = registry.sub_registry_with_prefix("tidegate");
    own.register_collector(Box::new(scrape));
    registry
}

/// Collector that reads the counters and states when Prometheus scrapes `/metrics`.
struct Scrape {
    stages: StageMetrics,
    policy: Arc<Policy>,
    connections: Arc<Connections>,
    tunnels: Arc<Tunnels>,
    scenarios: Scenarios,
    upstream_states: Arc<[Arc<UpstreamState>]>,
    clock: Clock,
    admin: Arc<Connections>,
    reloader: Option<Arc<Reloader>>,
}

impl Scrape {
    fn total(&self, count: impl Fn(&Totals) -> &Count) -> u64 {
        self.stages.sum(|worker| count(&worker.totals).get())
    }

    fn encode_totals(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        counters(
            encoder,
            &[
                (
                    "ambiguous_paths",
                    "Requests rejected because their path is ambiguous",
                    self.total(|totals| &totals.ambiguous_paths),
                ),
                (
                    "strict_path_rejections",
                    "Requests rejected because of paths = \"strict\"",
                    self.total(|totals| &totals.strict_path_rejections),
                ),
                (
                    "responses_truncated",
                    "Responses whose last byte was not written to the client's socket",
                    self.total(|totals| &totals.truncated),
                ),
                (
                    "slow_bodies",
                    "Request bodies that arrived more slowly than min_rate",
                    self.total(|totals| &totals.slow_bodies),
                ),
                (
                    "received_bytes",
                    "Bytes read from client connections, including heads and TLS",
                    self.total(|totals| &totals.received),
                ),
                (
                    "sent_bytes",
                    "Bytes written to client connections, including heads and TLS",
                    self.total(|totals| &totals.sent),
                ),
                (
                    "connections_accepted",
                    "Client connections accepted, except those rejected because of max_connections_per_client",
                    self.connections.accepted(),
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
            ],
        )
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.stages.encode_all(&mut encoder)?;
        self.encode_upstreams(&mut encoder)?;
        self.encode_servers(&mut encoder)?;
        self.encode_totals(&mut encoder)?;
        self.encode_http2(&mut encoder)?;
        self.encode_tls(&mut encoder)?;
        Self::encode_build(&mut encoder)?;
        self.encode_scenarios(&mut encoder)?;
        self.encode_config(&mut encoder)?;
        self.encode_durations(&mut encoder)?;
        let workers = self.stages.workers.iter();
        let lingering = workers.map(|worker| worker.totals.http2.lingering.get());
        gauges(
            &mut encoder,
            &[
                (
                    "connections",
                    "Open client connections",
                    size(self.connections.count()),
                ),
                (
                    "connections_max",
                    "Limit of the open client connections (max_connections)",
                    size(self.connections.max),
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
                    lingering.sum(),
                ),
            ],
        )
    }
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrape").finish_non_exhaustive()
    }
}

impl Scrape {
    fn encode_build(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let labels = [
            ("version", env!("CARGO_PKG_VERSION")),
            ("commit", env!("TIDEGATE_COMMIT")),
        ];
        let help = "1, with version and commit of the gateway";
        gauge_by(encoder, "build_info", help, [(labels, 1)])
    }

    fn encode_config(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(reloader) = &self.reloader else {
            return Ok(());
        };
        counter_by(
            encoder,
            "config_reloads",
            "Reloads of the configuration, by result",
            [
                ([("result", "applied")], reloader.applied.get()),
                ([("result", "rejected")], reloader.rejected.get()),
            ],
        )?;
        let status = reloader.status();
        let help = "1, with the SHA-256 of the configuration in force";
        gauge_by(
            encoder,
            "config_info",
            help,
            [([("hash", &*status.hash)], 1)],
        )?;
        let loaded_at = status.loaded_at.duration_since(UNIX_EPOCH);
        let loaded_at = loaded_at.unwrap_or_default().as_secs();
        let is_rejected = matches!(status.last_reload, Some((_, Some(_))));
        gauges(
            encoder,
            &[
                (
                    "config_loaded_timestamp_seconds",
                    "Unix time at which the configuration in force was loaded",
                    loaded_at.cast_signed(),
                ),
                (
                    "config_last_reload_successful",
                    "0 if the last reload was rejected, otherwise 1",
                    (!is_rejected).into(),
                ),
            ],
        )
    }

    fn encode_tls(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(tls) = &self.policy.server.tls else {
            return Ok(());
        };
        let reasons = TlsFailure::NAMES.into_iter().enumerate();
        counter_by(
            encoder,
            "tls_handshake_failures",
            "Failed TLS handshakes with clients, by reason",
            reasons.map(|(index, reason)| {
                let count = self.total(|totals| &totals.tls_failures[index]);
                ([("reason", reason)], count)
            }),
        )?;
        let file = tls.certificate.to_string_lossy();
        let expiry = tls.expiry.map(|at| at.as_secs().cast_signed());
        gauge_by(
            encoder,
            "certificate_expiry_timestamp_seconds",
            "Unix time at which the certificate in this file expires",
            expiry.map(|at| ([("certificate", &*file)], at)),
        )
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
        counter_by(
            encoder,
            "http2_early_resets",
            "HTTP/2 streams reset after their response while the client was still sending, by the bound reached",
            EarlyReset::ALL.map(|reason| {
                let count = self.total(|totals| &totals.http2.early_resets[reason as usize]);
                ([("reason", reason.label())], count)
            }),
        )
    }
}
