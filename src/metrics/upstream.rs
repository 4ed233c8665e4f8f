//! Counters of requests to an upstream: attempts, retries, failures, latency.

use std::sync::Arc;
use std::time::Duration;

use super::{Count, Gauge, LatencyHistogram, UpstreamBounds};

/// Counters of the requests that the gateway sends to one upstream.
#[derive(Debug)]
pub(crate) struct UpstreamMetrics {
    pub(crate) name: Arc<str>,
    /// Number of requests in flight to the upstream.
    pub(crate) in_flight: Gauge,
    pub(crate) latency: LatencyHistogram<UpstreamBounds>,
    pub(crate) failures: [Count; UpstreamFailure::ALL.len()],
    /// Number of attempts to send a request to a server, including retries.
    pub attempts: Count,
    /// Number of retries that were scheduled.
    pub retries: Count,
    /// Requests that were sent once more because a reused connection had closed.
    pub resent: Count,
    /// Number of request headers that were not forwarded because of their name.
    pub headers_dropped: Count,
    /// Number of failed requests that were not retried although their failure is retryable, by reason.
    pub(crate) retry_rejections: [Count; RetryRejection::ALL.len()],
}

/// Guard that counts a request to an upstream as in flight until the guard is dropped.
#[derive(Debug)]
pub(crate) struct InFlight {
    upstream: Arc<UpstreamMetrics>,
}

/// Why a request received no complete response from its upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamFailure {
    /// No connection to a server could be established.
    Connect,
    /// `connect_timeout` expired before a connection to the server was established.
    ConnectTimeout,
    /// `first_byte_timeout` expired before the response head arrived.
    FirstByteTimeout,
    /// `idle_timeout` expired while the request or response body was transferred.
    IdleTimeout,
    /// `timeout`, or the deadline for all attempts of the request, expired.
    TotalTimeout,
    /// The circuit breakers of all servers are open, so the request was not sent.
    CircuitOpen,
    /// The upstream is at its concurrency limit, so the request was not sent.
    Overloaded,
    /// The connection failed while the request was in flight, or the response was invalid HTTP.
    Broken,
    /// The client caused the failure: its request body was too large, invalid or incomplete.
    Client,
}

/// Why a failed request was not retried although its failure is retryable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryRejection {
    /// The maximum number of `attempts` was reached.
    Attempts,
    /// The next attempt would have started after the deadline of the request.
    Deadline,
    /// The retry budget of the upstream was exhausted.
    Budget,
    /// At the time of the next attempt, the circuit breakers of all servers would have been open.
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
            in_flight: Gauge::default(),
            latency: LatencyHistogram::default(),
            failures: Default::default(),
            attempts: Count::default(),
            retries: Count::default(),
            resent: Count::default(),
            headers_dropped: Count::default(),
            retry_rejections: Default::default(),
        })
    }

    /// Counts a request to the upstream as in flight until the returned guard is dropped.
    pub(crate) fn in_flight(self: &Arc<Self>) -> InFlight {
        self.in_flight.add(1);
        InFlight {
            upstream: Arc::clone(self),
        }
    }

    /// Records the latency of a response, from the start of the request to the response head.
    pub(crate) fn responded(&self, latency: Duration) {
        self.latency.record(latency);
    }

    /// Counts a request that received no complete response.
    pub(crate) fn failed(&self, failure: UpstreamFailure) {
        self.failures[failure as usize].inc();
    }

    /// Counts a failed request that was not retried. `why` is the reason.
    pub(crate) fn retry_rejected(&self, why: RetryRejection) {
        self.retry_rejections[why as usize].inc();
    }
}

impl InFlight {
    /// Counts the request as failed and no longer as in flight. `failure` is the reason why its response is incomplete.
    pub(crate) fn failed(self, failure: UpstreamFailure) {
        self.upstream.failed(failure);
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.upstream.in_flight.add(-1);
    }
}
