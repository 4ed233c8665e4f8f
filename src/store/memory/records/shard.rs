//! One shard of the table: some scopes, whole.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use smallvec::SmallVec;

use super::super::hashers::BuildIdentityHasher;
use crate::clock::Moment;
use crate::idempotency::{
    Answer, Bid, Census, Claim, ClientHash, Finding, Fingerprint, Flight, KeyHash, OnUnknown,
    RecordId, ScopeHash, State, Ticket,
};

/// A shard of the table.
#[derive(Default)]
pub(super) struct Shard {
    records: HashMap<RecordId, Record, BuildIdentityHasher>,
    /// How many keys each scope has here.
    scopes: HashMap<ScopeHash, u32, BuildIdentityHasher>,
    /// When settled records expire, earliest first. An entry whose record has since been replaced is
    /// known by its token, and passed over.
    expiries: BinaryHeap<Reverse<(Moment, RecordId, u64)>>,
    counts: Counts,
}

/// How many records are in each state.
#[derive(Default)]
struct Counts([u64; State::ALL.len()]);

enum Record {
    /// Boxed: few are underway at once, and all others are smaller.
    InFlight(Box<Flight>),
    Settled(Settled),
}

/// A record of an execution that has ended.
#[derive(Debug)]
pub(super) struct Settled {
    /// Not in progress.
    pub(super) state: State,
    /// Of the claim that led to it.
    pub(super) token: u64,
    pub(super) fingerprint: Fingerprint,
    /// The client for which the key counts.
    pub(super) client: ClientHash,
    pub(super) since: Moment,
    pub(super) expires: Moment,
    /// Its answer, for as long as there is room for that.
    pub(super) answer: Weak<Answer>,
}

/// What a bid meets.
pub(super) enum Met {
    /// Nothing.
    Absent,
    /// A record whose place it may take.
    Free,
    /// Somebody, or a record: this is what becomes of the bid.
    Claim(Claim),
}

/// Expired records that were dropped.
#[derive(Default)]
pub(super) struct Dropped {
    /// The client of each record.
    pub(super) clients: SmallVec<[ClientHash; 2]>,
    /// The token of the claim of each record, by which its response is dropped.
    pub(super) tokens: Tokens,
}

/// Tokens of claims.
pub(super) type Tokens = SmallVec<[u64; 2]>;

impl Counts {
    fn of(&mut self, state: State) -> &mut u64 {
        &mut self.0[state as usize]
    }
}

impl Record {
    fn state(&self) -> State {
        match self {
            Self::InFlight(_) => State::InProgress,
            Self::Settled(settled) => settled.state,
        }
    }

    /// What a lookup tells of the record; `None` if it has expired.
    fn summary(&self, id: RecordId, now: Moment) -> Option<Finding> {
        match self {
            Self::InFlight(flight) => Some(Finding {
                id,
                state: State::InProgress,
                age: now.since(flight.since),
                expires_in: None,
                fingerprint: flight.ticket.bid.fingerprint,
                response: None,
            }),
            Self::Settled(settled) if settled.expires <= now => None,
            Self::Settled(settled) => Some(Finding {
                id,
                state: settled.state,
                age: now.since(settled.since),
                expires_in: Some(settled.expires.since(now)),
                fingerprint: settled.fingerprint,
                response: settled.answer.upgrade().map(|answer| (&*answer).into()),
            }),
        }
    }
}

impl Shard {
    /// What a bid meets now.
    pub(super) fn meet(&mut self, bid: &Bid, now: Moment) -> Met {
        match self.records.get_mut(&bid.id) {
            None => Met::Absent,
            Some(Record::InFlight(flight)) => Met::Claim(flight.meet(bid)),
            Some(Record::Settled(settled)) if settled.expires <= now => Met::Free,
            Some(Record::Settled(settled)) => match settled.state {
                _ if let Some(mismatch) = bid.fingerprint.differs_from(&settled.fingerprint) => {
                    Met::Claim(Claim::Mismatch(mismatch))
                }
                State::Unknown if bid.terms.on_unknown == OnUnknown::Release => Met::Free,
                State::Unknown => Met::Claim(Claim::Unknown),
                State::Tombstone => Met::Claim(Claim::Tombstone),
                State::Completed | State::InProgress => {
                    Met::Claim(match settled.answer.upgrade() {
                        Some(answer) => Claim::Replay(answer),
                        None => Claim::Tombstone,
                    })
                }
            },
        }
    }

    /// How many keys a scope has.
    pub(super) fn keys_of(&self, scope: ScopeHash) -> u32 {
        self.scopes.get(&scope).copied().unwrap_or(0)
    }

    /// Returns how long until the first record of this shard expires.
    pub(super) fn next_expiry(&self, now: Moment) -> Option<Duration> {
        let Reverse((expires, ..)) = self.expiries.peek()?;
        Some(expires.since(now))
    }

