//! Who is told what when a batch is on disk, or is not.

use std::sync::Arc;

use super::super::writer::{Ack, tell};
use super::super::{Common, Recent, Stamp};
use crate::idempotency::{Claim, Ending, Permit, RecordId, StoreError, Ticket};

/// What is left to do when a batch is on disk, or is not.
#[derive(Default)]
pub(in super::super) struct After {
    pub(super) won: Vec<(Ack<Claim>, Permit)>,
    pub(super) landings: Vec<Landing>,
    pub(super) freed: Vec<(RecordId, Ack<bool>)>,
}

/// An execution that comes to its end.
pub(super) struct Landing {
    pub(super) ticket: Ticket,
    pub(super) ending: Ending,
    /// Where somebody waits for it to be on disk.
    pub(super) ack: Option<Ack<()>>,
    pub(super) expires: Stamp,
}

impl After {
    /// Tells everybody, now that it is on disk.
    pub(in super::super) fn done(self, common: &Common) {
        for Landing {
            ticket,
            ending,
            ack,
            expires,
        } in self.landings
        {
            if let Ending::Completed(answer) = &ending {
                let recent = Recent {
                    fingerprint: ticket.bid.fingerprint,
                    expires,
                    answer: Arc::clone(answer),
                };
                common.recent.insert(ticket.bid.id, recent);
            }
            common.flights.land(&ticket, ending);
            tell(ack, Ok(()));
        }
        for (ack, permit) in self.won {
            // If nobody is there to take it, the permit is dropped and its claim released.
            drop(ack.send(Ok(Claim::Won(permit))));
        }
        for (_, ack) in self.freed {
            drop(ack.send(Ok(true)));
        }
    }

    /// Tells everybody that it may not be on disk; claims that nobody holds, if they are.
    pub(in super::super) fn failed(self, common: &Common, reason: &StoreError) -> Vec<RecordId> {
        let now = common.timeline.clock.now();
        let mut doomed = Vec::new();
        for Landing {
            ticket,
            ending,
            ack,
            ..
        } in self.landings
        {
            if let Ending::Released(_) = ending {
                doomed.push(ticket.bid.id);
                common.flights.land(&ticket, ending);
            } else {
                common.flights.lose(&ticket, now);
            }
            tell(ack, Err(reason.clone()));
        }
        for (ack, permit) in self.won {
            let ticket = permit.redeem();
            doomed.push(ticket.bid.id);
            common.flights.land(&ticket, Ending::Released(None));
            drop(ack.send(Err(reason.clone())));
        }
        for (_, ack) in self.freed {
            drop(ack.send(Err(reason.clone())));
        }
        doomed
    }
}
