//! Collects the values for Prometheus: the metrics of the [stages](crate::admin::stage_metrics), and those of
//! connections, upstreams and scenarios. Each counter is the sum over all workers.

mod process;
pub(super) mod text;
mod upstreams;

use std::fmt;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Registry;

use super::serve::MAX_CONNECTIONS;
use crate::admin::stage_metrics::StageMetrics;
use crate::admin::stage_metrics::encoder::FamilyEncoder;
use crate::http::connections::Connections;
use crate::metrics::{Count, EarlyReset, LatencyHistogram, TlsFailure, Totals};
use crate::pipeline::{GatewayState, log};
use crate::server::reload::Reloader;

/// Creates the registry of all metrics, with the prefix `tidegate` except for those of the process.
pub(super) fn registry(
    gateway: Arc<GatewayState>,
    admin: Arc<Connections>,
    reloader: Option<Arc<Reloader>>,
) -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(process::Process));
    let scrape = Scrape {
        stages: StageMetrics {
            workers: Arc::clone(&gateway.metrics),
            buckets: gateway.store.buckets.clone(),
            records: gateway.store.records.clone(),
            buffers: gateway.buffers.clone(),
        },
        gateway,
        admin,
        reloader,
    };
    let own = registry.sub_registry_with_prefix("tidegate");
    own.register_collector(Box::new(scrape));
    registry
}

struct Scrape {
    stages: StageMetrics,
    gateway: Arc<GatewayState>,
    /// Connections of the admin listener.
    admin: Arc<Connections>,
    reloader: Option<Arc<Reloader>>,
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut encoder = FamilyEncoder(encoder);
        let encoder = &mut encoder;
        self.stages.encode_all(encoder)?;
        self.encode_upstreams(encoder)?;
        self.encode_servers(encoder)?;
        self.encode_totals(encoder)?;
        self.encode_connections(encoder)?;
        self.encode_http2(encoder)?;
        self.encode_tls(encoder)?;
        self.encode_scenarios(encoder)?;
        self.encode_config(encoder)?;
        let durations = self.stages.routes().map(|(at, labels)| {
            let workers = self.stages.workers.iter();
            let durations = workers.map(|worker| &worker.routes[at].duration);
            (labels, LatencyHistogram::sum(durations))
        });
        let help = "Time from the arrival of a request to the end of its response, by route, without rejections by \
                    limits";
        encoder.histograms("request_duration_seconds", help, durations)?;
        let labels = [
            ("version", env!("CARGO_PKG_VERSION")),
            ("commit", env!("TIDEGATE_COMMIT")),
        ];
        let help = "1, with version and commit of the gateway";
        encoder.gauges("build_info", help, [(labels, 1)])
    }
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scrape").finish_non_exhaustive()
    }
}

impl Scrape {
    fn total(&self, count: impl Fn(&Totals) -> &Count) -> u64 {
        self.stages.sum(|worker| count(&worker.totals).get())
    }

    fn encode_totals(&self, encoder: &mut FamilyEncoder<'_>) -> fmt::Result {
        let mut total = |name, help, count: fn(&Totals) -> &Count| {
            encoder.counter(name, help, self.total(count))
        };
        let help = "Requests rejected because their path is ambiguous";
        total("ambiguous_paths", help, |it| &it.ambiguous_paths)?;
        let help = "Requests rejected because of paths = \"strict\"";
        total("strict_path_rejections", help, |it| {
            &it.strict_path_rejections
        })?;
        let help = "Responses whose last byte was not written to the client's socket";
        total("responses_truncated", help, |it| &it.truncated)?;
        let help = "Request bodies that arrived more slowly than min_rate";
        total("slow_bodies", help, |it| &it.slow_bodies)?;
        let help = "Bytes read from client connections, including heads and TLS";
        total("received_bytes", help, |it| &it.received)?;
        let help = "Bytes written to client connections, including heads and TLS";
        total("sent_bytes", help, |it| &it.sent)?;
        let help = "Log lines dropped because the queue of the log was full";
        encoder.counter("log_lines_dropped", help, log::dropped_lines())
    }

