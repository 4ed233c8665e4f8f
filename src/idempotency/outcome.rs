//! Outcome of an execution, and the state of the idempotency record that results from it.
//!
//! The idempotency stage passes an [`ExecutionOutcome`] to the idempotency store. The store passes it on to the
//! requests that wait for the execution. A [`RecordState`] does not contain the response, so lookups and metrics do not
//! need to load the response.

use std::sync::Arc;

use super::StoredResponse;
use crate::respond::Problem;

/// Outcome of the execution of a request with an idempotency key.
#[derive(Clone, Debug)]
pub enum ExecutionOutcome {
    /// The request was executed, and the idempotency store keeps its response for replays.
    Completed(Arc<StoredResponse>),
    /// The request was executed, but its response is not stored, because it is too large or a stream.
    Tombstone,
    /// The request was not executed, so its idempotency key is released. The value is the result of the first request:
    /// a response of the upstream or a problem of the gateway. Duplicate requests that
    /// wait on this gateway for the execution receive the value. If the value is `None`, they get 409.
    Released(Option<Result<Arc<StoredResponse>, Problem>>),
    /// The request was sent to the upstream, but its response was lost. The request may have been executed.
    Unknown,
}

/// State of an idempotency record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordState {
    /// The request is in flight, so its outcome is not yet known.
    InProgress,
    /// The request was executed, and the record contains its response.
    Completed,
    /// The response was lost after the request was sent to the upstream. The request may have been executed.
    Unknown,
    /// The request was executed, but the record does not contain its response.
    Tombstone,
}

impl ExecutionOutcome {
    /// Returns the state and the response of the idempotency record that the store writes for this outcome. Returns
    /// `None` if the outcome releases the key. The store then removes the record.
    pub fn record(&self) -> Option<(RecordState, Option<&Arc<StoredResponse>>)> {
        match self {
            Self::Completed(response) => Some((RecordState::Completed, Some(response))),
            Self::Tombstone => Some((RecordState::Tombstone, None)),
            Self::Unknown => Some((RecordState::Unknown, None)),
            Self::Released(_) => None,
        }
    }

    /// Returns whether the request was executed. If so, the store must write the record durably before the client gets
    /// a response.
    pub fn is_executed(&self) -> bool {
        matches!(self, Self::Completed(_) | Self::Tombstone)
    }
}

impl RecordState {
    /// All states of a record, for metrics.
    pub const ALL: [Self; 4] = [
        Self::InProgress,
        Self::Completed,
        Self::Unknown,
        Self::Tombstone,
    ];

    /// Returns the name of the record state in metrics and admin responses.
    pub fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Unknown => "unknown",
            Self::Tombstone => "tombstone",
        }
    }
}
