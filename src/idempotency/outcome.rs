//! Outcome of an execution, and the resulting state of its record.
//!
//! The stage passes an [`ExecutionOutcome`] to the store, which passes it to the requests that wait for the execution.
//! A [`RecordState`] does not contain the response, so lookups and metrics do not need to load it.

use std::sync::Arc;

use super::StoredResponse;
use crate::problem::Problem;

/// Outcome of an execution.
#[derive(Clone, Debug)]
pub enum ExecutionOutcome {
    /// The request was executed, and its response is stored for replays.
    Completed(Arc<StoredResponse>),
    /// The request was executed, and its response is not stored: it is too large, or a stream.
    Tombstone,
    /// The request was not executed, so its key is released. The value is the result of the first request: a response
    /// of upstream or a problem of the gateway. Waiters on this gateway receive it. `None` if it is not available.
    Released(Option<Result<Arc<StoredResponse>, Problem>>),
    /// The request was sent and its response was lost. It may have been executed.
    Unknown,
}

/// State of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordState {
    /// The request is in flight.
    InProgress,
    /// The request was executed, and its response is stored.
    Completed,
    /// The request was sent and its response was lost. It may have been executed.
    Unknown,
    /// The request was executed, and its response is not stored.
    Tombstone,
}

impl ExecutionOutcome {
    /// Returns the state and the response of the resulting record; `None` if the record is removed.
    pub fn record(&self) -> Option<(RecordState, Option<&Arc<StoredResponse>>)> {
        match self {
            Self::Completed(response) => Some((RecordState::Completed, Some(response))),
            Self::Tombstone => Some((RecordState::Tombstone, None)),
            Self::Unknown => Some((RecordState::Unknown, None)),
            Self::Released(_) => None,
        }
    }

    /// Returns whether the request was executed. If so, its record must be durable before the client gets a response.
    pub fn is_executed(&self) -> bool {
        matches!(self, Self::Completed(_) | Self::Tombstone)
    }
}

impl RecordState {
    /// All states.
    pub const ALL: [Self; 4] = [
        Self::InProgress,
        Self::Completed,
        Self::Unknown,
        Self::Tombstone,
    ];

    /// Returns the name of the state in metrics and admin responses.
    pub fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Unknown => "unknown",
            Self::Tombstone => "tombstone",
        }
    }
}
