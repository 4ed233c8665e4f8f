//! Exports metrics of upstreams and their servers.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::Scrape;
use crate::admin::stage_metrics::{counter, gauge, histogram};
use crate::metrics::{Count, LatencyHistogram, RetryRejection, UpstreamFailure, UpstreamMetrics};
use crate::upstream::breaker;
use crate::upstream::shared_state::ServerState;

impl Scrape {
    pub(super) fn encode_upstreams(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let upstreams = &self.stages.first().upstreams;
        let mut in_flight = encoder.encode_descriptor(
            "upstream_in_flight",
            "Requests in flight, by upstream",
            None,
            MetricType::Gauge,
        )?;
        for (index, upstream) in upstreams.iter().enumerate() {
            let workers = self.stages.workers.iter();
            let value = workers
                .map(|worker| worker.upstreams[index].in_flight.get())
                .sum();
            gauge(
                in_flight.encode_family(&[("upstream", &*upstream.name)])?,
                value,
            )?;
        }
        self.encode_reasons(
            encoder,
            "upstream_failures",
            "Requests without a complete response, by upstream and reason",
            UpstreamFailure::ALL.map(UpstreamFailure::label),
            |upstream| &upstream.failures,
        )?;
        self.encode_reasons(
            encoder,
            "upstream_retries_rejected",
            "Retryable requests that were not retried, by upstream and reason",
            RetryRejection::ALL.map(RetryRejection::label),
            |upstream| &upstream.retry_rejections,
        )?;
        self.encode_counts(encoder)?;
        let mut latency = encoder.encode_descriptor(
            "upstream_latency_seconds",
            "Time to the head of the response, including all attempts, by upstream",
            None,
            MetricType::Histogram,
        )?;
        for (index, upstream) in upstreams.iter().enumerate() {
            let labels = [("upstream", &*upstream.name)];
            let workers = self.stages.workers.iter();
            let latencies = workers.map(|worker| &worker.upstreams[index].latency);
            histogram(
                latency.encode_family(&labels)?,
                &LatencyHistogram::sum(latencies),
            )?;
        }
        Ok(())
    }

    fn encode_reasons<const N: usize>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        reasons: [&str; N],
        pick: fn(&UpstreamMetrics) -> &[Count; N],
    ) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (index, upstream) in self.stages.first().upstreams.iter().enumerate() {
            for (reason_index, reason) in reasons.iter().enumerate() {
                let count = self
                    .stages
                    .sum(|worker| pick(&worker.upstreams[index])[reason_index].get());
                let labels = [("upstream", &*upstream.name), ("reason", *reason)];
                counter(family.encode_family(&labels)?, count)?;
            }
        }
        Ok(())
    }

    fn encode_counts(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        type UpstreamCounter = fn(&UpstreamMetrics) -> &Count;
        let counters: [(&str, &str, UpstreamCounter); 4] = [
            (
                "upstream_attempts",
                "Attempts to send a request to a server, by upstream",
                |upstream| &upstream.attempts,
            ),
            (
                "upstream_retries",
                "Retries after a failed attempt, by upstream",
                |upstream| &upstream.retries,
            ),
            (
                "upstream_resent",
                "Requests sent once more because a reused connection had closed, by upstream",
                |upstream| &upstream.resent,
            ),
            (
                "upstream_headers_dropped",
                "Request headers not forwarded because of their name, by upstream",
                |upstream| &upstream.headers_dropped,
            ),
        ];
        for (name, help, pick) in counters {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            for (index, upstream) in self.stages.first().upstreams.iter().enumerate() {
                let count = self
                    .stages
                    .sum(|worker| pick(&worker.upstreams[index]).get());
                let labels = [("upstream", &*upstream.name)];
                counter(family.encode_family(&labels)?, count)?;
            }
        }
        Ok(())
    }

    pub(super) fn encode_servers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_gauges(
            encoder,
            "server_in_flight",
            "Requests in flight, by server",
            |server| server.in_flight().into(),
        )?;
        self.encode_gauges(
            encoder,
            "server_ejected",
            "1 if health checks have ejected the server, otherwise 0",
            |server| server.is_ejected().into(),
        )?;
        let now = self.clock.now();
        let mut states = encoder.encode_descriptor(
            "breaker_state",
            "1 for the current state of a server's circuit breaker, 0 for the other states",
            None,
            MetricType::Gauge,
        )?;
        for (upstream, server) in self.servers() {
            let state = server.breaker.snapshot(now).state.name();
            for name in breaker::BreakerState::NAMES {
                let labels = [
                    ("upstream", upstream),
                    ("server", server.name()),
                    ("state", name),
                ];
                gauge(states.encode_family(&labels)?, (name == state).into())?;
            }
        }
        let mut opened = encoder.encode_descriptor(
            "breaker_opened",
            "Openings of a server's circuit breaker",
            None,
            MetricType::Counter,
        )?;
        for (upstream, server) in self.servers() {
            let labels = [("upstream", upstream), ("server", server.name())];
            let count = server.breaker.snapshot(now).openings;
            counter(opened.encode_family(&labels)?, count)?;
        }
        let mut lookups = encoder.encode_descriptor(
            "server_lookup_failures",
            "Failed lookups of a server's host name",
            None,
            MetricType::Counter,
        )?;
        for (upstream, server) in self.servers() {
            let labels = [("upstream", upstream), ("server", server.name())];
            counter(lookups.encode_family(&labels)?, server.addresses.failures())?;
        }
        self.encode_concurrency(encoder)
    }

    fn encode_gauges(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        value: fn(&ServerState) -> i64,
    ) -> fmt::Result {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (upstream, server) in self.servers() {
            let labels = [("upstream", upstream), ("server", server.name())];
            gauge(family.encode_family(&labels)?, value(server))?;
        }
        Ok(())
    }

    fn encode_concurrency(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut limits = encoder.encode_descriptor(
            "upstream_concurrency_limit",
            "Adaptive limit of concurrent requests to an upstream",
            None,
            MetricType::Gauge,
        )?;
        for state in &*self.upstream_states {
            if let Some(concurrency) = &state.concurrency {
                let labels = [("upstream", &*state.upstream.name)];
                gauge(limits.encode_family(&labels)?, concurrency.limit().into())?;
            }
        }
        Ok(())
    }

    /// Returns the state of every server, with the name of its upstream.
    fn servers(&self) -> impl Iterator<Item = (&str, &ServerState)> {
        self.upstream_states.iter().flat_map(|state| {
            let servers = state.servers.iter();
            servers.map(|server| (&*state.upstream.name, server))
        })
    }
}
