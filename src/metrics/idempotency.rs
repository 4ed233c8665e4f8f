//! Counters of requests with an idempotency key.

use super::{Count, LatencyHistogram, StoreBounds};

/// Counters of a route's requests with an idempotency key.
#[derive(Debug, Default)]
pub(crate) struct KeyedMetrics {
    /// Requests that claimed their key and were executed.
    pub claims: Count,
    /// Requests that received a stored response.
    pub replays: Count,
    /// Requests that waited for the first request of their key.
    pub waits: Count,
    /// Requests rejected because another request with their key was in flight.
    pub conflicts: Count,
    /// Requests rejected because their key was used for a different request.
    pub mismatches: Count,
    /// Requests rejected because the outcome of their key is unknown.
    pub unknowns: Count,
    /// Requests rejected because the response of their key was not stored.
    pub tombstones: Count,
    /// Requests rejected because their key was missing or invalid.
    pub invalid: Count,
    /// Requests rejected because a bound on keys, executions or buffers was reached.
    pub exhausted: Count,
    /// Requests with a new key that were rejected because their client holds its share of the store. `exhausted` also
    /// counts them.
    pub client_share_rejections: Count,
    /// Executions whose outcome is unknown or whose response could not be recorded.
    pub lost: Count,
    /// Executions that released their key.
    pub released: Count,
    /// Failed store operations.
    pub store_errors: Count,
    /// Time that the store takes to claim a key.
    pub claim_latency: LatencyHistogram<StoreBounds>,
    /// Time that the store takes to complete a record.
    pub complete_latency: LatencyHistogram<StoreBounds>,
}

/// Outcome of a request with a key, exported as the label `outcome`.
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
