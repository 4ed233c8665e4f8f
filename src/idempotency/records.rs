//! The store of records, as the idempotency stage uses it.
//!
//! The stage defines the trait, and `store` implements it in memory, on disk and in Redis. The store is
//! responsible for atomicity and durability; what a claim meets is decided in [`claim`](super::claim).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use thiserror::Error;

use super::{
    Claim, ClaimRequest, ExecutionOutcome, Fingerprint, KeyHash, Permit, RecordId, ScopeHash,
    State, StoredResponse,
};

/// A store of records. Every operation on a record is atomic: of any number of concurrent claims on a key, one wins.
pub trait Records: Send + Sync + 'static {
    /// Claims a key. On a durable store the claim is durable before it is won. Dropping the future leaves no claim.
    fn claim(
        &self,
        request: &ClaimRequest,
    ) -> impl Future<Output = Result<Claim, StoreError>> + Send;

    /// Ends the claim of `permit` and passes the outcome to its waiters.
    ///
    /// When this returns `Ok` for a request that was executed ([`Completed`](ExecutionOutcome::Completed) or
    /// [`Tombstone`](ExecutionOutcome::Tombstone)), the record is as durable as the store can make it. On an error the
    /// key is unknown, and waiters receive that. The other outcomes contain less than the stored claim implies, so they
    /// need not survive a power cut: without them the key is unknown. Their waiters receive them also on an error.
    fn end(
        &self,
        permit: Permit,
        outcome: ExecutionOutcome,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns up to `most` records of `key`, in `scope` or in all scopes if `None`. Loads no response.
    fn find(
        &self,
        key: KeyHash,
        scope: Option<ScopeHash>,
        most: usize,
    ) -> impl Future<Output = Result<Vec<RecordInfo>, StoreError>> + Send;

    /// Returns the stored response of a completed record; `None` if there is none.
    fn response(
        &self,
        id: RecordId,
    ) -> impl Future<Output = Result<Option<Arc<StoredResponse>>, StoreError>> + Send;

    /// Frees a key whose outcome is unknown, at the request of an operator. Returns `false` if it is not unknown.
    fn free_unknown(&self, id: RecordId) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Whether each replay has its own copy of the stored response in memory, or one that can outlive its cache.
    fn copies_replays(&self) -> bool;

    /// Counts the records that this process knows of.
    fn counts(&self) -> RecordCounts;
}

/// What a lookup returns of a record.
#[derive(Clone, Debug)]
pub struct RecordInfo {
    /// Key and scope of the record.
    pub id: RecordId,
    /// State of the record.
    pub state: State,
    /// Time since the record reached its state.
    pub age: Duration,
    /// Time until the record expires; `None` if it is in progress.
    pub expires_in: Option<Duration>,
    /// Fingerprint of the request.
    pub fingerprint: Fingerprint,
    /// The stored response, if there is one.
    pub response: Option<ResponseSummary>,
}

/// What a lookup returns of a stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseSummary {
    /// Status code of the response.
    pub status: StatusCode,
    /// Length of its body in bytes.
    pub body_bytes: usize,
}

/// Counts of the records in a store.
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
    /// Responses evicted since the store was opened.
    pub evictions: u64,
}

/// Why an operation of a store failed.
#[derive(Clone, Debug, Error)]
#[error("{reason}")]
pub struct StoreError {
    /// Cause of the failure.
    pub reason: Arc<str>,
    /// Whether the failure was detected just now. `false` if the store was known to be degraded, which it has logged.
    pub is_news: bool,
}

impl RecordCounts {
    /// Returns the number of records in `state`.
    pub fn of(&self, state: State) -> u64 {
        match state {
            State::InProgress => self.in_progress,
            State::Completed => self.completed,
            State::Unknown => self.unknown,
            State::Tombstone => self.tombstones,
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
    /// Creates the error of a failure that was detected just now.
    pub fn new(reason: impl fmt::Display) -> Self {
        Self {
            reason: reason.to_string().into(),
            is_news: true,
        }
    }

    /// Creates the error of a failure that is known.
    pub fn known(reason: impl fmt::Display) -> Self {
        Self {
            is_news: false,
            ..Self::new(reason)
        }
    }
}