    /// Stores that an execution begins, and returns the record whose place it takes.
    pub(super) fn take_off(&mut self, flight: Flight) -> Option<Settled> {
        let id = flight.ticket.bid.id;
        *self.counts.of(State::InProgress) += 1;
        let replaced = self.records.insert(id, Record::InFlight(Box::new(flight)));
        let Some(replaced) = replaced else {
            *self.scopes.entry(id.scope).or_default() += 1;
            return None;
        };
        *self.counts.of(replaced.state()) -= 1;
        match replaced {
            Record::Settled(settled) => Some(settled),
            Record::InFlight(_) => None,
        }
    }

    /// Ends an execution with a record. Returns the flight if the claim still exists.
    pub(super) fn settle(&mut self, ticket: &Ticket, settled: Settled) -> Option<Flight> {
        let id = ticket.bid.id;
        let record = self.records.get_mut(&id)?;
        let Record::InFlight(flight) = record else {
            return None;
        };
        if flight.ticket.token != ticket.token {
            return None;
        }
        self.expiries
            .push(Reverse((settled.expires, id, settled.token)));
        *self.counts.of(State::InProgress) -= 1;
        *self.counts.of(settled.state) += 1;
        let record = std::mem::replace(record, Record::Settled(settled));
        match record {
            Record::InFlight(flight) => Some(*flight),
            Record::Settled(_) => None,
        }
    }

    /// Ends an execution as if it had never been; the flight, if the claim was still standing.
    pub(super) fn release(&mut self, ticket: &Ticket) -> Option<Flight> {
        let is_ours = |record: &Record| match record {
            Record::InFlight(flight) => flight.ticket.token == ticket.token,
            Record::Settled(_) => false,
        };
        match self.remove_if(ticket.bid.id, is_ours)? {
            Record::InFlight(flight) => Some(*flight),
            Record::Settled(_) => None,
        }
    }

    /// Says that the answer of a completed record is gone.
    pub(super) fn entomb(&mut self, id: RecordId, token: u64) {
        if let Some(Record::Settled(settled)) = self.records.get_mut(&id)
            && settled.token == token
            && settled.state == State::Completed
        {
            settled.state = State::Tombstone;
            settled.answer = Weak::new();
            *self.counts.of(State::Completed) -= 1;
            *self.counts.of(State::Tombstone) += 1;
        }
    }

    /// Removes a record whose outcome is unknown, and returns its client.
    pub(super) fn free_unknown(&mut self, id: RecordId) -> Option<ClientHash> {
        match self.remove_if(id, |record| record.state() == State::Unknown)? {
            Record::Settled(settled) => Some(settled.client),
            Record::InFlight(_) => None,
        }
    }

    /// Drops up to `most` records that have expired.
    pub(super) fn drop_expired(&mut self, now: Moment, most: usize) -> Dropped {
        let mut dropped = Dropped::default();
        while dropped.tokens.len() < most
            && let Some(&Reverse((expires, id, token))) = self.expiries.peek()
            && expires <= now
        {
            self.expiries.pop();
            let is_meant = |record: &Record| match record {
                Record::InFlight(_) => false,
                Record::Settled(settled) => settled.token == token,
            };
            if let Some(Record::Settled(settled)) = self.remove_if(id, is_meant) {
                dropped.clients.push(settled.client);
                dropped.tokens.push(token);
            }
        }
        dropped
    }

    fn remove_if(&mut self, id: RecordId, wanted: impl Fn(&Record) -> bool) -> Option<Record> {
        let Entry::Occupied(record) = self.records.entry(id) else {
            return None;
        };
        if !wanted(record.get()) {
            return None;
        }
        let record = record.remove();
        *self.counts.of(record.state()) -= 1;
        if let Entry::Occupied(mut keys) = self.scopes.entry(id.scope) {
            *keys.get_mut() -= 1;
            if *keys.get() == 0 {
                keys.remove();
            }
        }
        Some(record)
    }

    /// Returns the records of `key` in all scopes of this shard.
    pub(super) fn find(&self, key: KeyHash, now: Moment) -> Vec<Finding> {
        let records = self.records.iter().filter(|(id, _)| id.key == key);
        records
            .filter_map(|(&id, record)| record.summary(id, now))
            .collect()
    }

    /// Returns one record, unless it has expired.
    pub(super) fn look_at(&self, id: RecordId, now: Moment) -> Option<Finding> {
        self.records.get(&id)?.summary(id, now)
    }

    /// Returns the response of a completed record, unless it has expired or was evicted.
    pub(super) fn response(&self, id: RecordId, now: Moment) -> Option<Arc<Answer>> {
        match self.records.get(&id)? {
            Record::Settled(settled) if settled.expires > now => settled.answer.upgrade(),
            _ => None,
        }
    }

    /// Adds what there is here to a census.
    pub(super) fn count_into(&self, census: &mut Census) {
        let Counts([in_progress, completed, unknown, tombstones]) = self.counts;
        census.in_progress += in_progress;
        census.completed += completed;
        census.unknown += unknown;
        census.tombstones += tombstones;
    }
}
