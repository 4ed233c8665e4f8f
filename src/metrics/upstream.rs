//! Counters of requests to an upstream: attempts, retries, failures, latency.

use std::sync::Arc;
use std::time::Duration;

use super::{Count, Gauge, LatencyHistogram, UpstreamBounds};

#[derive(Debug, Default)]
pub(crate) struct UpstreamMetrics {
    pub(crate) name: Arc<str>,
    pub(crate) in_flight: Gauge,
    pub(crate) latency: LatencyHistogram<UpstreamBounds>,
    pub(crate) failures: [Count; UpstreamFailure::ALL.len()],
    /// Attempts to send a request to a server, including retries.
    pub attempts: Count,
    /// Retries that were scheduled.
    pub retries: Count,
    /// Requests that were sent once more because a reused connection had closed.
    pub resent: Count,
    /// Request headers that were not forwarded because of their name.
    pub headers_dropped: Count,
    pub(crate) retry_rejections: [Count; RetryRejection::ALL.len()],
}

/// Guard that counts a request as in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct InFlight(Arc<UpstreamMetrics>);

/// Why a request received no complete response from its upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamFailure {
    Connect,
    ConnectTimeout,
    /// Before the complete response head.
    FirstByteTimeout,
    /// `idle_timeout` expired while the request or response body was transferred.
    IdleTimeout,
    /// `timeout`, or the deadline for all attempts of the request, expired.
    TotalTimeout,
    /// The circuits of all servers are open, so the request was not sent.
    CircuitOpen,
    /// The upstream is at its concurrency limit, so the request was not sent.
    Overloaded,
    /// The connection failed while the request was in flight, or the response was invalid HTTP.
    Broken,
    /// The request body was too large, invalid or incomplete.
    Client,
}

/// Why a failed request was not retried although its failure is retryable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryRejection {
    Attempts,
    /// The next attempt would have started after the deadline of the request.
    Deadline,
    Budget,
    /// At the time of the next attempt, the circuits of all servers would have been open.
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

impl RetryRejection {
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
            ..Self::default()
        })
    }

    pub(crate) fn in_flight(self: &Arc<Self>) -> InFlight {
        self.in_flight.add(1);
        InFlight(Arc::clone(self))
    }

    /// `latency` is the time from the start of the request to the response head.
    pub(crate) fn responded(&self, latency: Duration) {
        self.latency.record(latency);
    }

    pub(crate) fn failed(&self, failure: UpstreamFailure) {
        self.failures[failure as usize].inc();
    }

    pub(crate) fn retry_rejected(&self, why: RetryRejection) {
        self.retry_rejections[why as usize].inc();
    }
}

impl InFlight {
    /// The request is also no longer in flight.
    pub(crate) fn failed(self, failure: UpstreamFailure) {
        self.0.failed(failure);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.add(-1);
    }
}
