//! The claim: who runs, who waits, who is answered from the record.
//!
//! A [`Bid`] is answered with one case of [`Claim`], and each of them is somebody's whole story; there is
//! no "maybe". The winner holds a [`Permit`], and what becomes of the key is what becomes of the permit:
//! completed, released, unknown. A permit that is merely dropped (a panic, a runtime shut down) never
//! pretends: before the request was on its way its key is free again, and afterwards it is unknown.
//!
//! Atomicity is the store's duty: of any number of bids for one record exactly one is won, and on a
//! durable store a claim is on disk before it is won and an answer before `complete` returns.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use thiserror::Error;
use tokio::sync::watch;

use super::rule::OnUnknown;
use super::{Answer, Fingerprint, KeyHash, RecordId, ScopeHash};
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

    /// What there is under a key, in one scope or in whatever scope; so many of them at most.
    fn find(
        &self,
        key: KeyHash,
        scope: Option<ScopeHash>,
        most: usize,
    ) -> impl Future<Output = Result<Vec<Finding>, StoreError>> + Send;

    /// Frees a key whose outcome is unknown, because somebody found out; `false` if it is not unknown.
    fn free_unknown(&self, id: RecordId) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// How much there is, as far as that is known here without asking anybody.
    fn census(&self) -> Census;
}

/// A wish to run a request under its key.
#[derive(Clone, Copy, Debug)]
pub struct Bid {
    /// When it is made.
    pub at: Moment,
    /// The key and whose it is.
    pub id: RecordId,
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
    /// The key stands for another request.
    Mismatch,
    /// It may have been carried out, and nobody knows.
    Unknown,
    /// It was carried out, and the answer is not here any more.
    Tombstone,
    /// The scope has as many keys as it may have.
    ScopeFull {
        /// No key of it expires sooner.
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

/// How an execution ended, for those who waited for it.
#[derive(Clone, Debug)]
pub enum Ending {
    /// With an answer, which is kept.
    Completed(Arc<Answer>),
    /// With an answer, if there was one, which is not kept: the key is free again.
    Released(Option<Arc<Answer>>),
    /// Nobody knows.
    Unknown,
    /// With an answer that could not be kept.
    Tombstone,
}

/// A claim somebody holds.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    /// The bid that won it.
    pub bid: Bid,
    /// Tells it from any other claim of the same record.
    pub token: u64,
}

/// The right, and the duty, to carry out the one execution of a key.
///
/// To be given back to the store that issued it. If it is dropped instead, the store is told.
#[must_use = "a dropped permit leaves its key unknown"]
pub struct Permit {
    ticket: Ticket,
    sent: bool,
    /// When the claim stops to hold, unless the store has it renewed; never, on a store of one's own.
    lapses: Option<Moment>,
    desk: Option<Arc<dyn Desk>>,
}

/// Where permits that were dropped are reported.
pub trait Desk: Send + Sync {
    /// The permit of `ticket` was dropped; `sent` if its request may have reached somebody. Must not
    /// block.
    fn abandoned(&self, ticket: Ticket, sent: bool);
}

/// An execution underway, as those who ask for it meanwhile see it.
#[derive(Debug)]
pub struct Flight {
    /// The claim.
    pub ticket: Ticket,
    /// When it was made.
    pub since: Moment,
    /// Made when the first duplicate comes; nearly always there is none.
    vigil: Option<Vigil>,
}

/// Those who wait for an execution, wherever that is carried out.
#[derive(Debug)]
pub struct Vigil(watch::Sender<Option<Ending>>);

/// A place among those who wait for an execution. Whoever leaves it leaves nothing behind.
#[derive(Debug)]
pub struct Waiting(watch::Receiver<Option<Ending>>);

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
    /// The answer, if there is one.
    pub answer: Option<Arc<Answer>>,
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

impl Finding {
    /// The status of the answer, if there is one.
    pub fn status(&self) -> Option<StatusCode> {
        self.answer.as_ref().map(|answer| answer.status())
    }
}

impl Permit {
    /// The permit for `ticket`, whose loss is reported to `desk`.
    pub fn new(ticket: Ticket, desk: Arc<dyn Desk>) -> Self {
        Self {
            ticket,
            sent: false,
            lapses: None,
            desk: Some(desk),
        }
    }

    /// The same for a claim that holds until then.
    pub fn lapsing(mut self, at: Moment) -> Self {
        self.lapses = Some(at);
        self
    }

    /// Whether the claim may not hold any more, so that nothing is to be sent.
    pub fn has_lapsed(&self, now: Moment) -> bool {
        self.lapses.is_some_and(|lapses| now >= lapses)
    }

    /// The claim it is for.
    pub fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// To be called before the first byte of the request goes anywhere.
    pub fn sending(&mut self) {
        self.sent = true;
    }

    /// Whether the request may have reached somebody.
    pub fn is_sent(&self) -> bool {
        self.sent
    }

    /// The claim, to be settled by the store: from here on nobody is told if it is not.
    pub fn redeem(mut self) -> Ticket {
        self.desk = None;
        self.ticket
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(desk) = self.desk.take() {
            desk.abandoned(self.ticket, self.sent);
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("ticket", &self.ticket)
            .field("sent", &self.sent)
            .finish_non_exhaustive()
    }
}

impl Flight {
    /// An execution that begins at `since`.
    pub fn new(ticket: Ticket, since: Moment) -> Self {
        Self {
            ticket,
            since,
            vigil: None,
        }
    }

    /// What a bid gets that comes while this is underway.
    pub fn meet(&mut self, bid: &Bid) -> Claim {
        if bid.fingerprint != self.ticket.bid.fingerprint {
            return Claim::Mismatch;
        }
        Claim::InFlight(self.vigil.get_or_insert_default().join())
    }

    /// Tells those who wait how it ended.
    pub fn land(self, ending: Ending) {
        if let Some(vigil) = self.vigil {
            vigil.end(ending);
        }
    }
}

impl Vigil {
    /// One more who waits.
    pub fn join(&self) -> Waiting {
        Waiting(self.0.subscribe())
    }

    /// Whether nobody waits any more.
    pub fn is_deserted(&self) -> bool {
        self.0.receiver_count() == 0
    }

    /// Tells them how it ended.
    pub fn end(self, ending: Ending) {
        self.0.send_replace(Some(ending));
    }
}

impl Default for Vigil {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl Waiting {
    /// How the execution ended, once it has.
    pub async fn ended(mut self) -> Ending {
        match self.0.wait_for(Option::is_some).await {
            Ok(ending) => ending.clone().expect("waited until there is one"),
            // The store is gone, and with it all that could be known.
            Err(_) => Ending::Unknown,
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
