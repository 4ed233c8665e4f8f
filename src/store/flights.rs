//! Executions underway, and those that were and could not be concluded.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use parking_lot::{Mutex, MutexGuard};

use crate::clock::Moment;
use crate::idempotency::{
    Bid, Claim, Ending, Finding, Fingerprint, Flight, KeyHash, RecordId, ScopeHash, State, Ticket,
};

const SHARDS: usize = 32;

/// Executions underway in this process.
pub(in crate::store) struct Flights {
    shards: Box<[Mutex<HashMap<RecordId, Held>>]>,
    picks_shard: RandomState,
}

enum Held {
    Flying(Box<Flight>),
    /// Its claim is stored and its end could not be: unknown, and not claimable before the store works again.
    Lost(Lost),
}

/// An execution whose end could not be stored.
struct Lost {
    token: u64,
    fingerprint: Fingerprint,
    since: Moment,
}

impl Held {
    /// Whether this is the claim of `ticket`, and not a later one of the same record.
    fn is_of(&self, ticket: &Ticket) -> bool {
        match self {
            Self::Flying(flight) => flight.ticket.token == ticket.token,
            Self::Lost(lost) => lost.token == ticket.token,
        }
    }
}

impl Default for Flights {
    fn default() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            picks_shard: RandomState::new(),
        }
    }
}

impl Flights {
    fn shard(&self, id: RecordId) -> MutexGuard<'_, HashMap<RecordId, Held>> {
        let hash = self.picks_shard.hash_one(id);
        let index = usize::try_from(hash % SHARDS as u64).expect("less than a usize");
        self.shards[index].lock()
    }

    /// Returns what a bid gets while an execution of its key is in flight or lost.
    pub(in crate::store) fn meet(&self, bid: &Bid) -> Option<Claim> {
        Some(match self.shard(bid.id).get_mut(&bid.id)? {
            Held::Flying(flight) => flight.meet(bid),
            Held::Lost(lost) => match bid.fingerprint.differs_from(&lost.fingerprint) {
                Some(mismatch) => Claim::Mismatch(mismatch),
                // Also with `on_unknown = "release"`: a new claim could not be stored.
                None => Claim::Unknown,
            },
        })
    }

    /// An execution begins.
    pub(in crate::store) fn take_off(&self, flight: Flight) {
        let id = flight.ticket.bid.id;
        let held = Held::Flying(Box::new(flight));
        self.shard(id).insert(id, held);
    }

    /// Ends an execution and passes `ending` to its waiters. Has no effect on a later claim of the same record.
    pub(in crate::store) fn land(&self, ticket: &Ticket, ending: Ending) {
        let id = ticket.bid.id;
        let held = match self.shard(id).entry(id) {
            Entry::Occupied(held) if held.get().is_of(ticket) => held.remove(),
            _ => return,
        };
        if let Held::Flying(flight) = held {
            flight.land(ending);
        }
    }

    /// Ends an execution whose end cannot be stored: its key is unknown. Has no effect if it has already ended.
    pub(in crate::store) fn lose(&self, ticket: &Ticket, now: Moment) {
        let bid = &ticket.bid;
        let lost = Held::Lost(Lost {
            token: ticket.token,
            fingerprint: bid.fingerprint,
            since: now,
        });
        let held = match self.shard(bid.id).get_mut(&bid.id) {
            Some(held) if held.is_of(ticket) => std::mem::replace(held, lost),
            _ => return,
        };
        if let Held::Flying(flight) = held {
            flight.land(Ending::Unknown);
        }
    }

    /// Whether an execution is underway.
    pub(in crate::store) fn is_flying(&self, id: RecordId) -> bool {
        matches!(self.shard(id).get(&id), Some(Held::Flying(_)))
    }

    /// Removes lost executions whose end is stored now: all but those in `claimed`, whose claim is still stored.
    pub(in crate::store) fn clear_lost(&self, claimed: &HashSet<RecordId>) {
        for shard in &self.shards {
            shard
                .lock()
                .retain(|id, held| matches!(held, Held::Flying(_)) || claimed.contains(id));
        }
    }

    /// How many there are.
    pub(in crate::store) fn len(&self) -> u64 {
        let flying = |held: &&Held| matches!(held, Held::Flying(_));
        let counts = self
            .shards
            .iter()
            .map(|shard| shard.lock().values().filter(flying).count() as u64);
        counts.sum()
    }

    /// Returns the executions of `key` in `scope`, or in all scopes if `None`.
    pub(in crate::store) fn find(
        &self,
        key: KeyHash,
        scope: Option<ScopeHash>,
        now: Moment,
    ) -> Vec<Finding> {
        let is_asked_for =
            |id: &RecordId| id.key == key && scope.is_none_or(|scope| id.scope == scope);
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let held = shard.iter().filter(|(id, _)| is_asked_for(id));
            found.extend(held.map(|(&id, held)| {
                let (state, since, fingerprint) = match held {
                    Held::Flying(flight) => {
                        let fingerprint = flight.ticket.bid.fingerprint;
                        (State::InProgress, flight.since, fingerprint)
                    }
                    Held::Lost(lost) => (State::Unknown, lost.since, lost.fingerprint),
                };
                Finding {
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
    use crate::idempotency::{ClientHash, Terms};

    fn ticket(token: u64) -> Ticket {
        Ticket {
            bid: Bid {
                at: Moment::default(),
                id: RecordId {
                    key: KeyHash([1; 16]),
                    scope: ScopeHash([1; 16]),
                },
                client: ClientHash(1),
                fingerprint: Fingerprint::from_bytes(&[1; 32]),
                terms: Terms::default(),
            },
            token,
        }
    }

    #[test]
    fn the_late_end_of_a_claim_does_not_end_a_later_claim_of_its_key() {
        let flights = Flights::default();
        let (early, late) = (ticket(1), ticket(2));
        flights.take_off(Flight::new(late, Moment::default()));
        flights.land(&early, Ending::Unknown);
        flights.lose(&early, Moment::default());
        assert!(flights.is_flying(late.bid.id));
        flights.lose(&late, Moment::default());
        assert!(matches!(flights.meet(&late.bid), Some(Claim::Unknown)));
        flights.land(&early, Ending::Unknown);
        assert!(flights.meet(&late.bid).is_some());
        flights.land(&late, Ending::Unknown);
        assert!(flights.meet(&late.bid).is_none());
        // What has ended cannot be lost any more.
        flights.lose(&late, Moment::default());
        assert!(flights.meet(&late.bid).is_none());
    }
}
