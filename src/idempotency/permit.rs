//! The permit: what the winner of a key holds while it is carried out.
//!
//! A permit that is merely dropped (a panic, a runtime shut down) never pretends: before the request was on
//! its way its key is free again, and afterwards it is unknown.

use std::fmt;
use std::sync::Arc;

use super::Bid;
use crate::clock::Moment;

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
