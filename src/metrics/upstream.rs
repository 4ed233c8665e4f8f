//! Counters of an upstream.

use std::sync::Arc;
use std::time::Duration;

use super::{Count, Gauge, Latency, OfUpstream};

/// Counters of an upstream.
#[derive(Debug)]
pub(crate) struct UpstreamMetrics {
    pub(crate) name: Arc<str>,
    pub(crate) in_flight: Gauge,
    pub(crate) latency: Latency<OfUpstream>,
    pub(crate) failures: [Count; UpstreamFailure::ALL.len()],
    /// Attempts to send a request to a server.
    pub attempts: Count,
    /// Retries that were scheduled.
    pub retries: Count,
    pub(crate) retry_refusals: [Count; RetryRefusal::ALL.len()],
}

/// Counts a request as in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlight {
    upstream: Arc<UpstreamMetrics>,
}

/// Why a request has no complete response from its upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamFailure {
    /// No connection could be established.
    Connect,
    /// `connect_timeout` expired.
    ConnectTimeout,
    /// `first_byte_timeout` expired.
    FirstByteTimeout,
    /// `idle_timeout` expired.
    IdleTimeout,
    /// `timeout` or the deadline of the retries expired.
    TotalTimeout,
    /// The circuit breakers of all servers are open.
    CircuitOpen,
    /// The upstream is at its concurrency limit.
    Overloaded,
    /// The connection failed with the request in flight, or the response was not valid HTTP.
    Broken,
    /// The client caused the failure.
    Client,
}

/// Why a request that could have been retried was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryRefusal {
    /// `attempts` was reached.
    Attempts,
    /// The next attempt would have begun after the deadline.
    Deadline,
    /// The retry budget was used up.
    Budget,
    /// The circuit breakers of all servers would have been open.
    Circuit,
}

impl UpstreamFailure {
    pub(crate) const ALL: [Self; 9] = [
        Self::Connect,
        Self::ConnectTimeout,
        Self::FirstByteTimeout,
        Self::IdleTimeout,
        Self::TotalTimeout,
        Self::CircuitOpen,
        Self::Overloaded,
        Self::Broken,
        Self::Client,
    ];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::ConnectTimeout => "connect_timeout",
            Self::FirstByteTimeout => "first_byte_timeout",
            Self::IdleTimeout => "idle_timeout",
            Self::TotalTimeout => "total_timeout",
            Self::CircuitOpen => "circuit_open",
            Self::Overloaded => "overloaded",
            Self::Broken => "broken",
            Self::Client => "client",
        }
    }
}

impl RetryRefusal {
    pub(crate) const ALL: [Self; 4] = [Self::Attempts, Self::Deadline, Self::Budget, Self::Circuit];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Attempts => "attempts",
            Self::Deadline => "deadline",
            Self::Budget => "budget",
            Self::Circuit => "circuit",
        }
    }
}

impl UpstreamMetrics {
    pub(crate) fn new(name: &Arc<str>) -> Arc<Self> {
        Arc::new(Self {
            name: Arc::clone(name),
            in_flight: Gauge::default(),
            latency: Latency::default(),
            failures: Default::default(),
            attempts: Count::default(),
            retries: Count::default(),
            retry_refusals: Default::default(),
        })
    }

    /// Counts a request as in flight until the result is dropped.
    pub(crate) fn in_flight(self: &Arc<Self>) -> InFlight {
        self.in_flight.add(1);
        InFlight {
            upstream: Arc::clone(self),
        }
    }

    /// Counts a response whose head arrived after `latency`.
    pub(crate) fn responded(&self, latency: Duration) {
        self.latency.record(latency);
    }

    /// Counts a request without a complete response.
    pub(crate) fn failed(&self, failure: UpstreamFailure) {
        self.failures[failure as usize].inc();
    }

    /// Counts a request that was not retried.
    pub(crate) fn retry_refused(&self, why: RetryRefusal) {
        self.retry_refusals[why as usize].inc();
    }
}

impl InFlight {
    /// Counts a response that is incomplete.
    pub(crate) fn failed(self, failure: UpstreamFailure) {
        self.upstream.failed(failure);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.upstream.in_flight.add(-1);
    }
}
