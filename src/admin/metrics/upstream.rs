//! What is counted of an upstream.

use std::sync::Arc;
use std::time::Duration;

use super::{Count, Gauge, Latency, OfUpstream};
use crate::upstream::ForwardError;

/// What is counted of an upstream.
#[derive(Debug)]
pub struct UpstreamMetrics {
    pub(super) name: Arc<str>,
    pub(super) in_flight: Gauge,
    pub(super) latency: Latency<OfUpstream>,
    pub(super) failures: [Count; Failure::ALL.len()],
}

/// One request underway upstream, until dropped.
#[derive(Debug)]
pub struct InFlight {
    upstream: Arc<UpstreamMetrics>,
}

/// Why an upstream gave no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Connect,
    Timeout,
    Broken,
    Client,
}

impl Failure {
    pub(super) const ALL: [Self; 4] = [Self::Connect, Self::Timeout, Self::Broken, Self::Client];

    fn of(error: &ForwardError) -> Self {
        match error {
            ForwardError::Connect(_) => Self::Connect,
            ForwardError::TimedOut(_) | ForwardError::NotReachedInTime(_) => Self::Timeout,
            ForwardError::Exchange(_) | ForwardError::Unsent(_) | ForwardError::BadAnswer(_) => {
                Self::Broken
            }
            ForwardError::TooLarge(_) | ForwardError::ClientFailed(_) => Self::Client,
        }
    }

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Timeout => "timeout",
            Self::Broken => "broken",
            Self::Client => "client",
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
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.upstream.in_flight.add(-1);
    }
}
