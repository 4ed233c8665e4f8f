//! Replies to the operations of a batch, after it was committed or has failed.

use std::sync::Arc;

use super::super::admission::Admission;
use super::super::writer::{Ack, End, tell};
use super::super::{Common, Recent, Stamp};
use crate::idempotency::{Claim, ExecutionOutcome, Permit, RecordId, StoreError};

/// Replies that wait for the commit of a batch.
#[derive(Default)]
pub(in super::super) struct PendingReplies {
    pub(super) won: Vec<(Ack<Claim>, Permit)>,
    pub(super) ended: Vec<EndedClaim>,
    pub(super) freed: Vec<(RecordId, Ack<bool>)>,
}

/// An execution whose end is part of the batch.
pub(super) struct EndedClaim {
    pub(super) end: End,
    /// When its record expires.
    pub(super) expires: Stamp,
}

/// Operations of a failed batch that are still to be done.
#[derive(Default)]
pub(in super::super) struct Unwritten {
    /// Claims that no permit was issued for, or that were released: to be removed if they are on disk.
    pub(in super::super) doomed: Vec<RecordId>,
    /// Ends of executions, to be recorded when the store works again.
    pub(in super::super) completions: Vec<End>,
}

impl PendingReplies {
    /// Responds to all operations, now that the batch is on disk.
    pub(in super::super) fn done(self, common: &Common, admission: &mut Admission) {
        for EndedClaim { end, expires } in self.ended {
            let End {
                token,
                outcome,
                ack,
            } = end;
            if let ExecutionOutcome::Completed(response) = &outcome {
                let recent = Recent {
                    fingerprint: token.request.fingerprint,
                    expires,
                    response: Arc::clone(response),
                };
                common.recent.insert(token.request.id, recent);
            }
            common.in_flight.end(&token, outcome);
            tell(ack, Ok(()));
            admission.concluded(token.number);
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
        for EndedClaim { end, .. } in self.ended {
            match end.outcome {
                ExecutionOutcome::Completed(_) | ExecutionOutcome::Tombstone => {
                    unwritten.completions.push(end);
                    continue;
                }
                ExecutionOutcome::Released(_) => {
                    unwritten.doomed.push(end.token.request.id);
                    common.in_flight.end(&end.token, end.outcome);
                }
                ExecutionOutcome::Unknown => common.in_flight.lose(&end.token, now),
            }
            tell(end.ack, Err(reason.clone()));
        }
        for (ack, permit) in self.won {
            let token = permit.into_token();
            unwritten.doomed.push(token.request.id);
            common
                .in_flight
                .end(&token, ExecutionOutcome::Released(None));
            drop(ack.send(Err(reason.clone())));
        }
        for (_, ack) in self.freed {
            drop(ack.send(Err(reason.clone())));
        }
        unwritten
    }
}
