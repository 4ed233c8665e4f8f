//! Executions underway, and those that were and could not be concluded.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use parking_lot::{Mutex, MutexGuard};

use crate::clock::Moment;
use crate::idempotency::{
    Bid, Claim, Ending, Finding, Fingerprint, Flight, KeyHash, RecordId, State, Ticket,
};

const SHARDS: usize = 32;

/// Executions underway in this process.
pub(in crate::store) struct Flights {
    shards: Box<[Mutex<HashMap<RecordId, Held>>]>,
    picks_shard: RandomState,
}

enum Held {
    Flying(Box<Flight>),
    /// Its claim is kept and its end could not be: unknown, and not to be claimed again before the store
    /// can be asked.
    Lost(Fingerprint, Moment),
}

impl Held {
    /// Whether a claim other than that of `ticket` executes.
    fn is_of_another(&self, ticket: &Ticket) -> bool {
        matches!(self, Self::Flying(flight) if flight.ticket.token != ticket.token)
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

    /// What a bid gets that comes while its key is held, if it is.
    pub(in crate::store) fn meet(&self, bid: &Bid) -> Option<Claim> {
        Some(match self.shard(bid.id).get_mut(&bid.id)? {
            Held::Flying(flight) => flight.meet(bid),
            Held::Lost(fingerprint, _) if *fingerprint != bid.fingerprint => Claim::Mismatch,
            // Even where an unknown key may be claimed again: there is nowhere to write that down.
            Held::Lost(..) => Claim::Unknown,
        })
    }

    /// An execution begins.
    pub(in crate::store) fn take_off(&self, flight: Flight) {
        let id = flight.ticket.bid.id;
        let held = Held::Flying(Box::new(flight));
        self.shard(id).insert(id, held);
    }

    /// Ends the execution of `ticket` and passes `ending` to the requests that wait for it. If another claim has the
    /// key by now, its execution goes on.
    pub(in crate::store) fn land(&self, ticket: &Ticket, ending: Ending) {
        let id = ticket.bid.id;
        let mut shard = self.shard(id);
        if shard
            .get(&id)
            .is_some_and(|held| held.is_of_another(ticket))
        {
            return;
        }
        let held = shard.remove(&id);
        drop(shard);
        if let Some(Held::Flying(flight)) = held {
            flight.land(ending);
        }
    }

    /// Ends the execution of `ticket`, whose outcome cannot be written: its key is unknown. If another claim has
    /// the key by now, its execution goes on.
    pub(in crate::store) fn lose(&self, ticket: &Ticket, now: Moment) {
        let bid = &ticket.bid;
        let mut shard = self.shard(bid.id);
        if shard
            .get(&bid.id)
            .is_some_and(|held| held.is_of_another(ticket))
        {
            return;
        }
        let held = shard.insert(bid.id, Held::Lost(bid.fingerprint, now));
        drop(shard);
        if let Some(Held::Flying(flight)) = held {
            flight.land(Ending::Unknown);
        }
    }

    /// Whether an execution is underway.
    pub(in crate::store) fn is_flying(&self, id: RecordId) -> bool {
        matches!(self.shard(id).get(&id), Some(Held::Flying(_)))
    }

    /// Forgets what was lost, once all of it is kept.
    pub(in crate::store) fn clear_lost(&self) {
        for shard in &self.shards {
            shard
                .lock()
                .retain(|_, held| matches!(held, Held::Flying(_)));
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

    /// What is held under a key.
    pub(in crate::store) fn find(&self, key: KeyHash, now: Moment) -> Vec<Finding> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let held = shard.iter().filter(|(id, _)| id.key == key);
            found.extend(held.map(|(&id, held)| {
                let (state, since, fingerprint) = match held {
                    Held::Flying(flight) => {
                        let fingerprint = flight.ticket.bid.fingerprint;
                        (State::InProgress, flight.since, fingerprint)
                    }
                    Held::Lost(fingerprint, since) => (State::Unknown, *since, *fingerprint),
                };
                Finding {
                    id,
                    state,
                    age: now.since(since),
                    expires_in: None,
                    fingerprint,
                    answer: None,
                }
            }));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use super::*;
    use crate::idempotency::{OnUnknown, ScopeHash, Terms};

    fn ticket(token: u64) -> Ticket {
        let bid = Bid {
            id: RecordId {
                key: KeyHash([1; 16]),
                scope: ScopeHash([2; 16]),
            },
            fingerprint: Fingerprint([3; 16]),
            terms: Terms {
                ttl: Duration::from_hours(1),
                on_unknown: OnUnknown::Release,
                max_keys_per_scope: NonZeroU32::MIN,
            },
            at: Moment::default(),
        };
        Ticket { bid, token }
    }

    /// A claim can lapse and its key be claimed again before the first execution has ended.
    #[tokio::test]
    async fn the_end_of_an_earlier_claim_does_not_end_the_execution_of_a_later_one() {
        let flights = Flights::default();
        let (earlier, later) = (ticket(1), ticket(2));
        flights.take_off(Flight::new(later, Moment::default()));
        let Some(Claim::InFlight(waiting)) = flights.meet(&later.bid) else {
            panic!("the later claim executes");
        };
        flights.land(&earlier, Ending::Unknown);
        flights.lose(&earlier, Moment::default());
        assert!(flights.is_flying(later.bid.id));
        flights.land(&later, Ending::Tombstone);
        assert!(matches!(waiting.ended().await, Ending::Tombstone));
        assert!(!flights.is_flying(later.bid.id));
    }

    #[test]
    fn an_execution_that_was_lost_stays_unknown_until_it_lands() {
        let flights = Flights::default();
        let ticket = ticket(1);
        flights.take_off(Flight::new(ticket, Moment::default()));
        flights.lose(&ticket, Moment::default());
        assert!(matches!(flights.meet(&ticket.bid), Some(Claim::Unknown)));
        flights.land(&ticket, Ending::Unknown);
        assert!(flights.meet(&ticket.bid).is_none());
    }
}
