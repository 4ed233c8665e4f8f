//! A batch of operations that share one sync.
//!
//! The changes of a batch become visible together when the batch is committed, so a batch never contains two
//! operations on the same record. Replies are sent after the commit. Operations that change nothing are replied to
//! immediately.

mod replies;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use self::replies::{PendingEnd, PendingReplies};
use super::claim_admission::ClaimAdmission;
use super::engine::{Changes, Durability, Engine, ExpiryKey};
use super::record::{DiskRecord, StoredClaim};
use super::totals::StoreTotals;
use super::writer::{ClaimEnd, Op, send_reply};
use super::{DiskStoreState, RecentResponse, Timestamp, WriterHandle, millis};
use crate::idempotency::claim::{ClaimDecision, decide_claim};
use crate::idempotency::{
    Claim, ClaimRequest, ClaimToken, ClientHash, ExecutionOutcome, InFlightExecution, Permit,
    RecordId, RecordState, ScopeHash, StoreError,
};
use crate::store::capacity::{ClientCounts, Full, StoreCapacity};

/// A batch that accepts operations until it is committed.
pub(super) struct Batch<'a> {
    engine: &'a Engine,
    shared: &'a DiskStoreState,
    owner: &'a Weak<WriterHandle>,
    last_claim: &'a mut u64,
    admission: &'a mut ClaimAdmission,
    capacity: StoreCapacity,
    /// The last expired record that was dropped. The expiry index has no entry before it.
    swept: Option<ExpiryKey>,
    now: Timestamp,
    changes: Changes<'a>,
    durability: Durability,
    totals: StoreTotals,
    /// Number of keys of each changed scope after the batch.
    scopes: HashMap<ScopeHash, u32>,
    /// Number of keys of each client, including this batch. If the batch fails, the writer counts them again.
    clients: &'a mut ClientCounts,
    /// Records that the batch changes.
    changed: HashSet<RecordId>,
    /// Size of the responses in the batch, in bytes.
    bytes: usize,
    replies: PendingReplies,
}

/// The result of a commit, and the replies to send.
pub(super) struct BatchResult {
    pub(super) outcome: Result<StoreTotals, StoreError>,
    pub(super) replies: PendingReplies,
}

