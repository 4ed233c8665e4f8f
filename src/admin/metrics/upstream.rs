//! What is counted of an upstream.

use std::sync::Arc;
use std::time::Duration;

use super::{Count, Gauge, Latency, OfUpstream};
use crate::upstream::ForwardError;
use crate::upstream::patience::Phase;

/// What is counted of an upstream.
#[derive(Debug)]
pub struct UpstreamMetrics {
    pub(super) name: Arc<str>,
    pub(super) in_flight: Gauge,
    pub(super) latency: Latency<OfUpstream>,
    pub(super) failures: [Count; Failure::ALL.len()],
    /// Attempts made.
    pub attempts: Count,
    /// Retries scheduled.
    pub retries: Count,
    pub(super) retry_refusals: [Count; RetryRefusal::ALL.len()],
}

/// One request underway upstream, until dropped.
#[derive(Debug)]
pub struct InFlight {
    upstream: Arc<UpstreamMetrics>,
}

/// Why an upstream gave no whole answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Connect,
    ConnectTimeout,
    FirstByteTimeout,
    IdleTimeout,
    TotalTimeout,
    CircuitOpen,
    Overloaded,
    Broken,
    Client,
}

/// Why a request that could have been tried again was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryRefusal {
    /// There were as many attempts as there may be.
    Attempts,
    /// The next one would have begun too late.
    Deadline,
    /// The upstream had all the retries it may have.
    Budget,
    /// Every server's circuit would have been open.
    Circuit,
}

impl Failure {
    pub(super) const ALL: [Self; 9] = [
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

    fn of(error: &ForwardError) -> Self {
        if let Some(phase) = error.phase() {
            return phase.into();
        }
        match error {
            ForwardError::CircuitOpen { .. } => Self::CircuitOpen,
            ForwardError::Overloaded => Self::Overloaded,
            ForwardError::TooLarge(_) | ForwardError::ClientFailed(_) => Self::Client,
            ForwardError::Connect(_) => Self::Connect,
            _ => Self::Broken,
        }
    }

    pub(super) fn label(self) -> &'static str {
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

impl From<Phase> for Failure {
    fn from(phase: Phase) -> Self {
        match phase {
            Phase::Connect => Self::ConnectTimeout,
            Phase::FirstByte => Self::FirstByteTimeout,
            Phase::Idle => Self::IdleTimeout,
            Phase::Total => Self::TotalTimeout,
        }
    }
}

impl RetryRefusal {
    pub(super) const ALL: [Self; 4] = [Self::Attempts, Self::Deadline, Self::Budget, Self::Circuit];

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Attempts => "attempts",
            Self::Deadline => "deadline",
            Self::Budget => "budget",
            Self::Circuit => "circuit",
        }
    }
}

impl UpstreamMetrics {
    pub(super) fn new(name: &Arc<str>) -> Arc<Self> {
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

    /// Counts a request as underway, until what is returned is dropped.
    pub fn in_flight(self: &Arc<Self>) -> InFlight {
        self.in_flight.add(1);
        InFlight {
            upstream: Arc::clone(self),
        }
    }

    /// Counts an answer that began after `latency`.
    pub fn answered(&self, latency: Duration) {
        self.latency.record(latency);
    }

    /// Counts an answer that did not come.
    pub fn failed(&self, error: &ForwardError) {
        self.failures[Failure::of(error) as usize].inc();
    }

    /// Counts a request that was not tried again.
    pub fn retry_refused(&self, why: RetryRefusal) {
        self.retry_refusals[why as usize].inc();
    }
}

impl InFlight {
    /// Counts an answer that came only in part, because upstream was too slow or broke off.
    pub fn cut_short(self, late: Option<Phase>) {
        let failure = late.map_or(Failure::Broken, Failure::from);
        self.upstream.failures[failure as usize].inc();
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.upstream.in_flight.add(-1);
    }
}
