//! Replies to the operations of a batch, sent after its commit has succeeded or failed.

use std::sync::Arc;

use super::super::claim_admission::ClaimAdmission;
use super::super::writer::{Ack, ClaimEnd, send_reply};
use super::super::{DiskStoreState, RecentResponse, Timestamp};
use crate::idempotency::{Claim, ExecutionOutcome, Permit, RecordId, StoreError};

#[derive(Default)]
pub(in super::super) struct PendingReplies {
    /// Each caller receives its permit after the commit.
    pub(super) won: Vec<(Ack<Claim>, Permit)>,
    pub(super) ended: Vec<PendingEnd>,
    pub(super) freed: Vec<(RecordId, Ack<bool>)>,
}

/// An execution whose outcome the batch records.
pub(super) struct PendingEnd {
    pub(super) end: ClaimEnd,
    pub(super) expires: Timestamp,
}

/// To be repeated when the engine is open again.
#[derive(Default)]
pub(in super::super) struct Unwritten {
    /// Claims without an execution, to be removed if the failed batch reached the disk.
    pub(in super::super) orphaned_claims: Vec<RecordId>,
    /// Outcomes of executed requests.
    pub(in super::super) completions: Vec<ClaimEnd>,
}

impl PendingReplies {
    /// Also adds the responses to the cache.
    pub(in super::super) fn send(self, shared: &DiskStoreState, admission: &mut ClaimAdmission) {
        for PendingEnd { end, expires } in self.ended {
            let ClaimEnd {
                token,
                outcome,
                ack,
            } = end;
            if let ExecutionOutcome::Completed(response) = &outcome {
                let recent = RecentResponse {
                    fingerprint: token.request.fingerprint,
                    expires,
                    response: Arc::clone(response),
                };
                shared.recent.insert(token.request.id, recent);
            }
            shared.in_flight.end(&token, outcome);
            send_reply(ack, Ok(()));
            admission.execution_recorded(token.number);
        }
        for (ack, permit) in self.won {
            // If the caller no longer waits, the drop of the permit releases the claim.
            drop(ack.send(Ok(Claim::Won(permit))));
        }
        for (_, ack) in self.freed {
            drop(ack.send(Ok(true)));
        }
    }

    /// After a failed commit, it is unknown whether the batch is on disk. Completions and claims whose requests were
    /// certainly not sent are returned.
    pub(in super::super) fn fail(self, shared: &DiskStoreState, reason: &StoreError) -> Unwritten {
        let now = shared.store_clock.clock.now();
        let mut unwritten = Unwritten::default();
        for PendingEnd { end, .. } in self.ended {
            match end.outcome {
                ExecutionOutcome::Completed(_) | ExecutionOutcome::Tombstone => {
                    unwritten.completions.push(end);
                    continue;
                }
                ExecutionOutcome::Released(_) => {
                    unwritten.orphaned_claims.push(end.token.request.id);
                    shared.in_flight.end(&end.token, end.outcome);
                }
                ExecutionOutcome::Unknown => shared.in_flight.lose(&end.token, now),
            }
            send_reply(end.ack, Err(reason.clone()));
        }
        for (ack, permit) in self.won {
            let token = permit.into_token();
            unwritten.orphaned_claims.push(token.request.id);
            shared
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
