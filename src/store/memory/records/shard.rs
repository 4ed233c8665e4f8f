//! A shard of the table of idempotency records. All records of a scope are in the same shard.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Weak};
use std::time::Duration;

use smallvec::SmallVec;

use crate::clock::Moment;
use crate::idempotency::claim::{ClaimDecision, RecordView, StateView, decide_claim};
use crate::idempotency::{
    ClaimRequest, ClaimToken, ClientHash, Fingerprint, InFlightExecution, KeyHash, RecordCounts,
    RecordId, RecordInfo, RecordState, ScopeHash, StoredResponse,
};
use crate::request::hash_keys::BuildIdentityHasher;
use crate::store::ended_queues::EndedQueues;

#[derive(Default)]
pub(super) struct RecordShard {
    records: HashMap<RecordId, MemoryRecord, BuildIdentityHasher>,
    scopes: HashMap<ScopeHash, u32, BuildIdentityHasher>,
    /// With the number of their claim. If a record was replaced, the number in its old entry does not match, and the
    /// entry is skipped.
    pub(super) ended: EndedQueues<Moment, (RecordId, u64)>,
    counts: StateCounts,
}

#[derive(Default)]
struct StateCounts([u64; RecordState::ALL.len()]);

enum MemoryRecord {
    /// Boxed, because it is larger than an ended record and most records are ended.
    InFlight(Box<InFlightExecution>),
    Ended(EndedRecord),
}

#[derive(Debug)]
pub(super) struct EndedRecord {
    /// Never `InProgress`.
    pub(super) state: RecordState,
    pub(super) number: u64,
    pub(super) fingerprint: Fingerprint,
    pub(super) client: ClientHash,
    pub(super) since: Moment,
    pub(super) expires: Moment,
    /// Cannot be upgraded after the response was evicted.
    pub(super) response: Weak<StoredResponse>,
}

#[derive(Default)]
pub(super) struct DroppedRecords {
    /// The caller subtracts one key from the count of each client.
    pub(super) clients: SmallVec<[ClientHash; 2]>,
    /// Cache keys of the responses.
    pub(super) numbers: ClaimNumbers,
}

/// Most lists have at most two entries.
pub(super) type ClaimNumbers = SmallVec<[u64; 2]>;

impl StateCounts {
    fn of(&mut self, state: RecordState) -> &mut u64 {
        &mut self.0[state as usize]
    }
}

impl MemoryRecord {
    fn state(&self) -> RecordState {
        match self {
            Self::InFlight(_) => RecordState::InProgress,
            Self::Ended(ended) => ended.state,
        }
    }

    fn view(&mut self) -> RecordView<Moment, &mut InFlightExecution, Arc<StoredResponse>> {
        match self {
            Self::InFlight(execution) => execution.view(),
            Self::Ended(ended) => RecordView {
                state: StateView::ended(ended.state, ended.response.upgrade()),
                fingerprint: ended.fingerprint,
                expires: Some(ended.expires),
            },
        }
    }

    /// `None` if the record has expired.
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

impl RecordShard {
    /// Returns `None` if the idempotency key has no record.
    pub(super) fn decide(
        &mut self,
        request: &ClaimRequest,
        now: Moment,
    ) -> Option<ClaimDecision<&mut InFlightExecution, Arc<StoredResponse>>> {
        let record = self.records.get_mut(&request.id)?;
        Some(decide_claim(record.view(), request, now))
    }

    pub(super) fn keys_of(&self, scope: ScopeHash) -> u32 {
        self.scopes.get(&scope).copied().unwrap_or(0)
    }

    /// Returns the ended record that the execution replaces.
    pub(super) fn begin(&mut self, execution: InFlightExecution) -> Option<EndedRecord> {
        let id = execution.token.request.id;
        *self.counts.of(RecordState::InProgress) += 1;
        let replaced = self
            .records
            .insert(id, MemoryRecord::InFlight(Box::new(execution)));
        let Some(replaced) = replaced else {
            *self.scopes.entry(id.scope).or_default() += 1;
            return None;
        };
        *self.counts.of(replaced.state()) -= 1;
        match replaced {
            MemoryRecord::Ended(ended) => Some(ended),
            MemoryRecord::InFlight(_) => None,
        }
    }

    /// Returns `None` if the claim no longer exists.
    pub(super) fn end_with_record(
        &mut self,
        token: &ClaimToken,
        ended: EndedRecord,
    ) -> Option<InFlightExecution> {
        let id = token.request.id;
        let record = self.records.get_mut(&id)?;
        let MemoryRecord::InFlight(execution) = record else {
            return None;
        };
        if execution.token.number != token.number {
            return None;
        }
        let can_forget = ended.state != RecordState::Unknown;
        let ttl = token.request.settings.ttl;
        self.ended
            .push(ended.since, ttl, can_forget, (id, ended.number));
        *self.counts.of(RecordState::InProgress) -= 1;
        *self.counts.of(ended.state) += 1;
        let record = std::mem::replace(record, MemoryRecord::Ended(ended));
        match record {
            MemoryRecord::InFlight(execution) => Some(*execution),
            MemoryRecord::Ended(_) => None,
        }
    }

