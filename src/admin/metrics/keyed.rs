//! What is counted of requests with an idempotency key.

use super::{Count, Latency, OfStore};

/// What is counted of a route's requests with an idempotency key.
#[derive(Debug, Default)]
pub struct KeyedMetrics {
    /// Requests that were carried out: the first of their key.
    pub claims: Count,
    /// Requests that were answered from a record.
    pub replays: Count,
    /// Requests that waited for the first of their key.
    pub waits: Count,
    /// Requests that were told to come back because the first of their key was still running.
    pub conflicts: Count,
    /// Requests whose key stands for another request.
    pub mismatches: Count,
    /// Requests that were told that nobody knows what became of their key.
    pub unknowns: Count,
    /// Requests that were told that the answer was not kept.
    pub tombstones: Count,
    /// Requests whose key was missing or no key.
    pub invalid: Count,
    /// Requests for whose key there was no room.
    pub exhausted: Count,
    /// Requests with a new key that were rejected because their client holds its share of the store. They also
    /// count as exhausted.
    pub client_share_rejections: Count,
    /// Executions whose outcome is unknown or whose response could not be recorded.
    pub lost: Count,
    /// Executions that left their key free.
    pub released: Count,
    /// Times the store could not do what it was asked.
    pub store_errors: Count,
    /// How long the store took to answer a bid.
    pub claim_latency: Latency<OfStore>,
    /// How long the store took to keep an answer.
    pub complete_latency: Latency<OfStore>,
}

/// What became of a request with a key, as the label `outcome` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
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

impl Outcome {
    pub(super) const ALL: [Self; 9] = [
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

    pub(super) fn label(self) -> &'static str {
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

    pub(super) fn of(self, keyed: &KeyedMetrics) -> &Count {
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
