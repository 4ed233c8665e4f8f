//! Exports metrics of upstreams and their servers.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use super::Scrape;
use crate::admin::stage_metrics::{counter_by, gauge_by, histogram};
use crate::metrics::{Count, LatencyHistogram, RetryRejection, UpstreamFailure, UpstreamMetrics};
use crate::upstream::breaker::BreakerState;
use crate::upstream::shared_state::ServerState;

impl Scrape {
    pub(super) fn encode_upstreams(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        gauge_by(
            encoder,
            "upstream_in_flight",
            "Requests in flight, by upstream",
            self.upstreams().map(|(index, labels)| {
                let workers = self.stages.workers.iter();
                let in_flight = workers.map(|worker| worker.upstreams[index].in_flight.get());
                (labels, in_flight.sum())
            }),
        )?;
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
        for (index, labels) in self.upstreams() {
            let workers = self.stages.workers.iter();
            let latencies = workers.map(|worker| &worker.upstreams[index].latency);
            histogram(
                latency.encode_family(&labels)?,
                &LatencyHistogram::sum(latencies),
            )?;
        }
        Ok(())
    }

    /// Returns the labels of every upstream, with its index.
    fn upstreams(&self) -> impl Iterator<Item = (usize, [(&str, &str); 1])> {
        let upstreams = self.stages.first().upstreams.iter().enumerate();
        upstreams.map(|(index, upstream)| (index, [("upstream", &*upstream.name)]))
    }

    fn sum_of_upstream(&self, index: usize, count: impl Fn(&UpstreamMetrics) -> &Count) -> u64 {
        let stages = &self.stages;
        stages.sum(|worker| count(&worker.upstreams[index]).get())
    }

    fn encode_reasons<const N: usize>(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        name: &str,
        help: &str,
        reasons: [&str; N],
        pick: fn(&UpstreamMetrics) -> &[Count; N],
    ) -> fmt::Result {
        let series = self.upstreams().flat_map(|(index, [upstream])| {
            let reasons = reasons.iter().enumerate();
            reasons.map(move |(number, reason)| {
                let count = self.sum_of_upstream(index, |upstream| &pick(upstream)[number]);
                ([upstream, ("reason", *reason)], count)
            })
        });
        counter_by(encoder, name, help, series)
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
            let upstreams = self.upstreams();
            let series = upstreams.map(|(at, labels)| (labels, self.sum_of_upstream(at, pick)));
            counter_by(encoder, name, help, series)?;
        }
        Ok(())
    }

    pub(super) fn encode_servers(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let now = self.clock.now();
        gauge_by(
            encoder,
            "server_in_flight",
            "Requests in flight, by server",
            self.servers()
                .map(|(labels, server)| (labels, server.in_flight().into())),
        )?;
        gauge_by(
            encoder,
            "server_ejected",
            "1 if health checks have ejected the server, otherwise 0",
            self.servers()
                .map(|(labels, server)| (labels, server.is_ejected().into())),
        )?;
        gauge_by(
            encoder,
            "breaker_state",
            "1 for the current state of a server's circuit breaker, 0 for the other states",
            self.servers().flat_map(|([upstream, name], server)| {
                let current = server.breaker.snapshot(now).state.name();
                let states = BreakerState::NAMES.into_iter();
                states.map(move |state| {
                    (
                        [upstream, name, ("state", state)],
                        (state == current).into(),
                    )
                })
            }),
        )?;
        counter_by(
            encoder,
            "breaker_opened",
            "Openings of a server's circuit breaker",
            self.servers()
                .map(|(labels, server)| (labels, server.breaker.snapshot(now).openings)),
        )?;
        counter_by(
            encoder,
            "server_lookup_failures",
            "Failed lookups of a server's host name",
            self.servers()
                .map(|(labels, server)| (labels, server.addresses.failures())),
        )?;
        let states = self.upstream_states.iter();
        gauge_by(
            encoder,
            "upstream_concurrency_limit",
            "Adaptive limit of concurrent requests to an upstream",
            states.filter_map(|state| {
                let limit = state.concurrency.as_ref()?.limit();
                Some(([("upstream", &*state.upstream.name)], limit.into()))
            }),
        )
    }

    /// Returns the labels and the state of every server.
    fn servers(&self) -> impl Iterator<Item = ([(&str, &str); 2], &ServerState)> {
        self.upstream_states.iter().flat_map(|state| {
            let upstream = ("upstream", &*state.upstream.name);
            let servers = state.servers.iter();
            servers.map(move |server| ([upstream, ("server", server.name())], server))
        })
    }
}