    /// Returns `None` if the claim no longer exists.
    pub(super) fn release(&mut self, token: &ClaimToken) -> Option<InFlightExecution> {
        let is_same_claim = |record: &MemoryRecord| match record {
            MemoryRecord::InFlight(execution) => execution.token.number == token.number,
            MemoryRecord::Ended(_) => false,
        };
        match self.remove_if(token.request.id, is_same_claim)? {
            MemoryRecord::InFlight(execution) => Some(*execution),
            MemoryRecord::Ended(_) => None,
        }
    }

    /// Does nothing if another claim has replaced the record.
    pub(super) fn make_tombstone(&mut self, id: RecordId, number: u64) {
        if let Some(MemoryRecord::Ended(ended)) = self.records.get_mut(&id)
            && ended.number == number
            && ended.state == RecordState::Completed
        {
            ended.state = RecordState::Tombstone;
            ended.response = Weak::new();
            *self.counts.of(RecordState::Completed) -= 1;
            *self.counts.of(RecordState::Tombstone) += 1;
        }
    }

    /// Returns the client of the record if its outcome was unknown.
    pub(super) fn free_unknown(&mut self, id: RecordId) -> Option<ClientHash> {
        match self.remove_if(id, |record| record.state() == RecordState::Unknown)? {
            MemoryRecord::Ended(ended) => Some(ended.client),
            MemoryRecord::InFlight(_) => None,
        }
    }

    /// Earliest first.
    pub(super) fn drop_expired(&mut self, now: Moment, most: usize) -> DroppedRecords {
        let mut dropped = DroppedRecords::default();
        while dropped.numbers.len() < most
            && let Some((id, number)) = self.ended.pop_expired(now)
        {
            if let Some(ended) = self.remove_ended(id, number) {
                dropped.clients.push(ended.client);
                dropped.numbers.push(number);
            }
        }
        dropped
    }

    /// Removes the oldest completed record or tombstone, if it is at least `min_ttl` old.
    pub(super) fn forget_oldest(&mut self, now: Moment, min_ttl: Duration) -> Option<EndedRecord> {
        while let Some((_, (id, number))) = self.ended.pop_oldest(now, min_ttl) {
            let forgotten = self.remove_ended(id, number);
            if forgotten.is_some() {
                return forgotten;
            }
        }
        None
    }

    /// Does nothing if another claim has replaced the record.
    fn remove_ended(&mut self, id: RecordId, number: u64) -> Option<EndedRecord> {
        let is_same_claim = |record: &MemoryRecord| match record {
            MemoryRecord::InFlight(_) => false,
            MemoryRecord::Ended(ended) => ended.number == number,
        };
        match self.remove_if(id, is_same_claim)? {
            MemoryRecord::Ended(ended) => Some(ended),
            MemoryRecord::InFlight(_) => None,
        }
    }

    fn remove_if(
        &mut self,
        id: RecordId,
        wanted: impl Fn(&MemoryRecord) -> bool,
    ) -> Option<MemoryRecord> {
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

    /// Expired records are skipped.
    pub(super) fn find(&self, key: KeyHash, now: Moment) -> Vec<RecordInfo> {
        let records = self.records.iter().filter(|(id, _)| id.key == key);
        records
            .filter_map(|(&id, record)| record.summary(id, now))
            .collect()
    }

    pub(super) fn get(&self, id: RecordId, now: Moment) -> Option<RecordInfo> {
        self.records.get(&id)?.summary(id, now)
    }

    /// `None` also after the response was evicted.
    pub(super) fn response(&self, id: RecordId, now: Moment) -> Option<Arc<StoredResponse>> {
        match self.records.get(&id)? {
            MemoryRecord::Ended(ended) if ended.expires > now => ended.response.upgrade(),
            _ => None,
        }
    }

    pub(super) fn oldest_unknown(&mut self) -> Option<Moment> {
        let records = &self.records;
        let is_current = |(id, number): &(RecordId, u64)| match records.get(id) {
            Some(MemoryRecord::Ended(ended)) => ended.number == *number,
            _ => false,
        };
        self.ended.oldest_unknown(is_current)
    }

    pub(super) fn count_into(&self, counts: &mut RecordCounts) {
        let StateCounts([in_progress, completed, unknown, tombstones]) = self.counts;
        counts.in_progress += in_progress;
        counts.completed += completed;
        counts.unknown += unknown;
        counts.tombstones += tombstones;
    }
}
