//! Operations that share a sync: the changes of each, and the replies that are sent after it.
//!
//! The changes of a batch become visible all at once when it is committed, so a batch has no two operations on the same
//! record. Replies wait for the commit, except those of operations that change nothing.

mod after;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use self::after::{EndedClaim, PendingReplies};
use super::admission::Admission;
use super::engine::{Changes, Durability, Engine, ExpiryKey};
use super::record::{Record, StoredClaim};
use super::tally::Tally;
use super::writer::{End, Op, tell};
use super::{Common, Handle, Recent, Stamp, millis};
use crate::idempotency::claim::{ClaimDecision, decide_claim};
use crate::idempotency::{
    Claim, ClaimRequest, ClaimToken, ClientHash, ExecutionOutcome, InFlightExecution, Permit,
    RecordId, RecordState, ScopeHash, StoreError,
};
use crate::store::capacity::{ClientCounts, Full, StoreCapacity};

/// A batch that is being built.
pub(super) struct Batch<'a> {
    engine: &'a Engine,
    common: &'a Common,
    owner: &'a Weak<Handle>,
    last_claim: &'a mut u64,
    admission: &'a mut Admission,
    capacity: StoreCapacity,
    /// No record expires before this one.
    swept: Option<ExpiryKey>,
    now: Stamp,
    changes: Changes<'a>,
    durability: Durability,
    tally: Tally,
    /// Numbers of keys of scopes after the batch.
    scopes: HashMap<ScopeHash, u32>,
    /// Keys of each client, with those of this batch. If the batch fails, the writer counts them again.
    clients: &'a mut ClientCounts,
    touched: HashSet<RecordId>,
    bytes: usize,
    after: PendingReplies,
}

/// The result of a batch.
pub(super) struct Written {
    pub(super) outcome: Result<Tally, StoreError>,
    pub(super) after: PendingReplies,
}

impl<'a> Batch<'a> {
    #[expect(clippy::too_many_arguments, reason = "parts of the writer, each once")]
    pub(super) fn new(
        engine: &'a Engine,
        common: &'a Common,
        tally: Tally,
        capacity: StoreCapacity,
        swept: Option<ExpiryKey>,
        last_claim: &'a mut u64,
        clients: &'a mut ClientCounts,
        admission: &'a mut Admission,
        owner: &'a Weak<Handle>,
    ) -> Self {
        Self {
            engine,
            common,
            owner,
            last_claim,
            admission,
            capacity,
            swept,
            now: common.timeline.now(),
            changes: engine.changes(),
            durability: Durability::Engine,
            tally,
            scopes: HashMap::new(),
            clients,
            touched: HashSet::new(),
            bytes: 0,
            after: PendingReplies::default(),
        }
    }

    /// Whether an operation must wait for this batch to be committed.
    pub(super) fn has_touched(&self, op: &Op) -> bool {
        match op {
            Op::Claim(ClaimRequest { id, .. }, _) | Op::Free(id, _) => self.touched.contains(id),
            Op::End(end) => self.touched.contains(&end.token.request.id),
            #[cfg(test)]
            Op::Sweep(_) => true,
        }
    }

    /// Returns the size of the responses in the batch, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds an operation to the batch. Returns it if it can succeed only after expired records are dropped.
    pub(super) fn take(&mut self, op: Op) -> Option<Op> {
        self.now = self.common.timeline.now();
        match op {
            // The caller no longer waits, so nothing is claimed.
            Op::Claim(_, ack) if ack.is_closed() => {}
            Op::Claim(request, ack) => match self.claim(&request) {
                Ok(Claim::ScopeFull { .. } | Claim::ClientFull { .. } | Claim::StoreFull)
                    if self.has_expired() =>
                {
                    return Some(Op::Claim(request, ack));
                }
                Ok(Claim::Won(permit)) => self.after.won.push((ack, permit)),
                // The claim changes nothing, so its reply does not wait for the disk.
                other => drop(ack.send(other)),
            },
            Op::End(end) if end.outcome.is_executed() => self.complete(end),
            Op::End(end) => self.end(end, Durability::System),
            Op::Free(id, ack) => match self.free(id) {
                Ok(true) => self.after.freed.push((id, ack)),
                other => drop(ack.send(other)),
            },
            #[cfg(test)]
            Op::Sweep(_) => unreachable!("a sweep is never part of a batch"),
        }
        None
    }

