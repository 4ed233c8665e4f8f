//! Trait of the stores of records, which are responsible for atomicity and durability. [`claim`](super::claim) decides
//! whether a claim is granted.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use thiserror::Error;

use super::{
    Claim, ClaimRequest, ExecutionOutcome, Fingerprint, KeyHash, Permit, RecordId, RecordState,
    ScopeHash, StoredResponse,
};

/// Store of records. Every operation is atomic, so exactly one of several concurrent claims on a key wins.
pub trait Records: Send + Sync + 'static {
    /// Claims a key. A durable store writes the claim before it returns [`Claim::Won`]. If the future is dropped before
    /// it returns, the key is not claimed.
    fn claim(
        &self,
        request: &ClaimRequest,
    ) -> impl Future<Output = Result<Claim, StoreError>> + Send;

    /// Ends the claim of `permit`, stores `outcome`, and passes it to the requests that wait for the execution.
    ///
    /// After `Ok` for an executed request, the record is as durable as the store can make it. After an error the
    /// outcome is unknown, also for waiting requests. Other outcomes need not be durable, because a claim that remains
    /// counts as unknown. Waiting requests receive them even after an error.
    fn end(
        &self,
        permit: Permit,
        outcome: ExecutionOutcome,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns up to `limit` records of a key in `scope`, or in all scopes, without their responses.
    fn find(
        &self,
        key: KeyHash,
        scope: Option<ScopeHash>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<RecordInfo>, StoreError>> + Send;

    /// Returns the stored response of a completed record.
    fn response(
        &self,
        id: RecordId,
    ) -> impl Future<Output = Result<Option<Arc<StoredResponse>>, StoreError>> + Send;

    /// Frees a key whose outcome is unknown, for an operator. Returns `false` if there is none.
    fn free_unknown(&self, id: RecordId) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Whether the future of [`claim`](Self::claim) is ready at its first poll. If not, each replay loads its own copy of
    /// the response, which counts against `max_buffered`, because the memory bound of the store does not cover it.
    fn is_in_memory(&self) -> bool;

    /// Returns the numbers of records that this process knows of.
    fn counts(&self) -> RecordCounts;
}

/// Record as an operator sees it.
#[derive(Clone, Debug)]
pub struct RecordInfo {
    /// Hashes of the key and its scope.
    pub id: RecordId,
    /// State of the record.
    pub state: RecordState,
    /// How long the record has been in this state.
    pub age: Duration,
    /// Time until it expires; `None` while in progress.
    pub expires_in: Option<Duration>,
    /// Fingerprint of the request that created the record.
    pub fingerprint: Fingerprint,
    /// The stored response, if any.
    pub response: Option<ResponseSummary>,
}

/// Status and body length of a stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseSummary {
    /// Status of the response.
    pub status: StatusCode,
    /// Length of the body in bytes.
    pub body_bytes: usize,
}

/// Numbers of records in a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCounts {
    /// Records in flight.
    pub in_progress: u64,
    /// Records with a stored response.
    pub completed: u64,
    /// Records whose outcome is unknown.
    pub unknown: u64,
    /// Age of the oldest of these; `None` also on Redis.
    pub oldest_unknown: Option<Duration>,
    /// Records of executed requests without a stored response.
    pub tombstones: u64,
    /// Size of all stored responses, in bytes.
    pub bytes: u64,
    /// Responses that were evicted since the store was opened.
    pub evictions: u64,
    /// Keys that were forgotten before their TTL, because the store was full.
    pub forgotten: u64,
    /// How long completed keys are presently kept.
    pub effective_ttl: Option<Duration>,
}

/// Error of a store.
#[derive(Clone, Debug, Error)]
#[error("{reason}")]
pub struct StoreError {
    /// Cause, for the log.
    pub reason: Arc<str>,
    /// `false` if the store was already degraded and has logged the failure.
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
    /// Creates the error of a new failure.
    pub fn new(reason: impl fmt::Display) -> Self {
        Self {
            reason: reason.to_string().into(),
            is_new: true,
        }
    }

    /// Creates the error of a store that is already degraded.
    pub fn known(reason: impl fmt::Display) -> Self {
        Self {
            is_new: false,
            ..Self::new(reason)
        }
    }
}
