//! A batch of operations on idempotency records that share one sync.
//!
//! The changes of a batch become visible together when the batch is committed. If a batch contained two operations on
//! the same record, the second would not see the change of the first. So a batch never contains two such operations.
//! The reply to an operation is sent after the commit. If an operation changes nothing, its reply is sent immediately.

mod replies;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use self::replies::{PendingEnd, PendingReplies};
use super::engine::{Changes, Durability, Engine, ExpiryKey};
use super::record::{DiskRecord, StoredClaim};
use super::totals::StoreTotals;
use super::writer::{ClaimEnd, Ledger, Op, send_reply};
use super::{DiskStoreState, RecentResponse, Timestamp, WriterHandle, millis};
use crate::idempotency::claim::{ClaimDecision, decide_claim};
use crate::idempotency::{
    Claim, ClaimRejection, ClaimRequest, ClaimToken, ClientHash, ExecutionOutcome,
    InFlightExecution, Permit, RecordId, RecordState, ScopeHash, StoreError,
};
use crate::store::capacity::{Full, StoreCapacity};

/// A batch of the writer thread. It accepts operations until it is committed.
pub(super) struct Batch<'a> {
    engine: &'a Engine,
    shared: &'a DiskStoreState,
    owner: &'a Weak<WriterHandle>,
    capacity: StoreCapacity,
    /// The key counts of clients include the changes of this batch, and the queues of ended records lack those that it
    /// removes. If the batch fails, the writer thread reads both again. The totals are those of the last commit.
    ledger: &'a mut Ledger,
    now: Timestamp,
    changes: Changes<'a>,
    durability: Durability,
    /// Totals including the changes of this batch.
    totals: StoreTotals,
    /// The scopes whose number of idempotency keys this batch changes, each with the number after the batch.
    scopes: HashMap<ScopeHash, u32>,
    stored: Vec<(Timestamp, Duration, bool, ExpiryKey)>,
    forgotten_bytes: u64,
    /// Ids of the records that the batch changes.
    changed: HashSet<RecordId>,
    /// Size of all responses in the batch, in bytes.
    bytes: usize,
    replies: PendingReplies,
}

/// The result of a commit, and the replies that now have to be sent.
pub(super) struct BatchResult {
    /// Records of the batch for the queues of ended records: end, TTL, whether they can be forgotten, key.
    pub(super) stored: Vec<(Timestamp, Duration, bool, ExpiryKey)>,
    pub(super) forgotten_bytes: u64,
    pub(super) outcome: Result<StoreTotals, StoreError>,
    pub(super) replies: PendingReplies,
}

impl<'a> Batch<'a> {
    pub(super) fn new(
        engine: &'a Engine,
        shared: &'a DiskStoreState,
        owner: &'a Weak<WriterHandle>,
        capacity: StoreCapacity,
        ledger: &'a mut Ledger,
    ) -> Self {
        Self {
            engine,
            shared,
            owner,
            capacity,
            totals: ledger.totals,
            ledger,
            now: shared.store_clock.now(),
            changes: engine.changes(),
            durability: Durability::Engine,
            scopes: HashMap::new(),
            stored: Vec::new(),
            forgotten_bytes: 0,
            changed: HashSet::new(),
            bytes: 0,
            replies: PendingReplies::default(),
        }
    }

    /// Returns whether the batch already changes the record of `op`. If it does, `op` has to wait until the batch is
    /// committed.
    pub(super) fn conflicts_with(&self, op: &Op) -> bool {
        match op {
            Op::Claim(ClaimRequest { id, .. }, _) | Op::Free(id, _) => self.changed.contains(id),
            Op::End(end) => self.changed.contains(&end.token.request.id),
            #[cfg(test)]
            Op::Sweep(_) => !self.changed.is_empty(),
        }
    }

