//! Counters of requests with an idempotency key, by route.

use super::{Count, LatencyHistogram, StoreBounds};

#[derive(Debug, Default)]
pub(crate) struct KeyedMetrics {
    /// Requests that claimed their key and were sent to the upstream.
    pub claims: Count,
    pub replays: Count,
    /// Requests that waited for the response to the first request with their key.
    pub waits: Count,
    /// Requests rejected because another one with their key was in flight.
    pub conflicts: Count,
    /// Requests rejected because their key was used for a different request.
    pub mismatches: Count,
    /// Requests rejected because the outcome of the first request with their key is unknown.
    pub unknowns: Count,
    /// Requests rejected because the response to the first request with their key was not stored.
    pub tombstones: Count,
    /// Requests rejected because their key was missing or invalid.
    pub invalid: Count,
    /// Requests rejected because of a bound on keys, executions or buffered bytes.
    pub exhausted: Count,
    /// Requests rejected because their client uses its share of the store. `exhausted` also counts them.
    pub client_share_rejections: Count,
    /// Executions whose outcome is unknown, or whose response could not be stored.
    pub lost: Count,
    /// Executions that deleted the record of their key.
    pub released: Count,
    pub store_errors: Count,
    pub claim_latency: LatencyHistogram<StoreBounds>,
    /// How long the store takes to store the outcome of an execution.
    pub complete_latency: LatencyHistogram<StoreBounds>,
}

/// Exported as the label `outcome`.
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
