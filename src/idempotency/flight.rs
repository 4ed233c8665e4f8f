//! An execution underway, and those who wait for it.
//!
//! Whoever waits holds a place that costs nothing to leave, and all are woken at once when it ends.

use std::sync::Arc;

use tokio::sync::watch;

use super::{Answer, Bid, Claim, Ticket};
use crate::clock::Moment;

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

impl Flight {
    /// An execution that begins at `since`.
    pub fn new(ticket: Ticket, since: Moment) -> Self {
        Self {
            ticket,
            since,
            vigil: None,
        }
    }

    /// Returns what a bid gets while the execution is in flight.
    pub fn meet(&mut self, bid: &Bid) -> Claim {
        if let Some(mismatch) = bid.fingerprint.differs_from(&self.ticket.bid.fingerprint) {
            return Claim::Mismatch(mismatch);
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
