//! Trait of a store of records.
//!
//! The idempotency stage defines the trait, and the module `store` implements it in memory, on disk and in Redis. A
//! store is responsible for atomicity and durability. The decision on a claim is made in [`claim`](super::claim).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use thiserror::Error;

use super::{
    Claim, ClaimRequest, ExecutionOutcome, Fingerprint, KeyHash, Permit, RecordId, RecordState,
    ScopeHash, StoredResponse,
};

/// Store of records. Every operation on a record is atomic: one of several concurrent claims on a key wins.
pub trait Records: Send + Sync + 'static {
    /// Claims a key. A durable store writes the claim durably before it returns [`Claim::Won`]. If the future is
    /// dropped, the key is not claimed.
    fn claim(
        &self,
        request: &ClaimRequest,
    ) -> impl Future<Output = Result<Claim, StoreError>> + Send;

    /// Ends the claim of `permit` and passes the outcome to its waiters.
    ///
    /// The outcomes [`Completed`](ExecutionOutcome::Completed) and [`Tombstone`](ExecutionOutcome::Tombstone) mean that
    /// the request was executed. If the function returns `Ok` for them, the record is as durable as the store can make
    /// it. If it returns an error, the outcome of the key is unknown, which waiters receive.
    ///
    /// The other outcomes need not be durable: if a power failure removes them, the stored claim remains and the
    /// outcome of the key is unknown. Waiters receive these outcomes even if the function returns an error.
    fn end(
        &self,
        permit: Permit,
        outcome: ExecutionOutcome,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns up to `limit` records of `key` in `scope`, or in all scopes if `None`. Does not load responses.
    fn find(
        &self,
        key: KeyHash,
        scope: Option<ScopeHash>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<RecordInfo>, StoreError>> + Send;

    /// Returns the stored response of a completed record; `None` if there is no such record.
    fn response(
        &self,
        id: RecordId,
    ) -> impl Future<Output = Result<Option<Arc<StoredResponse>>, StoreError>> + Send;

    /// Frees a key whose outcome is unknown, at the request of an operator. Returns `false` if the key has another
    /// state or no record.
    fn free_unknown(&self, id: RecordId) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Returns whether a replay holds a copy of the stored response that the memory bound of the store does not cover.
    fn copies_replays(&self) -> bool;

    /// Returns the number of records that this process knows of.
    fn counts(&self) -> RecordCounts;
}

/// Result of a lookup of a record.
#[derive(Clone, Debug)]
pub struct RecordInfo {
    /// Hashes of key and scope.
    pub id: RecordId,
    /// State of the record.
    pub state: RecordState,
    /// Time since the record entered this state.
    pub age: Duration,
    /// Time until the record expires; `None` if it is in progress.
    pub expires_in: Option<Duration>,
    /// Fingerprint of the request.
    pub fingerprint: Fingerprint,
    /// Summary of the stored response; `None` if no response is stored.
    pub response: Option<ResponseSummary>,
}

/// Status and size of a stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseSummary {
    /// Status code of the response.
    pub status: StatusCode,
    /// Length of the body in bytes.
    pub body_bytes: usize,
}

/// Numbers of records in a store, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCounts {
    /// Records in progress.
    pub in_progress: u64,
    /// Records with a stored response.
    pub completed: u64,
    /// Records whose outcome is unknown.
    pub unknown: u64,
    /// Records of executed requests without a stored response.
    pub tombstones: u64,
    /// Size of all stored responses in bytes.
    pub bytes: u64,
    /// Number of responses evicted since the store was opened.
    pub evictions: u64,
}

/// Error of a store operation.
#[derive(Clone, Debug, Error)]
#[error("{reason}")]
pub struct StoreError {
    /// Description of the cause.
    pub reason: Arc<str>,
    /// Whether this operation detected the failure. `false` if the store was already degraded and has logged it.
    pub is_new: bool,
}

impl RecordCounts {
    /// Returns the number of records in `state`.
    pub fn of(&self, state: RecordState) -> u64 {
        match state {
            RecordState::InProgress => self.in_progress,
            RecordState::Completed => self.completed,
            RecordState::Unknown => self.unknown,
            RecordState::Tombstone => self.tombstones,
        }
    }
}

impl From<&StoredResponse> for ResponseSummary {
    fn from(response: &StoredResponse) -> Self {
        Self {
            status: response.status(),
            body_bytes: response.body().len(),
        }
    }
}

impl StoreError {
    /// Creates the error of a failure that this operation detected.
    pub fn new(reason: impl fmt::Display) -> Self {
        Self {
            reason: reason.to_string().into(),
            is_new: true,
        }
    }

    /// Creates the error of an operation on a store that is already degraded.
    pub fn known(reason: impl fmt::Display) -> Self {
        Self {
            is_new: false,
            ..Self::new(reason)
        }
    }
}
