//! One shard of the table of records. All records of a scope are in the same shard.

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use smallvec::SmallVec;

use super::super::hashers::BuildIdentityHasher;
use crate::clock::Moment;
use crate::idempotency::claim::{Availability, ClaimDecision, RecordView, decide_claim};
use crate::idempotency::{
    Claim, ClaimRequest, ClaimToken, ClientHash, Fingerprint, InFlightExecution, KeyHash,
    RecordCounts, RecordId, RecordInfo, RecordState, ScopeHash, StoredResponse,
};

#[derive(Default)]
pub(super) struct Shard {
    records: HashMap<RecordId, Record, BuildIdentityHasher>,
    /// Number of keys per scope.
    scopes: HashMap<ScopeHash, u32, BuildIdentityHasher>,
    /// When records expire, earliest first. An entry whose record was replaced has the number of an earlier claim, and
    /// is skipped.
    expiries: BinaryHeap<Reverse<(Moment, RecordId, u64)>>,
    counts: Counts,
}

/// Number of records per state.
#[derive(Default)]
struct Counts([u64; RecordState::ALL.len()]);

enum Record {
    /// Boxed: few executions are in flight at once, and all other records are smaller.
    InFlight(Box<InFlightExecution>),
    Ended(Ended),
}

/// A record of an execution that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// Not in progress.
    pub(super) state: RecordState,
    /// Number of the claim that led to the record.
    pub(super) number: u64,
    pub(super) fingerprint: Fingerprint,
    /// The client for which the key counts.
    pub(super) client: ClientHash,
    pub(super) since: Moment,
    pub(super) expires: Moment,
    /// The response, until it is evicted.
    pub(super) response: Weak<StoredResponse>,
}

/// Expired records that were dropped.
#[derive(Default)]
pub(super) struct Dropped {
    /// The client of each record.
    pub(super) clients: SmallVec<[ClientHash; 2]>,
    /// The number of the claim of each record, by which its response is dropped.
    pub(super) numbers: ClaimNumbers,
}

/// Numbers of claims.
pub(super) type ClaimNumbers = SmallVec<[u64; 2]>;

impl Counts {
    fn of(&mut self, state: RecordState) -> &mut u64 {
        &mut self.0[state as usize]
    }
}

impl Record {
    fn state(&self) -> RecordState {
        match self {
            Self::InFlight(_) => RecordState::InProgress,
            Self::Ended(ended) => ended.state,
        }
    }

    fn view(&self) -> RecordView<'_, Moment> {
        match self {
            Self::InFlight(execution) => execution.view(),
            Self::Ended(ended) => RecordView::ended(ended.state, &ended.fingerprint, ended.expires),
        }
    }

    /// Returns what a lookup shows of the record; `None` if it has expired.
    fn summary(&self, id: RecordId, now: Moment) -> Option<RecordInfo> {
        match self {
            Self::InFlight(execution) => Some(RecordInfo {
                id,
                state: RecordState::InProgress,
                age: now.since(execution.since),
                expires_in: None,
                fingerprint: execution.token.request.fingerprint,
                response: None,
            }),
            Self::Ended(ended) if ended.expires <= now => None,
            Self::Ended(ended) => Some(RecordInfo {
                id,
                state: ended.state,
                age: now.since(ended.since),
                expires_in: Some(ended.expires.since(now)),
                fingerprint: ended.fingerprint,
                response: ended.response.upgrade().map(|response| (&*response).into()),
            }),
        }
    }
}

impl Shard {
    /// Returns the result of a claim, or why the key can be claimed.
    pub(super) fn meet(
        &mut self,
        request: &ClaimRequest,
        now: Moment,
    ) -> Result<Claim, Availability> {
        let record = self.records.get_mut(&request.id);
        let meeting = decide_claim(record.as_deref().map(Record::view), request, now);
        match (meeting, record) {
            (ClaimDecision::Available(vacancy), _) => Err(vacancy),
            (ClaimDecision::InFlight, Some(Record::InFlight(execution))) => {
                Ok(Claim::InFlight(execution.join()))
            }
            (ClaimDecision::Replay, Some(Record::Ended(ended)))
                if let Some(response) = ended.response.upgrade() =>
            {
                Ok(Claim::Replay(response))
            }
            (meeting, _) => Ok(meeting.rejection()),
        }
    }

    /// Returns the number of keys of a scope.
    pub(super) fn keys_of(&self, scope: ScopeHash) -> u32 {
        self.scopes.get(&scope).copied().unwrap_or(0)
    }

    /// Returns how long until the first record of this shard expires.
    pub(super) fn next_expiry(&self, now: Moment) -> Option<Duration> {
        let Reverse((expires, ..)) = self.expiries.peek()?;
        Some(expires.since(now))
    }