    /// Returns the size of all responses in the batch, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds an operation to the batch and returns `None`. But if a claim finds the store full while expired records can
    /// be dropped, returns this claim. The caller can then try it again.
    pub(super) fn add(&mut self, op: Op) -> Option<Op> {
        self.now = self.shared.store_clock.now();
        match op {
            // The claim is skipped, because its caller no longer waits.
            Op::Claim(_, ack) if ack.is_closed() => {}
            Op::Claim(request, ack) => match self.claim(&request) {
                Ok(Claim::Rejected(
                    ClaimRejection::ScopeFull { .. }
                    | ClaimRejection::ClientFull { .. }
                    | ClaimRejection::StoreFull,
                )) if self.has_expired() => return Some(Op::Claim(request, ack)),
                Ok(Claim::Won(permit)) => self.replies.won.push((ack, permit)),
                // The reply does not wait for the commit, because the claim changes nothing. A send error is ignored:
                // the caller no longer waits.
                other => drop(ack.send(other)),
            },
            Op::End(end) if end.outcome.is_executed() => self.complete(end),
            Op::End(end) => self.end(end, Durability::System),
            Op::Free(id, ack) => match self.free(id) {
                Ok(true) => self.replies.freed.push((id, ack)),
                other => drop(ack.send(other)),
            },
            #[cfg(test)]
            Op::Sweep(ack) if self.has_expired() => return Some(Op::Sweep(ack)),
            #[cfg(test)]
            Op::Sweep(ack) => drop(ack.send(Ok(()))),
        }
        None
    }

    fn claim(&mut self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        if let Some(claim) = self.shared.in_flight.check(request) {
            return Ok(claim);
        }
        let replaced = self.engine.record(request.id)?;
        if let Some((record, _)) = &replaced {
            match decide_claim(record.view(), request, self.now) {
                ClaimDecision::Available => {}
                ClaimDecision::Replay(response) => {
                    let recent = RecentResponse {
                        fingerprint: record.fingerprint,
                        expires: record.expires,
                        response: Arc::clone(response),
                    };
                    self.shared.recent.insert(request.id, recent);
                    return Ok(Claim::Replay(Arc::clone(response)));
                }
                ClaimDecision::Rejected(rejection) => return Ok(Claim::Rejected(rejection)),
            }
        }
        let Some(owner) = self.owner.upgrade() else {
            return Err(StoreError::new("the idempotency store is being closed"));
        };
        if let Some((record, weight)) = replaced {
            self.ledger.admission.admit(Instant::now())?;
            self.remove(request.id, record.expires, record.state, weight);
            self.ledger.clients.remove(record.client);
            self.ledger.clients.add(request.client);
            return Ok(self.grant(request, owner));
        }
        let keys = self.keys_of(request.id.scope)?;
        if request.settings.is_scope_full(keys) {
            let next = self.ledger.ended.next_expiry();
            let min_wait = next.map_or(Duration::ZERO, |next| next.since(self.now));
            return Ok(Claim::Rejected(ClaimRejection::ScopeFull { min_wait }));
        }
        let held = self.ledger.clients.held(request.client);
        let full = self.capacity.admit(self.totals.keys, held).err();
        if let Some(full) = full
            && (self.has_expired() || !self.can_forget())
        {
            return Ok(Claim::Rejected(self.rejection(full)));
        }
        // A claim that is not admitted forgets no key.
        self.ledger.admission.admit(Instant::now())?;
        if let Some(full) = full
            && !self.forget_oldest()?
        {
            return Ok(Claim::Rejected(self.rejection(full)));
        }
        // The forgotten key can be one of this scope.
        let keys = self.keys_of(request.id.scope)?;
        self.scopes.insert(request.id.scope, keys + 1);
        self.totals.keys += 1;
        self.ledger.clients.add(request.client);
        Ok(self.grant(request, owner))
    }

    fn rejection(&self, full: Full) -> ClaimRejection {
        let Full::Client(limit) = full else {
            return ClaimRejection::StoreFull;
        };
        let forgettable = self.ledger.ended.next_forgettable(self.capacity.min_ttl);
        let next = (self.ledger.ended.next_expiry().into_iter())
            .chain(forgettable)
            .min();
        let min_wait = next.map_or(Duration::ZERO, |next| next.since(self.now));
        ClaimRejection::ClientFull { limit, min_wait }
    }

