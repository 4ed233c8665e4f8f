//! Counters of requests with an idempotency key.

use super::{Count, LatencyHistogram, StoreBounds};

/// Counters of a route's requests with an idempotency key.
#[derive(Debug, Default)]
pub(crate) struct KeyedMetrics {
    /// Number of requests that claimed their idempotency key and were sent to the upstream.
    pub claims: Count,
    /// Number of requests that received a stored response.
    pub replays: Count,
    /// Number of requests that waited for the response to the first request with their idempotency key.
    pub waits: Count,
    /// Number of requests rejected because another request with their idempotency key was in flight.
    pub conflicts: Count,
    /// Number of requests rejected because their idempotency key was used for a different request.
    pub mismatches: Count,
    /// Number of requests rejected because the outcome of the first request with their idempotency key is unknown.
    pub unknowns: Count,
    /// Number of requests rejected because the first request with their idempotency key completed, but its response was
    /// not stored.
    pub tombstones: Count,
    /// Number of requests rejected because their idempotency key was missing or invalid.
    pub invalid: Count,
    /// Number of requests rejected because a maximum number of idempotency keys, executions or buffered bytes was
    /// reached.
    pub exhausted: Count,
    /// Number of requests with a new idempotency key that were rejected because their client already uses its share of
    /// the idempotency store. `exhausted` also counts these requests.
    pub client_share_rejections: Count,
    /// Number of executions whose outcome is unknown, or whose response could not be stored.
    pub lost: Count,
    /// Number of executions that deleted the record of their idempotency key, so that the client can retry with the
    /// same key.
    pub released: Count,
    /// Number of failed operations of the idempotency store.
    pub store_errors: Count,
    /// How long the idempotency store takes to claim a key.
    pub claim_latency: LatencyHistogram<StoreBounds>,
    /// How long the idempotency store takes to store the outcome of an execution.
    pub complete_latency: LatencyHistogram<StoreBounds>,
}

/// Outcome of a request with an idempotency key. It is exported as the label `outcome`.
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
