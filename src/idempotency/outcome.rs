//! How an execution ends, and the state of the record that it leaves.
//!
//! One enum describes the end of an execution from the stage that observes it, through the store, to the requests that
//! wait for it. A [`State`] has no response, so that lookups and metrics need not load one.

use std::sync::Arc;

use super::StoredResponse;
use crate::problem::Problem;

/// How an execution ended.
#[derive(Clone, Debug)]
pub enum ExecutionOutcome {
    /// The request was executed, and its response is stored for replays.
    Completed(Arc<StoredResponse>),
    /// The request was executed, and its response is not stored: it is too large, or a stream.
    Tombstone,
    /// The request was not executed, so its key is free again. Waiters on this gateway receive what the first request
    /// received, if that is known: a response of upstream, or a problem of the gateway.
    Released(Option<Result<Arc<StoredResponse>, Problem>>),
    /// The request was sent, and whether it was executed is unknown.
    Unknown,
}

/// The state of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// The request is being executed.
    InProgress,
    /// The request was executed, and its response is stored.
    Completed,
    /// Whether the request was executed is unknown.
    Unknown,
    /// The request was executed, and its response is not stored.
    Tombstone,
}

impl ExecutionOutcome {
    /// Returns the state and the response of the record that the execution leaves; `None` if it leaves none.
    pub fn record(&self) -> Option<(State, Option<&Arc<StoredResponse>>)> {
        match self {
            Self::Completed(response) => Some((State::Completed, Some(response))),
            Self::Tombstone => Some((State::Tombstone, None)),
            Self::Unknown => Some((State::Unknown, None)),
            Self::Released(_) => None,
        }
    }

    /// Whether the request was executed. Its record must be durable before the client receives a response.
    pub fn is_executed(&self) -> bool {
        matches!(self, Self::Completed(_) | Self::Tombstone)
    }
}

impl State {
    /// All states.
    pub const ALL: [Self; 4] = [
        Self::InProgress,
        Self::Completed,
        Self::Unknown,
        Self::Tombstone,
    ];

    /// Returns the name of the state for operators and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Unknown => "unknown",
            Self::Tombstone => "tombstone",
        }
    }
}
