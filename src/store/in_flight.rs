//! Executions in flight in this process, and those whose outcome could not be stored.
//!
//! The disk and Redis stores look up each key in this table, so a duplicate on the same gateway waits without I/O. The
//! memory store has its records in memory anyway.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::convert::Infallible;

use parking_lot::Mutex;

use crate::clock::Moment;
use crate::idempotency::claim::{ClaimDecision, RecordView, StateView, decide_claim};
use crate::idempotency::{
    Claim, ClaimRejection, ClaimRequest, ClaimToken, ExecutionOutcome, Fingerprint,
    InFlightExecution, KeyHash, RecordId, RecordInfo, RecordState, ScopeHash,
};

/// An execution is lost if its outcome could not be stored.
#[derive(Default)]
pub(in crate::store) struct InFlightTable(Mutex<HashMap<RecordId, InFlightEntry>>);

enum InFlightEntry {
    Running(Box<InFlightExecution>),
    /// The store has the claim, but not the outcome, which is unknown until the store works again.
    Lost(LostExecution),
}

struct LostExecution {
    number: u64,
    fingerprint: Fingerprint,
    since: Moment,
}

impl InFlightEntry {
    fn view(&mut self) -> RecordView<Moment, &mut InFlightExecution, Infallible> {
        match self {
            Self::Running(execution) => execution.view(),
            Self::Lost(lost) => RecordView {
                state: StateView::Unknown,
                fingerprint: lost.fingerprint,
                expires: None,
            },
        }
    }

    /// A later claim of the same key has another number.
    fn is_of(&self, token: &ClaimToken) -> bool {
        match self {
            Self::Running(execution) => execution.token.number == token.number,
            Self::Lost(lost) => lost.number == token.number,
        }
    }
}

impl InFlightTable {
    /// Returns `None` if no execution of the key is in flight or lost.
    pub(in crate::store) fn check(&self, request: &ClaimRequest) -> Option<Claim> {
        let mut table = self.0.lock();
        let entry = table.get_mut(&request.id)?;
        Some(match decide_claim(entry.view(), request, request.at) {
            ClaimDecision::InFlight(execution) => Claim::InFlight(execution.join()),
            ClaimDecision::Rejected(rejection) => Claim::Rejected(rejection),
            // An execution is lost. `on_unknown = "release"` has no effect, because the failed store could not store a
            // new claim.
            ClaimDecision::Available => Claim::Rejected(ClaimRejection::OutcomeUnknown),
        })
    }

    /// The caller has stored the claim before, or stores it in the batch that it is about to write.
    pub(in crate::store) fn begin(&self, execution: InFlightExecution) {
        let id = execution.token.request.id;
        let entry = InFlightEntry::Running(Box::new(execution));
        self.0.lock().insert(id, entry);
    }

    /// Has no effect on a later claim of the same key.
    pub(in crate::store) fn end(&self, token: &ClaimToken, outcome: ExecutionOutcome) {
        let id = token.request.id;
        let entry = match self.0.lock().entry(id) {
            Entry::Occupied(entry) if entry.get().is_of(token) => entry.remove(),
            _ => return,
        };
        if let InFlightEntry::Running(execution) = entry {
            execution.end(outcome);
        }
    }

    /// The outcome cannot be stored. Has no effect if the execution has already ended.
    pub(in crate::store) fn lose(&self, token: &ClaimToken, now: Moment) {
        let request = &token.request;
        let lost = InFlightEntry::Lost(LostExecution {
            number: token.number,
            fingerprint: request.fingerprint,
            since: now,
        });
        let entry = match self.0.lock().get_mut(&request.id) {
            Some(entry) if entry.is_of(token) => std::mem::replace(entry, lost),
            _ => return,
        };
        if let InFlightEntry::Running(execution) = entry {
            execution.end(ExecutionOutcome::Unknown);
        }
    }

    pub(in crate::store) fn is_running(&self, id: RecordId) -> bool {
        matches!(self.0.lock().get(&id), Some(InFlightEntry::Running(_)))
    }

    /// The store still has the claims of `claimed`, so their outcomes are still unknown.
    pub(in crate::store) fn clear_lost(&self, claimed: &HashSet<RecordId>) {
        self.0
            .lock()
            .retain(|id, entry| matches!(entry, InFlightEntry::Running(_)) || claimed.contains(id));
    }

    /// Without lost executions.
    pub(in crate::store) fn len(&self) -> u64 {
        let running = |entry: &&InFlightEntry| matches!(entry, InFlightEntry::Running(_));
        self.0.lock().values().filter(running).count() as u64
    }

    /// In all scopes if `scope` is `None`.
    pub(in crate::store) fn find(
        &self,
        key: KeyHash,
        scope: Option<ScopeHash>,
        now: Moment,
    ) -> Vec<RecordInfo> {
        let is_selected =
            |id: &RecordId| id.key == key && scope.is_none_or(|scope| id.scope == scope);
        let info = |(&id, entry): (&RecordId, &InFlightEntry)| {
            let (state, since, fingerprint) = match entry {
                InFlightEntry::Running(execution) => {
                    let fingerprint = execution.token.request.fingerprint;
                    (RecordState::InProgress, execution.since, fingerprint)
                }
                InFlightEntry::Lost(lost) => (RecordState::Unknown, lost.since, lost.fingerprint),
            };
            RecordInfo {
                id,
                state,
                age: now.since(since),
                expires_in: None,
                fingerprint,
                response: None,
            }
        };
        let table = self.0.lock();
        let found = table.iter().filter(|(id, _)| is_selected(id));
        found.map(info).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::idempotency::{ClientHash, RecordSettings};

    fn token(number: u64) -> ClaimToken {
        ClaimToken {
            request: ClaimRequest {
                at: Moment::default(),
                id: RecordId {
                    key: KeyHash([1; 16]),
                    scope: ScopeHash([1; 16]),
                },
                client: ClientHash(1),
                fingerprint: Fingerprint::from_bytes(&[1; 32]),
                settings: RecordSettings::default(),
            },
            number,
        }
    }

    #[test]
    fn the_late_end_of_a_claim_does_not_end_a_later_claim_of_its_key() {
        let in_flight = InFlightTable::default();
        let (early, late) = (token(1), token(2));
        in_flight.begin(InFlightExecution::new(late, Moment::default()));
        in_flight.end(&early, ExecutionOutcome::Unknown);
        in_flight.lose(&early, Moment::default());
        assert!(in_flight.is_running(late.request.id));
        in_flight.lose(&late, Moment::default());
        assert!(matches!(
            in_flight.check(&late.request),
            Some(Claim::Rejected(ClaimRejection::OutcomeUnknown))
        ));
        in_flight.end(&early, ExecutionOutcome::Unknown);
        assert!(in_flight.check(&late.request).is_some());
        in_flight.end(&late, ExecutionOutcome::Unknown);
        assert!(in_flight.check(&late.request).is_none());
        // `lose` has no effect on an execution that has ended.
        in_flight.lose(&late, Moment::default());
        assert!(in_flight.check(&late.request).is_none());
    }
}