    fn claim(&mut self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        if let Some(claim) = self.common.in_flight.meet(request) {
            return Ok(claim);
        }
        let stored = self.engine.record(request.id)?;
        let record = stored.as_ref().map(|(record, _)| record.view());
        let replaced = match (decide_claim(record, request, self.now), stored) {
            (ClaimDecision::Available(_), replaced) => replaced,
            (
                ClaimDecision::Replay,
                Some((
                    Record {
                        response: Some(response),
                        fingerprint,
                        expires,
                        ..
                    },
                    _,
                )),
            ) => {
                let recent = Recent {
                    fingerprint,
                    expires,
                    response: Arc::clone(&response),
                };
                self.common.recent.insert(request.id, recent);
                return Ok(Claim::Replay(response));
            }
            (meeting, _) => return Ok(meeting.rejection()),
        };
        let Some(owner) = self.owner.upgrade() else {
            return Err(StoreError::new("the store is being closed"));
        };
        if let Some((record, weight)) = replaced {
            self.admission.admit(Instant::now())?;
            self.remove(request.id, record.expires, record.state, weight);
            self.clients.remove(record.client);
            self.clients.add(request.client);
            return Ok(self.win(request, owner));
        }
        let keys = self.keys_of(request.id.scope)?;
        if request.settings.is_scope_full(keys) {
            return Ok(Claim::ScopeFull {
                min_wait: self.next_expiry()?,
            });
        }
        match self
            .capacity
            .admit(self.tally.keys, self.clients.held(request.client))
        {
            Ok(()) => {}
            Err(Full::Store) => return Ok(Claim::StoreFull),
            Err(Full::Client(limit)) => {
                let min_wait = self.next_expiry()?;
                return Ok(Claim::ClientFull { limit, min_wait });
            }
        }
        self.admission.admit(Instant::now())?;
        self.scopes.insert(request.id.scope, keys + 1);
        self.tally.keys += 1;
        self.clients.add(request.client);
        Ok(self.win(request, owner))
    }

    fn win(&mut self, request: &ClaimRequest, owner: Arc<Handle>) -> Claim {
        *self.last_claim += 1;
        let token = ClaimToken {
            request: *request,
            number: *self.last_claim,
        };
        let claimed = StoredClaim {
            fingerprint: request.fingerprint.to_bytes(),
            client: request.client.0,
            since: self.now.0,
            ttl: millis(request.settings.ttl),
        };
        self.changes.put_claim(request.id, &claimed);
        self.touched.insert(request.id);
        self.durability = Durability::Disk;
        let since = self.common.timeline.clock.now();
        self.common
            .in_flight
            .begin(InFlightExecution::new(token, since));
        Claim::Won(Permit::new(token, owner))
    }

    /// Records the end of an execution. What is on disk decides how: the completion may have been part of a batch
    /// that failed and still reached the disk, or its claim may have been settled as unknown.
    fn complete(&mut self, end: End) {
        let token = end.token;
        let id = token.request.id;
        let replaced = match self.stored_end(&token) {
            Ok(replaced) => replaced,
            Err(reason) => {
                let now = self.common.timeline.clock.now();
                self.common.in_flight.lose(&token, now);
                tell(end.ack, Err(reason));
                return;
            }
        };
        if let Some((record, weight)) = replaced {
            let expires = record.expires;
            if record.state != RecordState::Unknown {
                // The batch that failed has reached the disk. It was synced when the store was reopened.
                let outcome = record.into_outcome();
                let end = End { outcome, ..end };
                self.after.ended.push(EndedClaim { end, expires });
                return;
            }
            self.tally.remove(RecordState::Unknown, weight);
            self.clients.remove(record.client);
            self.clients.add(token.request.client);
            // `end` overwrites the record, and the index entry if it has the same time.
            if expires != self.now.after(token.request.settings.ttl) {
                self.changes.remove_expiry(ExpiryKey { expires, id });
            }
        }
        if let ExecutionOutcome::Completed(response) = &end.outcome {
            self.bytes += response.weight();
        }
        self.end(end, Durability::Disk);
    }

