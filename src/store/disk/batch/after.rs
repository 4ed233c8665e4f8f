//! Who is told what when a batch is on disk, or is not.

use std::sync::Arc;

use super::super::admission::Admission;
use super::super::writer::{Ack, Completion, tell};
use super::super::{Common, Recent, Stamp};
use crate::idempotency::{Claim, Ending, Kept, Permit, RecordId, StoreError, Ticket};

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

/// What is left of a batch that may not be on disk.
#[derive(Default)]
pub(in super::super) struct Unwritten {
    /// Claims that no permit was issued for, or that were released: to be removed if they are on disk.
    pub(in super::super) doomed: Vec<RecordId>,
    /// Ends of executions, to be recorded when the store works again.
    pub(in super::super) completions: Vec<Completion>,
}

impl After {
    /// Responds to all operations, now that the batch is on disk.
    pub(in super::super) fn done(self, common: &Common, admission: &mut Admission) {
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
            admission.concluded(ticket.token);
        }
        for (ack, permit) in self.won {
            // If nobody is there to take it, the permit is dropped and its claim released.
            drop(ack.send(Ok(Claim::Won(permit))));
        }
        for (_, ack) in self.freed {
            drop(ack.send(Ok(true)));
        }
    }

    /// Responds to all operations but completions, now that the batch may not be on disk.
    pub(in super::super) fn failed(self, common: &Common, reason: &StoreError) -> Unwritten {
        let now = common.timeline.clock.now();
        let mut unwritten = Unwritten::default();
        for Landing {
            ticket,
            ending,
            ack,
            ..
        } in self.landings
        {
            let kept = match ending {
                Ending::Completed(answer) => Kept::Answer(answer),
                Ending::Tombstone => Kept::Tombstone,
                Ending::Released(_) => {
                    unwritten.doomed.push(ticket.bid.id);
                    common.flights.land(&ticket, ending);
                    tell(ack, Err(reason.clone()));
                    continue;
                }
                Ending::Unknown => {
                    common.flights.lose(&ticket, now);
                    tell(ack, Err(reason.clone()));
                    continue;
                }
            };
            let completion = ack.map(|ack| Completion { ticket, kept, ack });
            unwritten.completions.extend(completion);
        }
        for (ack, permit) in self.won {
            let ticket = permit.redeem();
            unwritten.doomed.push(ticket.bid.id);
            common.flights.land(&ticket, Ending::Released(None));
            drop(ack.send(Err(reason.clone())));
        }
        for (_, ack) in self.freed {
            drop(ack.send(Err(reason.clone())));
        }
        unwritten
    }
}
