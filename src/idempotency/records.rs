//! Trait that an idempotency store implements.
//!
//! The idempotency stage defines the trait, and the module `store` implements it in memory, on disk and in Redis. A
//! store is responsible for atomicity and durability. The module [`claim`](super::claim) decides whether a claim is
//! granted.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use thiserror::Error;

use super::{
    Claim, ClaimRequest, ExecutionOutcome, Fingerprint, KeyHash, Permit, RecordId, RecordState,
    ScopeHash, StoredResponse,
};

/// Store of idempotency records. Every operation on a record is atomic, so exactly one of several concurrent claims on
/// a key wins.
pub trait Records: Send + Sync + 'static {
    /// Claims an idempotency key. A durable store writes the claim durably before it returns [`Claim::Won`]. If the
    /// future is dropped before it returns, the key is not claimed.
    fn claim(
        &self,
        request: &ClaimRequest,
    ) -> impl Future<Output = Result<Claim, StoreError>> + Send;

    /// Ends the claim of `permit`, stores `outcome`, and passes it to the requests that wait for the execution.
    ///
    /// The outcomes [`Completed`](ExecutionOutcome::Completed) and [`Tombstone`](ExecutionOutcome::Tombstone) mean that
    /// the request was executed. If the function returns `Ok` for them, the record is as durable as the store can make
    /// it. If the function returns an error, the outcome of the key is unknown, and waiting requests receive this
    /// outcome.
    ///
    /// The other outcomes need not be durable. If a power failure removes one of them, the stored claim remains and the
    /// outcome of the key is unknown. Waiting requests receive these outcomes even if the function returns an error.
    fn end(
        &self,
        permit: Permit,
        outcome: ExecutionOutcome,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns up to `limit` records of the idempotency key `key` in `scope`, or in all scopes if `scope` is `None`.
    /// Does not load the stored responses.
    fn find(
        &self,
        key: KeyHash,
        scope: Option<ScopeHash>,
        limit: usize,
    ) -> impl Future<Output = Result<Vec<RecordInfo>, StoreError>> + Send;

    /// Returns the stored response of a completed idempotency record. Returns `None` if there is no record with this
    /// id, or it has no response.
    fn response(
        &self,
        id: RecordId,
    ) -> impl Future<Output = Result<Option<Arc<StoredResponse>>, StoreError>> + Send;

    /// Frees an idempotency key whose outcome is unknown, at the request of an operator. Returns `false` if the key has
    /// another state or no record.
    fn free_unknown(&self, id: RecordId) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Whether the records are in memory. The future of [`claim`](Self::claim) is then ready at its first poll. From
    /// other stores, each replay loads its own copy of the stored response, which counts against `max_buffered`,
    /// because the memory bound of the store does not cover it.
    fn is_in_memory(&self) -> bool;

    /// Returns the number of idempotency records that this process knows of, by state.
    fn counts(&self) -> RecordCounts;
}

/// Idempotency record as an operator sees it, without its response.
#[derive(Clone, Debug)]
pub struct RecordInfo {
    /// Hashes of the idempotency key and its scope.
    pub id: RecordId,
    /// State of the idempotency record.
    pub state: RecordState,
    /// How long the record has been in this state.
    pub age: Duration,
    /// How long until the record expires; `None` while the record is in progress.
    pub expires_in: Option<Duration>,
    /// Fingerprint of the request that created the record.
    pub fingerprint: Fingerprint,
    /// Status and body length of the stored response; `None` if no response is stored.
    pub response: Option<ResponseSummary>,
}

/// Status and body length of a stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseSummary {
    /// Status code of the stored response.
    pub status: StatusCode,
    /// Length of the stored response body in bytes.
    pub body_bytes: usize,
}

/// Numbers of records in an idempotency store, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCounts {
    /// Number of records whose request is in flight.
    pub in_progress: u64,
    /// Number of records with a stored response.
    pub completed: u64,
    /// Number of records whose outcome is unknown.
    pub unknown: u64,
    /// Age of the oldest record whose outcome is unknown. `None` if there is none, and on Redis.
    pub oldest_unknown: Option<Duration>,
    /// Number of records of executed requests without a stored response.
    pub tombstones: u64,
    /// Total size of all stored responses, in bytes.
    pub bytes: u64,
    /// Number of stored responses that were evicted since the store was opened.
    pub evictions: u64,
    /// Number of keys that were forgotten before their TTL since the store was opened, because it was full.
    pub forgotten: u64,
    /// How long completed keys are presently kept. `None` if the store has none.
    pub effective_ttl: Option<Duration>,
}

/// Error of an operation on the idempotency store.
#[derive(Clone, Debug, Error)]
#[error("{reason}")]
pub struct StoreError {
    /// Cause of the error, for the log.
    pub reason: Arc<str>,
    /// Whether this operation was the first to detect the failure. If `false`, the store was already degraded, and the
    /// failure is already in the log.
    pub is_new: bool,
}

impl RecordCounts {
    /// Returns the number of idempotency records in `state`.
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
    /// Creates the error for a failure that this operation was the first to detect.
    pub fn new(reason: impl fmt::Display) -> Self {
        Self {
            reason: reason.to_string().into(),
            is_new: true,
        }
    }

    /// Creates the error for an operation on a store that is already degraded and has logged the failure.
    pub fn known(reason: impl fmt::Display) -> Self {
        Self {
            is_new: false,
            ..Self::new(reason)
        }
    }
}
