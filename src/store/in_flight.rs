//! Executions in flight in this process, and executions whose outcome could not be stored.
//!
//! The disk and Redis stores look up each idempotency key in this table before any I/O. So a duplicate request on the
//! same gateway waits without I/O. The memory store does not use this table, because its records are already in memory.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};

use parking_lot::{Mutex, MutexGuard};

use crate::clock::Moment;
use crate::idempotency::claim::{ClaimDecision, RecordView, StateView, decide_claim};
use crate::idempotency::{
    Claim, ClaimRejection, ClaimRequest, ClaimToken, ExecutionOutcome, Fingerprint,
    InFlightExecution, KeyHash, RecordId, RecordInfo, RecordState, ScopeHash,
};

const SHARDS: usize = 32;

/// Executions of this process that are in flight or lost, by the id of their idempotency record. An execution is lost
/// if its outcome could not be stored.
pub(in crate::store) struct InFlightTable {
    shards: Box<[Mutex<HashMap<RecordId, InFlightEntry>>]>,
    shard_hasher: RandomState,
}

enum InFlightEntry {
    Running(Box<InFlightExecution>),
    /// The store has the claim, but could not store the outcome. The idempotency key has the state unknown until the
    /// store works again.
    Lost(LostExecution),
}

/// An execution whose outcome could not be stored.
struct LostExecution {
    /// Number of the claim of this execution.
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

    /// Returns whether this entry belongs to the claim of `token`, and not to a later claim of the same idempotency
    /// key.
    fn is_of(&self, token: &ClaimToken) -> bool {
        match self {
            Self::Running(execution) => execution.token.number == token.number,
            Self::Lost(lost) => lost.number == token.number,
        }
    }
}

impl Default for InFlightTable {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            shard_hasher: RandomState::new(),
        }
    }
}

impl InFlightTable {
    fn shard(&self, id: RecordId) -> MutexGuard<'_, HashMap<RecordId, InFlightEntry>> {
        let hash = self.shard_hasher.hash_one(id);
        let index = usize::try_from(hash % SHARDS as u64).expect("SHARDS fits a usize");
        self.shards[index].lock()
    }

    /// Returns the result of a claim if the execution of the same idempotency key is in flight or lost, otherwise
    /// `None`.
    pub(in crate::store) fn check(&self, request: &ClaimRequest) -> Option<Claim> {
        let mut shard = self.shard(request.id);
        let entry = shard.get_mut(&request.id)?;
        Some(match decide_claim(entry.view(), request, request.at) {
            ClaimDecision::InFlight(execution) => Claim::InFlight(execution.join()),
            ClaimDecision::Rejected(rejection) => Claim::Rejected(rejection),
            // If the execution is lost, the claim is rejected even with `on_unknown = "release"`, because the failed
            // store could not store a new claim.
            ClaimDecision::Available => Claim::Rejected(ClaimRejection::OutcomeUnknown),
        })
    }

    /// Adds an execution to the table. The caller must have stored the claim of the execution before.
    pub(in crate::store) fn begin(&self, execution: InFlightExecution) {
        let id = execution.token.request.id;
        let entry = InFlightEntry::Running(Box::new(execution));
        self.shard(id).insert(id, entry);
    }

    /// Removes the execution of `token` and passes `outcome` to the requests that wait for it. Has no effect on a later
    /// claim of the same idempotency key.
    pub(in crate::store) fn end(&self, token: &ClaimToken, outcome: ExecutionOutcome) {
        let id = token.request.id;
        let entry = match self.shard(id).entry(id) {
            Entry::Occupied(entry) if entry.get().is_of(token) => entry.remove(),
            _ => return,
        };
        if let InFlightEntry::Running(execution) = entry {
            execution.end(outcome);
        }
    }

    /// Changes the execution of `token` from in flight to lost, because its outcome cannot be stored. Has no effect if
    /// the execution has already ended.
    pub(in crate::store) fn lose(&self, token: &ClaimToken, now: Moment) {
        let request = &token.request;
        let lost = InFlightEntry::Lost(LostExecution {
            number: token.number,
            fingerprint: request.fingerprint,
            since: now,
        });
        let entry = match self.shard(request.id).get_mut(&request.id) {
            Some(entry) if entry.is_of(token) => std::mem::replace(entry, lost),
            _ => return,
        };
        if let InFlightEntry::Running(execution) = entry {
            execution.end(ExecutionOutcome::Unknown);
        }
    }

    /// Returns whether an execution with the record id `id` is in flight.
    pub(in crate::store) fn is_running(&self, id: RecordId) -> bool {
        matches!(self.shard(id).get(&id), Some(InFlightEntry::Running(_)))
    }

    /// Removes all lost executions except those in `claimed`. The store still has the claims of the executions in
    /// `claimed`, so the outcomes of these executions are still unknown.
    pub(in crate::store) fn clear_lost(&self, claimed: &HashSet<RecordId>) {
        for shard in &self.shards {
            shard.lock().retain(|id, entry| {
                matches!(entry, InFlightEntry::Running(_)) || claimed.contains(id)
            });
        }
    }

    /// Returns the number of executions in flight, without the lost ones.
    pub(in crate::store) fn len(&self) -> u64 {
        let running = |entry: &&InFlightEntry| matches!(entry, InFlightEntry::Running(_));
        let counts = self
            .shards
            .iter()
            .map(|shard| shard.lock().values().filter(running).count() as u64);
        counts.sum()
    }

    /// Returns the executions with the idempotency key `key` in `scope`, or in all scopes if `scope` is `None`.
    pub(in crate::store) fn find(
        &self,
        key: KeyHash,
        scope: Option<ScopeHash>,
        now: Moment,
    ) -> Vec<RecordInfo> {
        let is_selected =
            |id: &RecordId| id.key == key && scope.is_none_or(|scope| id.scope == scope);
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let entry = shard.iter().filter(|(id, _)| is_selected(id));
            found.extend(entry.map(|(&id, entry)| {
                let (state, since, fingerprint) = match entry {
                    InFlightEntry::Running(execution) => {
                        let fingerprint = execution.token.request.fingerprint;
                        (RecordState::InProgress, execution.since, fingerprint)
                    }
                    InFlightEntry::Lost(lost) => {
                        (RecordState::Unknown, lost.since, lost.fingerprint)
                    }
                };
                RecordInfo {
                    id,
                    state,
                    age: now.since(since),
                    expires_in: None,
                    fingerprint,
                    response: None,
                }
            }));
        }
        found
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