impl<'a> Batch<'a> {
    #[expect(
        clippy::too_many_arguments,
        reason = "all are fields of the writer, borrowed separately"
    )]
    pub(super) fn new(
        engine: &'a Engine,
        shared: &'a DiskStoreState,
        totals: StoreTotals,
        capacity: StoreCapacity,
        swept: Option<ExpiryKey>,
        last_claim: &'a mut u64,
        clients: &'a mut ClientCounts,
        admission: &'a mut ClaimAdmission,
        owner: &'a Weak<WriterHandle>,
    ) -> Self {
        Self {
            engine,
            shared,
            owner,
            last_claim,
            admission,
            capacity,
            swept,
            now: shared.store_clock.now(),
            changes: engine.changes(),
            durability: Durability::Engine,
            totals,
            scopes: HashMap::new(),
            clients,
            changed: HashSet::new(),
            bytes: 0,
            replies: PendingReplies::default(),
        }
    }

    /// Returns whether the batch already changes the record of `op`, so that `op` has to wait for the commit.
    pub(super) fn conflicts_with(&self, op: &Op) -> bool {
        match op {
            Op::Claim(ClaimRequest { id, .. }, _) | Op::Free(id, _) => self.changed.contains(id),
            Op::End(end) => self.changed.contains(&end.token.request.id),
            #[cfg(test)]
            Op::Sweep(_) => true,
        }
    }

    /// Returns the size of the responses in the batch, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds an operation to the batch. Returns a claim that finds the store full while expired records can be dropped.
    pub(super) fn add(&mut self, op: Op) -> Option<Op> {
        self.now = self.shared.store_clock.now();
        match op {
            // The caller no longer waits, so the claim is skipped.
            Op::Claim(_, ack) if ack.is_closed() => {}
            Op::Claim(request, ack) => match self.claim(&request) {
                Ok(Claim::ScopeFull { .. } | Claim::ClientFull { .. } | Claim::StoreFull)
                    if self.has_expired() =>
                {
                    return Some(Op::Claim(request, ack));
                }
                Ok(Claim::Won(permit)) => self.replies.won.push((ack, permit)),
                // The claim changes nothing, so its reply does not wait for the commit.
                other => drop(ack.send(other)),
            },
            Op::End(end) if end.outcome.is_executed() => self.complete(end),
            Op::End(end) => self.end(end, Durability::System),
            Op::Free(id, ack) => match self.free(id) {
                Ok(true) => self.replies.freed.push((id, ack)),
                other => drop(ack.send(other)),
            },
            #[cfg(test)]
            Op::Sweep(_) => unreachable!("a sweep is never part of a batch"),
        }
        None
    }

    fn claim(&mut self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        if let Some(claim) = self.shared.in_flight.check(request) {
            return Ok(claim);
        }
        let stored = self.engine.record(request.id)?;
        let record = stored.as_ref().map(|(record, _)| record.view());
        let replaced = match (decide_claim(record, request, self.now), stored) {
            (ClaimDecision::Available(_), replaced) => replaced,
            (
                ClaimDecision::Replay,
                Some((
                    DiskRecord {
                        response: Some(response),
                        fingerprint,
                        expires,
                        ..
                    },
                    _,
                )),
            ) => {
                let recent = RecentResponse {
                    fingerprint,
                    expires,
                    response: Arc::clone(&response),
                };
                self.shared.recent.insert(request.id, recent);
                return Ok(Claim::Replay(response));
            }
            (decision, _) => return Ok(decision.rejection()),
        };
        let Some(owner) = self.owner.upgrade() else {
            return Err(StoreError::new("the store is being closed"));
        };
        if let Some((record, weight)) = replaced {
            self.admission.admit(Instant::now())?;
            self.remove(request.id, record.expires, record.state, weight);
            self.clients.remove(record.client);
            self.clients.add(request.client);
            return Ok(self.grant(request, owner));
        }
        let keys = self.keys_of(request.id.scope)?;
        if request.settings.is_scope_full(keys) {
            return Ok(Claim::ScopeFull {
                min_wait: self.next_expiry()?,
            });
        }
        match self
            .capacity
            .admit(self.totals.keys, self.clients.held(request.client))
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
        self.totals.keys += 1;
        self.clients.add(request.client);
        Ok(self.grant(request, owner))
    }

    fn grant(&mut self, request: &ClaimRequest, owner: Arc<WriterHandle>) -> Claim {
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
        self.changed.insert(request.id);
        self.durability = Durability::Disk;
        let since = self.shared.store_clock.clock.now();
        self.shared
            .in_flight
            .begin(InFlightExecution::new(token, since));
        Claim::Won(Permit::new(token, owner))
    }

    /// Records the completion of an execution. The disk can hold its claim, an unknown record (if the claim was
    /// resolved while the store failed), or the completion itself (if a failed batch reached the disk).
    fn complete(&mut self, end: ClaimEnd) {
        let token = end.token;
        let id = token.request.id;
        let replaced = match self.stored_end(&token) {
            Ok(replaced) => replaced,
            Err(reason) => {
                let now = self.shared.store_clock.clock.now();
                self.shared.in_flight.lose(&token, now);
                send_reply(end.ack, Err(reason));
                return;
            }
        };
        if let Some((record, weight)) = replaced {
            let expires = record.expires;
            if record.state != RecordState::Unknown {
                // A failed batch has written this completion. The files were synced when the store was reopened.
                let outcome = record.into_outcome();
                let end = ClaimEnd { outcome, ..end };
                self.replies.ended.push(PendingEnd { end, expires });
                return;
            }
            self.totals.remove(RecordState::Unknown, weight);
            self.clients.remove(record.client);
            self.clients.add(token.request.client);
            // `self.end` overwrites the record, and its index entry if both expire at the same time.
            if expires != self.now.after(token.request.settings.ttl) {
                self.changes.remove_expiry(ExpiryKey { expires, id });
            }
        }
        if let ExecutionOutcome::Completed(response) = &end.outcome {
            self.bytes += response.weight();
        }
        self.end(end, Durability::Disk);
    }

    /// Returns the record of an execution and its size, or `None` if the claim is still stored. Fails if neither is
    /// stored.
    fn stored_end(&self, token: &ClaimToken) -> Result<Option<(DiskRecord, u64)>, StoreError> {
        let id = token.request.id;
        if self.engine.is_claimed(id)? {
            return Ok(None);
        }
        match self.engine.record(id)? {
            Some(stored) if stored.0.fingerprint == token.request.fingerprint => Ok(Some(stored)),
            _ => Err(StoreError::new("the claim of the execution is not stored")),
        }
    }

    /// Replaces a claim with the record of its outcome, or removes the claim if it was released.
    fn end(&mut self, end: ClaimEnd, durability: Durability) {
        let request = end.token.request;
        let expires = self.now.after(request.settings.ttl);
        self.changes.remove_claim(request.id);
        if let Some((state, response)) = end.outcome.record() {
            let record = DiskRecord {
                state,
                response: response.map(Arc::clone),
                fingerprint: request.fingerprint,
                client: request.client,
                since: self.now,
                expires,
            };
            let weight = self.changes.put_record(request.id, &record);
            self.totals.add(state, weight);
        } else {
            self.subtract_key(request.id.scope, request.client);
        }
        self.changed.insert(request.id);
        self.durability = self.durability.max(durability);
        self.replies.ended.push(PendingEnd { end, expires });
    }

    fn free(&mut self, id: RecordId) -> Result<bool, StoreError> {
        match self.engine.record(id)? {
            Some((record, weight))
                if record.state == RecordState::Unknown && record.expires > self.now =>
            {
                self.remove(id, record.expires, RecordState::Unknown, weight);
                self.subtract_key(id.scope, record.client);
                self.durability = Durability::Disk;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn remove(&mut self, id: RecordId, expires: Timestamp, state: RecordState, weight: u64) {
        self.changes.remove_record(ExpiryKey { expires, id });
        self.totals.remove(state, weight);
        self.changed.insert(id);
        self.durability = self.durability.max(Durability::System);
    }

    /// Subtracts one key from the counts of the store, the scope and the client.
    fn subtract_key(&mut self, scope: ScopeHash, client: ClientHash) {
        self.totals.keys = self.totals.keys.saturating_sub(1);
        self.clients.remove(client);
        // If the count cannot be read, it stays one too high, and the scope is full one key early.
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

    /// Returns whether the store has a record that has expired and was not dropped.
    fn has_expired(&self) -> bool {
        let next = self.engine.expiries(self.swept).next();
        matches!(next, Some(Ok((key, _))) if key.expires <= self.now)
    }

    /// Commits all changes with the highest durability that any of them requires.
    pub(super) fn commit(mut self) -> BatchResult {
        if self.changed.is_empty() {
            return BatchResult {
                outcome: Ok(self.totals),
                replies: self.replies,
            };
        }
        for (&scope, &keys) in &self.scopes {
            self.changes.put_scope(scope, keys);
        }
        if !self.admission.is_unlimited() {
            // After a failure, only an execution that is recorded on disk lifts the restriction of claims.
            self.durability = Durability::Disk;
        }
        if self.durability == Durability::Disk {
            self.totals.batches += 1;
        }
        let store_clock = &self.shared.store_clock;
        BatchResult {
            outcome: self
                .changes
                .commit(self.totals, store_clock, self.durability),
            replies: self.replies,
        }
    }
}
