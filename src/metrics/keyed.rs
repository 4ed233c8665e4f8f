//! Counters of requests with an idempotency key.

use super::{Count, Latency, OfStore};

/// Counters of a route's requests with an idempotency key.
#[derive(Debug, Default)]
pub(crate) struct KeyedMetrics {
    /// Requests that were executed: the first of their key.
    pub claims: Count,
    /// Requests that received a stored response.
    pub replays: Count,
    /// Requests that waited for the first request of their key.
    pub waits: Count,
    /// Requests rejected because the first request of their key was in flight.
    pub conflicts: Count,
    /// Requests whose key was used for another request.
    pub mismatches: Count,
    /// Requests rejected because the outcome of their key is unknown.
    pub unknowns: Count,
    /// Requests rejected because the response was not retained.
    pub tombstones: Count,
    /// Requests whose key was missing or not valid.
    pub invalid: Count,
    /// Requests rejected because a bound on keys, executions or buffers was reached.
    pub exhausted: Count,
    /// Requests with a new key that were rejected because their client holds its share of the store. They also
    /// count as exhausted.
    pub client_share_rejections: Count,
    /// Executions whose outcome is unknown or whose response could not be recorded.
    pub lost: Count,
    /// Executions that released their key.
    pub released: Count,
    /// Failed operations of the store.
    pub store_errors: Count,
    /// Latency of claims in the store.
    pub claim_latency: Latency<OfStore>,
    /// Latency of completions in the store.
    pub complete_latency: Latency<OfStore>,
}

/// The outcome of a request with a key: the label `outcome`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyOutcome {
    Executed,
    Replayed,
    Waited,
    Conflict,
    Mismatch,
    Unknown,
    NotRetained,
    Invalid,
    Exhausted,
}

impl KeyOutcome {
    pub(crate) const ALL: [Self; 9] = [
        Self::Executed,
        Self::Replayed,
        Self::Waited,
        Self::Conflict,
        Self::Mismatch,
        Self::Unknown,
        Self::NotRetained,
        Self::Invalid,
        Self::Exhausted,
    ];

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Executed => "executed",
            Self::Replayed => "replayed",
            Self::Waited => "waited",
            Self::Conflict => "conflict",
            Self::Mismatch => "mismatch",
            Self::Unknown => "unknown",
            Self::NotRetained => "not_retained",
            Self::Invalid => "invalid",
            Self::Exhausted => "exhausted",
        }
    }

    pub(crate) fn count(self, keyed: &KeyedMetrics) -> &Count {
        match self {
            Self::Executed => &keyed.claims,
            Self::Replayed => &keyed.replays,
            Self::Waited => &keyed.waits,
            Self::Conflict => &keyed.conflicts,
            Self::Mismatch => &keyed.mismatches,
            Self::Unknown => &keyed.unknowns,
            Self::NotRetained => &keyed.tombstones,
            Self::Invalid => &keyed.invalid,
            Self::Exhausted => &keyed.exhausted,
        }
    }
}