    /// Returns the record and weight that are stored as the end of an execution, or `None` if its claim is
    /// stored. Fails if neither is.
    fn stored_end(&self, token: &ClaimToken) -> Result<Option<(Record, u64)>, StoreError> {
        let id = token.request.id;
        if self.engine.is_claimed(id)? {
            return Ok(None);
        }
        match self.engine.record(id)? {
            Some(stored) if stored.0.fingerprint == token.request.fingerprint => Ok(Some(stored)),
            _ => Err(StoreError::new("the claim of the execution is not stored")),
        }
    }

    /// Replaces a claim by the record of its outcome, or removes it if there is none.
    fn end(&mut self, end: End, durability: Durability) {
        let request = end.token.request;
        let expires = self.now.after(request.settings.ttl);
        self.changes.remove_claim(request.id);
        if let Some((state, response)) = end.outcome.record() {
            let record = Record {
                state,
                response: response.map(Arc::clone),
                fingerprint: request.fingerprint,
                client: request.client,
                since: self.now,
                expires,
            };
            let weight = self.changes.put_record(request.id, &record);
            self.tally.add(state, weight);
        } else {
            self.forget_key(request.id.scope, request.client);
        }
        self.touched.insert(request.id);
        self.durability = self.durability.max(durability);
        self.after.ended.push(EndedClaim { end, expires });
    }

    fn free(&mut self, id: RecordId) -> Result<bool, StoreError> {
        match self.engine.record(id)? {
            Some((record, weight))
                if record.state == RecordState::Unknown && record.expires > self.now =>
            {
                self.remove(id, record.expires, RecordState::Unknown, weight);
                self.forget_key(id.scope, record.client);
                self.durability = Durability::Disk;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn remove(&mut self, id: RecordId, expires: Stamp, state: RecordState, weight: u64) {
        self.changes.remove_record(ExpiryKey { expires, id });
        self.tally.remove(state, weight);
        self.touched.insert(id);
        self.durability = self.durability.max(Durability::System);
    }

    /// Counts one key less, in total, in its scope and of its client.
    fn forget_key(&mut self, scope: ScopeHash, client: ClientHash) {
        self.tally.keys = self.tally.keys.saturating_sub(1);
        self.clients.remove(client);
        // A count that cannot be read stays as it is: the scope may use one key less.
        if let Ok(keys) = self.keys_of(scope) {
            self.scopes.insert(scope, keys.saturating_sub(1));
        }
    }

    fn keys_of(&self, scope: ScopeHash) -> Result<u32, StoreError> {
        match self.scopes.get(&scope) {
            Some(&keys) => Ok(keys),
            None => self.engine.keys_of(scope),
        }
    }

    fn next_expiry(&self) -> Result<Duration, StoreError> {
        match self.engine.expiries(self.swept).next() {
            None => Ok(Duration::ZERO),
            Some(next) => Ok(next?.0.expires.since(self.now)),
        }
    }

    /// Whether there is an expired record.
    fn has_expired(&self) -> bool {
        let next = self.engine.expiries(self.swept).next();
        matches!(next, Some(Ok((due, _))) if due.expires <= self.now)
    }

    /// Commits all changes, with the highest durability that any of them requires.
    pub(super) fn commit(mut self) -> Written {
        if self.touched.is_empty() {
            let (outcome, after) = (Ok(self.tally), self.after);
            return Written { outcome, after };
        }
        for (&scope, &keys) in &self.scopes {
            self.changes.put_scope(scope, keys);
        }
        if !self.admission.is_unlimited() {
            // The end of the first execution after a failure counts only when it is on disk.
            self.durability = Durability::Disk;
        }
        if self.durability == Durability::Disk {
            self.tally.batches += 1;
        }
        let timeline = &self.common.timeline;
        Written {
            outcome: self.changes.commit(self.tally, timeline, self.durability),
            after: self.after,
        }
    }
}
