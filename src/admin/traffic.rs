//! Counts of the last 15 minutes, which the gateway keeps for the dashboard: requests by outcome, counts of limits, and
//! latencies of upstreams.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use utoipa::ToSchema;

use super::{seconds, timestamp};
use crate::clock::{Clock, Moment};
use crate::metrics::{Count, HistogramSnapshot, LatencyHistogram, RouteMetrics};
use crate::pipeline::GatewayState;

/// Time between two samples.
pub(super) const INTERVAL: Duration = Duration::from_secs(5);

/// 15 minutes.
const INTERVALS: usize = 180;

/// Of the recent counts of a limit: 5 minutes.
const RECENT_INTERVALS: usize = 60;

/// Of the latency of an upstream: 1 minute.
const LATENCY_INTERVALS: usize = 12;

/// Number of requests by outcome. `admitted` includes the following outcomes.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub(super) struct Totals {
    /// Requests of routes that no limit rejected.
    admitted: u64,
    delayed: u64,
    /// Requests that got a stored response.
    replayed: u64,
    /// Responses with status 500 to 599.
    upstream_errors: u64,
    rejected: u64,
}

/// Counts of a limit, on all routes.
#[derive(Clone, Copy, Debug, Default, Serialize, ToSchema)]
pub(super) struct LimitTotals {
    admitted: u64,
    rejected: u64,
    shadow_rejected: u64,
    /// Admitted requests that left less than a fifth of the tokens.
    near: u64,
    /// Rejected requests that came before the time stated by an earlier rejection.
    early: u64,
}

/// Requests per interval by outcome, oldest first.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(super) struct TrafficView {
    /// Length of an interval in seconds.
    interval: f64,
    /// End of the newest interval.
    end: String,
    admitted: Vec<u64>,
    delayed: Vec<u64>,
    replayed: Vec<u64>,
    upstream_errors: Vec<u64>,
    rejected: Vec<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Traffic(VecDeque<Sample>);

#[derive(Debug, Default)]
struct Sample {
    at: Moment,
    totals: Totals,
    limits: Vec<(Arc<str>, LimitTotals)>,
    upstreams: Vec<(Arc<str>, HistogramSnapshot)>,
}

impl Totals {
    pub(super) fn of(gateway: &GatewayState) -> Self {
        let sum = |count: fn(&RouteMetrics) -> u64| -> u64 {
            let routes = gateway.metrics.iter().flat_map(|worker| &worker.routes);
            routes.map(|route| count(route)).sum()
        };
        let rejected = sum(|route| route.rejected.get());
        let responses = sum(|route| route.by_status.iter().map(Count::get).sum());
        Self {
            admitted: responses.saturating_sub(rejected),
            delayed: sum(|route| route.delayed.get()),
            replayed: sum(|route| route.keyed.replays.get()),
            upstream_errors: sum(|route| route.by_status[400..500].iter().map(Count::get).sum()),
            rejected,
        }
    }
}

impl LimitTotals {
    pub(super) fn of(gateway: &GatewayState, name: &str) -> Self {
        let limits = gateway.metrics.iter().flat_map(|worker| &worker.limits);
        let limits = limits.filter(|limit| *limit.name == *name);
        limits.fold(Self::default(), |sum, limit| Self {
            admitted: sum.admitted + limit.admitted.get(),
            rejected: sum.rejected + limit.rejected.get(),
            shadow_rejected: sum.shadow_rejected + limit.shadow_rejected.get(),
            near: sum.near + limit.near.get(),
            early: sum.early + limit.early.get(),
        })
    }

    /// Counters start again with a limit that a reload removes and adds.
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            admitted: self.admitted.saturating_sub(before.admitted),
            rejected: self.rejected.saturating_sub(before.rejected),
            shadow_rejected: self.shadow_rejected.saturating_sub(before.shadow_rejected),
            near: self.near.saturating_sub(before.near),
            early: self.early.saturating_sub(before.early),
        }
    }
}

impl Traffic {
    /// Adds a sample if the last one is old enough.
    pub(super) fn sample(&mut self, gateway: &GatewayState) {
        let at = gateway.clock.now();
        match self.0.back() {
            // Counts from the start of the gateway.
            None => self.0.push_back(Sample {
                at,
                ..Sample::default()
            }),
            Some(last) if at.since(last.at) >= INTERVAL => self.add(gateway, at),
            Some(_) => {}
        }
    }

    fn add(&mut self, gateway: &GatewayState, at: Moment) {
        if self.0.len() > INTERVALS {
            self.0.pop_front();
        }
        let limits = gateway.limits.iter().map(|it| &it.limit.name);
        let upstreams = gateway.upstream_states.iter().map(|it| &it.upstream.name);
        self.0.push_back(Sample {
            at,
            totals: Totals::of(gateway),
            limits: limits
                .map(|name| (Arc::clone(name), LimitTotals::of(gateway, name)))
                .collect(),
            upstreams: upstreams
                .map(|name| (Arc::clone(name), latency(gateway, name)))
                .collect(),
        });
    }

    pub(super) fn view(&self, clock: &Clock) -> TrafficView {
        let per_interval = |count: fn(&Totals) -> u64| {
            let pairs = self.0.iter().zip(self.0.iter().skip(1));
            let counts = pairs
                .map(|(before, after)| count(&after.totals).saturating_sub(count(&before.totals)));
            counts.collect()
        };
        TrafficView {
            interval: seconds(INTERVAL),
            end: timestamp(clock, self.0.back().map_or(clock.now(), |last| last.at)),
            admitted: per_interval(|totals| totals.admitted),
            delayed: per_interval(|totals| totals.delayed),
            replayed: per_interval(|totals| totals.replayed),
            upstream_errors: per_interval(|totals| totals.upstream_errors),
            rejected: per_interval(|totals| totals.rejected),
        }
    }

    /// The counts five minutes ago, or at the first sample, and how long ago this was.
    pub(super) fn limit(&self, gateway: &GatewayState, name: &str) -> (Duration, LimitTotals) {
        let Some(before) = self.back(RECENT_INTERVALS) else {
            return Default::default();
        };
        let mut limits = before.limits.iter();
        let totals = limits.find_map(|(it, totals)| (**it == *name).then_some(*totals));
        let age = gateway.clock.now().since(before.at);
        (age, totals.unwrap_or_default())
    }

    /// Quantiles of the last minute, in seconds. `None` if there was no response.
    pub(super) fn latency<const N: usize>(
        &self,
        gateway: &GatewayState,
        name: &str,
        quantiles: [f64; N],
    ) -> Option<[f64; N]> {
        let now = latency(gateway, name);
        let mut before = self.back(LATENCY_INTERVALS)?.upstreams.iter();
        let recent = match before.find(|(it, _)| **it == *name) {
            Some((_, before)) => now.since(before),
            None => now,
        };
        (recent.count() > 0).then(|| quantiles.map(|quantile| recent.quantile(quantile)))
    }

    fn back(&self, intervals: usize) -> Option<&Sample> {
        self.0.get(self.0.len().saturating_sub(intervals + 1))
    }
}

fn latency(gateway: &GatewayState, name: &str) -> HistogramSnapshot {
    let upstreams = gateway.metrics.iter().flat_map(|worker| &worker.upstreams);
    let upstreams = upstreams.filter(|upstream| *upstream.name == *name);
    LatencyHistogram::sum(upstreams.map(|upstream| &upstream.latency))
}
