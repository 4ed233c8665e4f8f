//! Outcome of an execution, and the state of the record that results from it. The state has no response, so lookups and
//! metrics need not load it.

use std::sync::Arc;

use super::StoredResponse;
use crate::respond::Problem;

/// Outcome of an execution.
#[derive(Clone, Debug)]
pub enum ExecutionOutcome {
    /// Executed, with a response for replays.
    Completed(Arc<StoredResponse>),
    /// Executed; the response is too large or a stream.
    Tombstone,
    /// Not executed. Duplicates that wait on this gateway receive the value, or 409 if it is `None`.
    Released(Option<Result<Arc<StoredResponse>, Problem>>),
    /// Sent, and the response was lost.
    Unknown,
}

/// State of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordState {
    /// In flight.
    InProgress,
    /// Executed, with its response.
    Completed,
    /// Sent, and the response was lost.
    Unknown,
    /// Executed, without its response.
    Tombstone,
}

impl ExecutionOutcome {
    /// Returns the record that the store writes, or `None` if it removes the record.
    pub fn record(&self) -> Option<(RecordState, Option<&Arc<StoredResponse>>)> {
        match self {
            Self::Completed(response) => Some((RecordState::Completed, Some(response))),
            Self::Tombstone => Some((RecordState::Tombstone, None)),
            Self::Unknown => Some((RecordState::Unknown, None)),
            Self::Released(_) => None,
        }
    }

    /// Whether the record must be durable before the client gets a response.
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

    /// Returns the name in metrics and admin responses.
    pub fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Unknown => "unknown",
            Self::Tombstone => "tombstone",
        }
    }
}