    fn grant(&mut self, request: &ClaimRequest, owner: Arc<WriterHandle>) -> Claim {
        self.ledger.last_claim += 1;
        let token = ClaimToken {
            request: *request,
            number: self.ledger.last_claim,
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

    /// Records the completion of an execution. The disk usually contains the claim of the execution. If the engine was
    /// reopened since the claim, the disk can contain a record with an unknown outcome instead. If an earlier batch
    /// with the completion failed but reached the disk, the disk already contains the completion.
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
                // The completion is already on disk, so only the reply is sent. A failed batch wrote the completion,
                // and the files of the engine were synced when the engine was reopened.
                let outcome = record.into_outcome();
                let end = ClaimEnd { outcome, ..end };
                self.replies.ended.push(PendingEnd { end, expires });
                return;
            }
            self.totals.remove(RecordState::Unknown, weight);
            self.ledger.clients.remove(record.client);
            self.ledger.clients.add(token.request.client);
            // `self.end` overwrites the old record. It overwrites the old entry of the expiry index only if the old and
            // the new record expire at the same time. Otherwise the old entry is removed here.
            if expires != self.now.after(token.request.settings.ttl) {
                self.changes.remove_expiry(ExpiryKey { expires, id });
            }
        }
        if let ExecutionOutcome::Completed(response) = &end.outcome {
            self.bytes += response.weight();
        }
        self.end(end, Durability::Disk);
    }

    /// Returns the record of an execution and the size of the record in bytes. Returns `None` if the claim of the
    /// execution is still stored. Fails if neither a record nor a claim is stored.
    fn stored_end(&self, token: &ClaimToken) -> Result<Option<(DiskRecord, u64)>, StoreError> {
        let id = token.request.id;
        if self.engine.is_claimed(id)? {
            return Ok(None);
        }
        match self.engine.record(id)? {
            Some(stored) if stored.0.fingerprint == token.request.fingerprint => Ok(Some(stored)),
            _ => Err(StoreError::new(
                "the idempotency store has no claim for this execution",
            )),
        }
    }

    /// Replaces a claim with a record of the outcome. If the outcome is a release, the claim is removed without a
    /// record.
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
            let key = ExpiryKey {
                expires,
                id: request.id,
            };
            let can_forget = state != RecordState::Unknown;
            self.stored
                .push((self.now, request.settings.ttl, can_forget, key));
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

    /// Subtracts one from the number of idempotency keys of the store, the scope and the client.
    fn subtract_key(&mut self, scope: ScopeHash, client: ClientHash) {
        self.totals.keys = self.totals.keys.saturating_sub(1);
        self.ledger.clients.remove(client);
        // A read error is ignored. The number of idempotency keys of the scope then stays one too high, so the scope
        // reaches `max_keys_per_scope` one key early.
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

    /// Removes the oldest completed record or tombstone, if it is older than `min_ttl`. Returns whether it removed one.
    fn forget_oldest(&mut self) -> Result<bool, StoreError> {
        while let Some((since, key)) = self
            .ledger
            .ended
            .pop_oldest(self.now, self.capacity.min_ttl)
        {
            // A record that this batch changes has expired and is already replaced.
            if self.changed.contains(&key.id) {
                continue;
            }
            if let Some(entry) = self.engine.expiry(key)? {
                self.remove(key.id, key.expires, entry.state, entry.weight);
                self.subtract_key(key.id.scope, ClientHash(entry.client));
                self.forgotten_bytes += entry.weight;
                self.shared.recent.invalidate(&key.id);
                let now = Duration::from_millis(self.now.0);
                self.shared.forgotten.add(now, self.now.since(since));
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn can_forget(&self) -> bool {
        let oldest = self.ledger.ended.next_forgettable(self.capacity.min_ttl);
        oldest.is_some_and(|forgettable| forgettable <= self.now)
    }

    /// Returns whether the disk has a record that has expired but was not dropped yet.
    fn has_expired(&self) -> bool {
        self.ledger
            .ended
            .next_expiry()
            .is_some_and(|next| next <= self.now)
    }

    /// Commits all changes with the highest durability that any of them requires. Writes nothing if there are no
    /// changes.
    pub(super) fn commit(mut self) -> BatchResult {
        if self.changed.is_empty() {
            return BatchResult {
                stored: self.stored,
                forgotten_bytes: 0,
                outcome: Ok(self.totals),
                replies: self.replies,
            };
        }
        for (&scope, &keys) in &self.scopes {
            self.changes.put_scope(scope, keys);
        }
        if !self.ledger.admission.is_unlimited() {
            // After a failure of the engine, claims are restricted until a new execution is recorded on disk. Every
            // batch is synced meanwhile, so that each record in it is on disk.
            self.durability = Durability::Disk;
        }
        if self.durability == Durability::Disk {
            self.totals.batches += 1;
        }
        let store_clock = &self.shared.store_clock;
        BatchResult {
            stored: self.stored,
            forgotten_bytes: self.forgotten_bytes,
            outcome: self
                .changes
                .commit(self.totals, store_clock, self.durability),
            replies: self.replies,
        }
    }
}