    /// Adds an execution that begins. Returns the record that it replaces.
    pub(super) fn begin(&mut self, execution: InFlightExecution) -> Option<Ended> {
        let id = execution.token.request.id;
        *self.counts.of(RecordState::InProgress) += 1;
        let replaced = self
            .records
            .insert(id, Record::InFlight(Box::new(execution)));
        let Some(replaced) = replaced else {
            *self.scopes.entry(id.scope).or_default() += 1;
            return None;
        };
        *self.counts.of(replaced.state()) -= 1;
        match replaced {
            Record::Ended(ended) => Some(ended),
            Record::InFlight(_) => None,
        }
    }

    /// Ends an execution with a record. Returns the execution if the claim still exists.
    pub(super) fn settle(&mut self, token: &ClaimToken, ended: Ended) -> Option<InFlightExecution> {
        let id = token.request.id;
        let record = self.records.get_mut(&id)?;
        let Record::InFlight(execution) = record else {
            return None;
        };
        if execution.token.number != token.number {
            return None;
        }
        self.expiries
            .push(Reverse((ended.expires, id, ended.number)));
        *self.counts.of(RecordState::InProgress) -= 1;
        *self.counts.of(ended.state) += 1;
        let record = std::mem::replace(record, Record::Ended(ended));
        match record {
            Record::InFlight(execution) => Some(*execution),
            Record::Ended(_) => None,
        }
    }

    /// Ends an execution without a record. Returns it if the claim still exists.
    pub(super) fn release(&mut self, token: &ClaimToken) -> Option<InFlightExecution> {
        let is_ours = |record: &Record| match record {
            Record::InFlight(execution) => execution.token.number == token.number,
            Record::Ended(_) => false,
        };
        match self.remove_if(token.request.id, is_ours)? {
            Record::InFlight(execution) => Some(*execution),
            Record::Ended(_) => None,
        }
    }

    /// Turns a completed record into a tombstone.
    pub(super) fn entomb(&mut self, id: RecordId, number: u64) {
        if let Some(Record::Ended(ended)) = self.records.get_mut(&id)
            && ended.number == number
            && ended.state == RecordState::Completed
        {
            ended.state = RecordState::Tombstone;
            ended.response = Weak::new();
            *self.counts.of(RecordState::Completed) -= 1;
            *self.counts.of(RecordState::Tombstone) += 1;
        }
    }

    /// Removes a record whose outcome is unknown, and returns its client.
    pub(super) fn free_unknown(&mut self, id: RecordId) -> Option<ClientHash> {
        match self.remove_if(id, |record| record.state() == RecordState::Unknown)? {
            Record::Ended(ended) => Some(ended.client),
            Record::InFlight(_) => None,
        }
    }

    /// Drops up to `most` records that have expired.
    pub(super) fn drop_expired(&mut self, now: Moment, most: usize) -> Dropped {
        let mut dropped = Dropped::default();
        while dropped.numbers.len() < most
            && let Some(&Reverse((expires, id, number))) = self.expiries.peek()
            && expires <= now
        {
            self.expiries.pop();
            let is_meant = |record: &Record| match record {
                Record::InFlight(_) => false,
                Record::Ended(ended) => ended.number == number,
            };
            if let Some(Record::Ended(ended)) = self.remove_if(id, is_meant) {
                dropped.clients.push(ended.client);
                dropped.numbers.push(number);
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
    pub(super) fn find(&self, key: KeyHash, now: Moment) -> Vec<RecordInfo> {
        let records = self.records.iter().filter(|(id, _)| id.key == key);
        records
            .filter_map(|(&id, record)| record.summary(id, now))
            .collect()
    }

    /// Returns one record, unless it has expired.
    pub(super) fn look_at(&self, id: RecordId, now: Moment) -> Option<RecordInfo> {
        self.records.get(&id)?.summary(id, now)
    }

    /// Returns the response of a completed record, unless it has expired or was evicted.
    pub(super) fn response(&self, id: RecordId, now: Moment) -> Option<Arc<StoredResponse>> {
        match self.records.get(&id)? {
            Record::Ended(ended) if ended.expires > now => ended.response.upgrade(),
            _ => None,
        }
    }

    /// Adds the counts of this shard to `counts`.
    pub(super) fn count_into(&self, counts: &mut RecordCounts) {
        let Counts([in_progress, completed, unknown, tombstones]) = self.counts;
        counts.in_progress += in_progress;
        counts.completed += completed;
        counts.unknown += unknown;
        counts.tombstones += tombstones;
    }
}
