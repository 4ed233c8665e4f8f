//! The claim: who runs, who waits, who is answered from the record.
//!
//! A [`Bid`] is answered with one case of [`Claim`], and each of them is somebody's whole story; there is
//! no "maybe". The winner holds a [`Permit`], and what becomes of the key is what becomes of the permit:
//! completed, released, unknown.
//!
//! Atomicity is the store's duty: of any number of bids for one record exactly one is won, and on a
//! durable store a claim is on disk before it is won and an answer before `complete` returns.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use thiserror::Error;

use super::rule::OnUnknown;
use super::{
    Answer, ClientHash, Fingerprint, KeyHash, Mismatch, Permit, RecordId, ScopeHash, Waiting,
};
use crate::clock::Moment;

/// Whoever keeps the records.
pub trait Records: Send + Sync + 'static {
    /// Answers a bid. Dropping the future leaves no claim behind.
    fn claim(&self, bid: &Bid) -> impl Future<Output = Result<Claim, StoreError>> + Send;

    /// Ends a claim with its answer, or with only the fact that there was one. When this returns, it is
    /// as durable as the store is, and those who wait have been told. On an error the key is unknown.
    fn complete(
        &self,
        permit: Permit,
        kept: Kept,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Ends a claim as if it had never been. Those who wait here are told `answer`.
    fn release(
        &self,
        permit: Permit,
        answer: Option<Arc<Answer>>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Ends a claim whose outcome nobody knows.
    fn mark_unknown(&self, permit: Permit) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// Returns up to `most` records of `key`, in `scope` or in all scopes if `None`. Loads no response.
    fn find(
        &self,
        key: KeyHash,
        scope: Option<ScopeHash>,
        most: usize,
    ) -> impl Future<Output = Result<Vec<Finding>, StoreError>> + Send;

    /// Returns the stored response of a completed record; `None` if there is none.
    fn response(
        &self,
        id: RecordId,
    ) -> impl Future<Output = Result<Option<Arc<Answer>>, StoreError>> + Send;

    /// Frees a key whose outcome is unknown, because an operator found it out; `false` if it is not unknown.
    fn free_unknown(&self, id: RecordId) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Whether each replay has its own copy of the stored response in memory, or one that can outlive its cache.
    fn copies_replays(&self) -> bool;

    /// Counts of records, as far as this process knows them.
    fn census(&self) -> Census;
}

/// A wish to run a request under its key.
#[derive(Clone, Copy, Debug)]
pub struct Bid {
    /// When it is made.
    pub at: Moment,
    /// The key and whose it is.
    pub id: RecordId,
    /// The client that sends the request.
    pub client: ClientHash,
    /// What is asked for.
    pub fingerprint: Fingerprint,
    /// What the store is to hold to.
    pub terms: Terms,
}

/// What a store is to hold to for one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How long a record is kept, from its completion.
    pub ttl: Duration,
    /// Whether a record that is unknown can be claimed again.
    pub on_unknown: OnUnknown,
    /// How many keys one scope may have at once.
    pub max_keys_per_scope: NonZeroU32,
}

/// What becomes of a bid.
#[derive(Debug)]
pub enum Claim {
    /// It is the first: run it.
    Won(Permit),
    /// It was carried out; this is the answer.
    Replay(Arc<Answer>),
    /// It is being carried out.
    InFlight(Waiting),
    /// The key was used for another request.
    Mismatch(Mismatch),
    /// It may have been carried out, and nobody knows.
    Unknown,
    /// It was carried out, and the answer is not here any more.
    Tombstone,
    /// The scope has as many keys as it may have.
    ScopeFull {
        /// No key of it expires sooner.
        no_sooner: Duration,
    },
    /// The client holds its share of the store's keys, and the key of the bid would be a new one.
    ClientFull {
        /// The share, in keys.
        limit: u64,
        /// No key of the client expires sooner.
        no_sooner: Duration,
    },
    /// The store has as many keys as it may have.
    StoreFull,
}

/// What is left of an execution.
#[derive(Clone, Debug)]
pub enum Kept {
    /// Its answer.
    Answer(Arc<Answer>),
    /// Only that there was one.
    Tombstone,
}

/// The state of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// It is being carried out.
    InProgress,
    /// It was carried out; the answer is here.
    Completed,
    /// It may have been carried out.
    Unknown,
    /// It was carried out; the answer is not here.
    Tombstone,
}

/// What there is under a key in one scope.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Its name.
    pub id: RecordId,
    /// Its state.
    pub state: State,
    /// How long it has been in that state.
    pub age: Duration,
    /// When it will be forgotten, if it is not in progress.
    pub expires_in: Option<Duration>,
    /// What was asked for.
    pub fingerprint: Fingerprint,
    /// The stored response, if there is one.
    pub response: Option<ResponseSummary>,
}

/// What a lookup tells of a stored response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseSummary {
    /// Status code of the response.
    pub status: StatusCode,
    /// Length of its body in bytes.
    pub body_bytes: usize,
}

/// How much there is in a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Records in progress.
    pub in_progress: u64,
    /// Records with their answer.
    pub completed: u64,
    /// Records whose outcome is unknown.
    pub unknown: u64,
    /// Records without their answer.
    pub tombstones: u64,
    /// What the answers take, in bytes.
    pub bytes: u64,
    /// Answers that were dropped to make room, ever.
    pub evictions: u64,
}

/// Why a store cannot do what it is asked.
#[derive(Clone, Debug, Error)]
#[error("{reason}")]
pub struct StoreError {
    /// What is wrong with it.
    pub reason: Arc<str>,
    /// Whether it was found out just now. A store that is known to be down is not asked, and has said so before.
    pub is_news: bool,
}

impl State {
    /// All there are.
    pub const ALL: [Self; 4] = [
        Self::InProgress,
        Self::Completed,
        Self::Unknown,
        Self::Tombstone,
    ];

    /// Its name, for people and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Unknown => "unknown",
            Self::Tombstone => "tombstone",
        }
    }
}

impl Census {
    /// Records in this state.
    pub fn of(&self, state: State) -> u64 {
        match state {
            State::InProgress => self.in_progress,
            State::Completed => self.completed,
            State::Unknown => self.unknown,
            State::Tombstone => self.tombstones,
        }
    }
}

impl From<&Answer> for ResponseSummary {
    fn from(response: &Answer) -> Self {
        Self {
            status: response.status(),
            body_bytes: response.body().len(),
        }
    }
}

impl StoreError {
    /// Because of `reason`.
    pub fn new(reason: impl fmt::Display) -> Self {
        Self {
            reason: reason.to_string().into(),
            is_news: true,
        }
    }

    /// Because of `reason`, which was told before.
    pub fn known(reason: impl fmt::Display) -> Self {
        Self {
            is_news: false,
            ..Self::new(reason)
        }
    }
}