    fn encode_connections(&self, encoder: &mut FamilyEncoder<'_>) -> fmt::Result {
        let (clients, admin) = (&self.gateway.connections, &self.admin);
        let help = "Client connections accepted, except those rejected because of max_connections_per_client";
        encoder.counter("connections_accepted", help, clients.accepted())?;
        let help = "Idle client connections closed because a new connection replaced them";
        encoder.counter("connections_replaced", help, clients.replaced.get())?;
        let help = "Client connections closed because of max_connections_per_client";
        encoder.counter("connections_rejected", help, clients.rejected.get())?;
        encoder.gauge("connections", "Open client connections", clients.count())?;
        let help = "Limit of the open client connections (max_connections)";
        encoder.gauge("connections_max", help, clients.max as u64)?;
        let help = "Idle admin connections closed because a new connection replaced them";
        encoder.counter("admin_connections_replaced", help, admin.replaced.get())?;
        let help = "Admin connections closed because their client had 64 of them";
        encoder.counter("admin_connections_rejected", help, admin.rejected.get())?;
        let help = "Open connections of the admin listener";
        encoder.gauge("admin_connections", help, admin.count())?;
        let help = "Limit of the open connections of the admin listener";
        encoder.gauge("admin_connections_max", help, MAX_CONNECTIONS)?;
        let tunnels = &self.gateway.tunnels;
        let help = "Upgrade requests rejected because of max_tunnels_per_client";
        encoder.counter("tunnels_rejected", help, tunnels.rejected.get())?;
        let help = "Upgraded connections closed because of tunnel_timeout";
        encoder.counter("tunnels_timed_out", help, tunnels.timed_out.get())?;
        let help = "Upgraded connections, including pending upgrades";
        encoder.gauge("tunnels", help, tunnels.open.get())
    }

    fn encode_http2(&self, encoder: &mut FamilyEncoder<'_>) -> fmt::Result {
        let help = "HTTP/2 streams reset after their response while the client was still sending, by the bound reached";
        let resets = EarlyReset::ALL.map(|reason| {
            let count = self.total(|totals| &totals.http2.early_resets[reason as usize]);
            ([("reason", reason.label())], count)
        });
        encoder.counters("http2_early_resets", help, resets)?;
        let help = "HTTP/2 streams that stay open after their response because the client is still sending";
        let workers = self.stages.workers.iter();
        let lingering = workers.map(|worker| worker.totals.http2.lingering.get());
        encoder.gauge("http2_lingering_streams", help, lingering.sum::<i64>())
    }

    fn encode_tls(&self, encoder: &mut FamilyEncoder<'_>) -> fmt::Result {
        let Some(tls) = &self.gateway.policy.server.tls else {
            return Ok(());
        };
        let failures = TlsFailure::NAMES
            .into_iter()
            .enumerate()
            .map(|(at, reason)| {
                let count = self.total(|totals| &totals.tls_failures[at]);
                ([("reason", reason)], count)
            });
        let help = "Failed TLS handshakes with clients, by reason";
        encoder.counters("tls_handshake_failures", help, failures)?;
        let file = tls.certificate.to_string_lossy();
        let expiry = tls
            .expiry
            .map(|at| ([("certificate", &*file)], at.as_secs()));
        let help = "Unix time at which the certificate in this file expires";
        encoder.gauges("certificate_expiry_timestamp_seconds", help, expiry)
    }

    /// Encodes nothing if the configuration has no scenario.
    fn encode_scenarios(&self, encoder: &mut FamilyEncoder<'_>) -> fmt::Result {
        let scenarios = &self.gateway.scenarios;
        if scenarios.iter().next().is_none() {
            return Ok(());
        }
        let usage = scenarios.usage();
        encoder.gauge("scenario_runs", "Runs of scenarios in memory", usage.runs)?;
        let help = "Positions of clients and idempotency keys in scenarios";
        encoder.gauge("scenario_positions", help, usage.positions)?;
        let help = "Estimated size of the traces of scenarios, in bytes";
        encoder.gauge("scenario_trace_bytes", help, usage.trace_bytes)?;
        let help = "Requests of scenarios that are not in the trace because it is full";
        encoder.counter("scenario_requests_untraced", help, usage.untraced)?;
        let help = "Runs of scenarios that were removed because there are too many";
        encoder.counter("scenario_runs_removed", help, usage.removed_runs)
    }

    fn encode_config(&self, encoder: &mut FamilyEncoder<'_>) -> fmt::Result {
        let Some(reloader) = &self.reloader else {
            return Ok(());
        };
        let reloads = [
            ([("result", "applied")], reloader.applied.get()),
            ([("result", "rejected")], reloader.rejected.get()),
        ];
        let help = "Reloads of the configuration, by result";
        encoder.counters("config_reloads", help, reloads)?;
        let status = reloader.status();
        let help = "1, with the SHA-256 of the configuration in force";
        encoder.gauges("config_info", help, [([("hash", &*status.hash)], 1)])?;
        let loaded_at = status.loaded_at.duration_since(UNIX_EPOCH);
        let loaded_at = loaded_at.unwrap_or_default().as_secs();
        let help = "Unix time at which the configuration in force was loaded";
        encoder.gauge("config_loaded_timestamp_seconds", help, loaded_at)?;
        let is_rejected = matches!(status.last_reload, Some((_, Some(_))));
        let help = "0 if the last reload was rejected, otherwise 1";
        encoder.gauge(
            "config_last_reload_successful",
            help,
            i64::from(!is_rejected),
        )
    }
}
