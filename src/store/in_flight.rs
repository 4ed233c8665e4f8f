//! Executions in flight in this process, and those whose end could not be stored.
//!
//! The disk and Redis stores check this table before they ask the writer or the server, so a duplicate on the same
//! gateway waits without I/O. The memory store needs no such table: its records are the table.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use parking_lot::{Mutex, MutexGuard};

use crate::clock::Moment;
use crate::idempotency::claim::{ClaimDecision, RecordView, decide_claim};
use crate::idempotency::{
    Claim, ClaimRequest, ClaimToken, ExecutionOutcome, Fingerprint, InFlightExecution, KeyHash,
    RecordId, RecordInfo, RecordState, ScopeHash,
};

const SHARDS: usize = 32;

/// Executions in flight in this process.
pub(in crate::store) struct InFlightTable {
    shards: Box<[Mutex<HashMap<RecordId, Held>>]>,
    picks_shard: RandomState,
}

enum Held {
    Running(Box<InFlightExecution>),
    /// The claim is stored and its end could not be stored. The key is unknown until the store works again.
    Lost(Lost),
}

/// An execution whose end could not be stored.
struct Lost {
    number: u64,
    fingerprint: Fingerprint,
    since: Moment,
}

impl Held {
    fn view(&self) -> RecordView<'_, Moment> {
        match self {
            Self::Running(execution) => execution.view(),
            Self::Lost(lost) => RecordView {
                state: RecordState::Unknown,
                ..RecordView::in_progress(&lost.fingerprint)
            },
        }
    }

    /// Whether this is the claim of `token`, and not a later one of the same record.
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
            picks_shard: RandomState::new(),
        }
    }
}

impl InFlightTable {
    fn shard(&self, id: RecordId) -> MutexGuard<'_, HashMap<RecordId, Held>> {
        let hash = self.picks_shard.hash_one(id);
        let index = usize::try_from(hash % SHARDS as u64).expect("less than a usize");
        self.shards[index].lock()
    }

    /// Returns the result of a claim on a key whose execution is in flight or lost; `None` if there is none.
    pub(in crate::store) fn meet(&self, request: &ClaimRequest) -> Option<Claim> {
        let mut shard = self.shard(request.id);
        let held = shard.get_mut(&request.id)?;
        Some(
            match (decide_claim(Some(held.view()), request, request.at), held) {
                (ClaimDecision::InFlight, Held::Running(execution)) => {
                    Claim::InFlight(execution.join())
                }
                // A lost execution also rejects a claim with `on_unknown = "release"`, which could not be stored.
                (meeting, _) => meeting.rejection(),
            },
        )
    }

    /// Adds an execution that begins.
    pub(in crate::store) fn begin(&self, execution: InFlightExecution) {
        let id = execution.token.request.id;
        let held = Held::Running(Box::new(execution));
        self.shard(id).insert(id, held);
    }

    /// Ends an execution and passes `outcome` to its waiters. Has no effect on a later claim of the same record.
    pub(in crate::store) fn end(&self, token: &ClaimToken, outcome: ExecutionOutcome) {
        let id = token.request.id;
        let held = match self.shard(id).entry(id) {
            Entry::Occupied(held) if held.get().is_of(token) => held.remove(),
            _ => return,
        };
        if let Held::Running(execution) = held {
            execution.end(outcome);
        }
    }

    /// Ends an execution whose end cannot be stored: its key is unknown. Has no effect if it has already ended.
    pub(in crate::store) fn lose(&self, token: &ClaimToken, now: Moment) {
        let request = &token.request;
        let lost = Held::Lost(Lost {
            number: token.number,
            fingerprint: request.fingerprint,
            since: now,
        });
        let held = match self.shard(request.id).get_mut(&request.id) {
            Some(held) if held.is_of(token) => std::mem::replace(held, lost),
            _ => return,
        };
        if let Held::Running(execution) = held {
            execution.end(ExecutionOutcome::Unknown);
        }
    }

    /// Whether an execution of `id` is in flight.
    pub(in crate::store) fn is_running(&self, id: RecordId) -> bool {
        matches!(self.shard(id).get(&id), Some(Held::Running(_)))
    }

    /// Removes lost executions whose end is stored now: all but those in `claimed`, whose claim is still stored.
    pub(in crate::store) fn clear_lost(&self, claimed: &HashSet<RecordId>) {
        for shard in &self.shards {
            shard
                .lock()
                .retain(|id, held| matches!(held, Held::Running(_)) || claimed.contains(id));
        }
    }

    /// Counts the executions in flight.
    pub(in crate::store) fn len(&self) -> u64 {
        let running = |held: &&Held| matches!(held, Held::Running(_));
        let counts = self
            .shards
            .iter()
            .map(|shard| shard.lock().values().filter(running).count() as u64);
        counts.sum()
    }

    /// Returns the executions of `key` in `scope`, or in all scopes if `None`.
    pub(in crate::store) fn find(
        &self,
        key: KeyHash,
        scope: Option<ScopeHash>,
        now: Moment,
    ) -> Vec<RecordInfo> {
        let is_asked_for =
            |id: &RecordId| id.key == key && scope.is_none_or(|scope| id.scope == scope);
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let held = shard.iter().filter(|(id, _)| is_asked_for(id));
            found.extend(held.map(|(&id, held)| {
                let (state, since, fingerprint) = match held {
                    Held::Running(execution) => {
                        let fingerprint = execution.token.request.fingerprint;
                        (RecordState::InProgress, execution.since, fingerprint)
                    }
                    Held::Lost(lost) => (RecordState::Unknown, lost.since, lost.fingerprint),
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
            in_flight.meet(&late.request),
            Some(Claim::Unknown)
        ));
        in_flight.end(&early, ExecutionOutcome::Unknown);
        assert!(in_flight.meet(&late.request).is_some());
        in_flight.end(&late, ExecutionOutcome::Unknown);
        assert!(in_flight.meet(&late.request).is_none());
        // What has ended cannot be lost any more.
        in_flight.lose(&late, Moment::default());
        assert!(in_flight.meet(&late.request).is_none());
    }
}
