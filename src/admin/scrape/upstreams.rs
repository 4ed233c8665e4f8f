//! Metrics of upstreams and their servers.

use std::fmt;

use super::Scrape;
use crate::admin::stage_metrics::encoder::FamilyEncoder;
use crate::metrics::{Count, LatencyHistogram, RetryRejection, UpstreamFailure, UpstreamMetrics};
use crate::upstream::breaker::BreakerState;
use crate::upstream::shared_state::ServerState;

impl Scrape {
    /// Returns the position and the labels of each upstream.
    fn upstreams(&self) -> impl Iterator<Item = (usize, [(&str, &str); 1])> {
        let upstreams = self.stages.first().upstreams.iter().enumerate();
        upstreams.map(|(at, upstream)| (at, [("upstream", &*upstream.name)]))
    }

    fn sum_of_upstream(&self, at: usize, count: impl Fn(&UpstreamMetrics) -> &Count) -> u64 {
        let stages = &self.stages;
        stages.sum(|worker| count(&worker.upstreams[at]).get())
    }

    pub(super) fn encode_upstreams(&self, encoder: &mut FamilyEncoder<'_>) -> fmt::Result {
        let workers = || self.stages.workers.iter();
        let in_flight = self.upstreams().map(|(at, labels)| {
            let in_flight = workers().map(|worker| worker.upstreams[at].in_flight.get());
            (labels, in_flight.sum::<i64>())
        });
        let help = "Requests in flight, by upstream";
        encoder.gauges("upstream_in_flight", help, in_flight)?;
        let failures = self.upstreams().flat_map(|(at, [upstream])| {
            UpstreamFailure::ALL.map(|failure| {
                let count = self.sum_of_upstream(at, |it| &it.failures[failure as usize]);
                ([upstream, ("reason", failure.label())], count)
            })
        });
        let help = "Requests without a complete response, by upstream and reason";
        encoder.counters("upstream_failures", help, failures)?;
        let rejections = self.upstreams().flat_map(|(at, [upstream])| {
            RetryRejection::ALL.map(|why| {
                let count = self.sum_of_upstream(at, |it| &it.retry_rejections[why as usize]);
                ([upstream, ("reason", why.label())], count)
            })
        });
        let help = "Retryable requests that were not retried, by upstream and reason";
        encoder.counters("upstream_retries_rejected", help, rejections)?;
        let mut by_upstream = |name, help, count: fn(&UpstreamMetrics) -> &Count| {
            let upstreams = self.upstreams();
            let series = upstreams.map(|(at, labels)| (labels, self.sum_of_upstream(at, count)));
            encoder.counters(name, help, series)
        };
        let help = "Attempts to send a request to a server, by upstream";
        by_upstream("upstream_attempts", help, |it| &it.attempts)?;
        let help = "Retries after a failed attempt, by upstream";
        by_upstream("upstream_retries", help, |it| &it.retries)?;
        let help = "Requests sent once more because a reused connection had closed, by upstream";
        by_upstream("upstream_resent", help, |it| &it.resent)?;
        let help = "Request headers not forwarded because of their name, by upstream";
        by_upstream("upstream_headers_dropped", help, |it| &it.headers_dropped)?;
        let latencies = self.upstreams().map(|(at, labels)| {
            let latencies = workers().map(|worker| &worker.upstreams[at].latency);
            (labels, LatencyHistogram::sum(latencies))
        });
        let help = "Time to the head of the response, including all attempts, by upstream";
        encoder.histograms("upstream_latency_seconds", help, latencies)?;
        let states = self.gateway.upstream_states.iter();
        let limits = states.filter_map(|state| {
            let limit = state.concurrency.as_ref()?.limit();
            Some(([("upstream", &*state.upstream.name)], limit))
        });
        let help = "Adaptive limit of concurrent requests to an upstream";
        encoder.gauges("upstream_concurrency_limit", help, limits)
    }

    pub(super) fn encode_servers(&self, encoder: &mut FamilyEncoder<'_>) -> fmt::Result {
        let now = self.gateway.clock.now();
        let mut gauge = |name, help, value: fn(&ServerState) -> i64| {
            let series = self.servers().map(|(labels, it)| (labels, value(it)));
            encoder.gauges(name, help, series)
        };
        let help = "Requests in flight, by server";
        gauge("server_in_flight", help, |it| it.in_flight().into())?;
        let help = "1 if health checks have ejected the server, otherwise 0";
        gauge("server_ejected", help, |it| it.is_ejected().into())?;
        let states = self.servers().flat_map(|([upstream, name], server)| {
            let current = server.breaker.snapshot(now).state.name();
            BreakerState::NAMES.map(|state| {
                let labels = [upstream, name, ("state", state)];
                (labels, i64::from(state == current))
            })
        });
        let help = "1 for the current state of a server's circuit breaker, 0 for the other states";
        encoder.gauges("breaker_state", help, states)?;
        let openings = self.servers();
        let openings = openings.map(|(labels, it)| (labels, it.breaker.snapshot(now).openings));
        let help = "Openings of a server's circuit breaker";
        encoder.counters("breaker_opened", help, openings)?;
        let failures = self.servers();
        let failures = failures.map(|(labels, it)| (labels, it.addresses.failures()));
        let help = "Failed lookups of a server's host name";
        encoder.counters("server_lookup_failures", help, failures)
    }

    /// Returns the labels and the state of each server.
    fn servers(&self) -> impl Iterator<Item = ([(&str, &str); 2], &ServerState)> {
        self.gateway.upstream_states.iter().flat_map(|state| {
            let upstream = ("upstream", &*state.upstream.name);
            let servers = state.servers.iter();
            servers.map(move |server| ([upstream, ("server", server.name())], server))
        })
    }
}
