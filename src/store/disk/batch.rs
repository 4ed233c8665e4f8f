//! A batch of operations that share one sync.
//!
//! The changes of a batch become visible together when it is committed, so a batch never contains two operations on the
//! same record. Replies are sent after the commit, or immediately if the operation changes nothing.

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

pub(super) struct Batch<'a> {
    engine: &'a Engine,
    shared: &'a DiskStoreState,
    owner: &'a Weak<WriterHandle>,
    capacity: StoreCapacity,
    /// The key counts of clients include the changes of this batch, and the queues of ended records lack those that it
    /// removes. If the batch fails, both are read again. The totals are those of the last commit.
    ledger: &'a mut Ledger,
    now: Timestamp,
    changes: Changes<'a>,
    durability: Durability,
    /// Include the changes of this batch.
    totals: StoreTotals,
    /// Number of keys after the batch, of each scope that it changes.
    scopes: HashMap<ScopeHash, u32>,
    stored: Vec<(Timestamp, Duration, bool, ExpiryKey)>,
    forgotten_bytes: u64,
    changed: HashSet<RecordId>,
    /// Of all responses, in bytes.
    bytes: usize,
    replies: PendingReplies,
}

/// The replies now have to be sent.
pub(super) struct BatchResult {
    /// End, TTL, whether the record can be forgotten, key.
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

    /// If the batch already changes the record of `op`, `op` has to wait for the commit.
    pub(super) fn conflicts_with(&self, op: &Op) -> bool {
        match op {
            Op::Claim(ClaimRequest { id, .. }, _) | Op::Free(id, _) => self.changed.contains(id),
            Op::End(end) => self.changed.contains(&end.token.request.id),
            #[cfg(test)]
            Op::Sweep(_) => !self.changed.is_empty(),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns a claim that finds the store full while expired records can be dropped. The caller can then try it
    /// again.
    pub(super) fn add(&mut self, op: Op) -> Option<Op> {
        self.now = self.shared.store_clock.now();
        match op {
            // The caller no longer waits.
            Op::Claim(_, ack) if ack.is_closed() => {}
            Op::Claim(request, ack) => match self.claim(&request) {
                Ok(Claim::Rejected(
                    ClaimRejection::ScopeFull { .. }
                    | ClaimRejection::ClientFull { .. }
                    | ClaimRejection::StoreFull,
                )) if self.has_expired() => return Some(Op::Claim(request, ack)),
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

    /// Usually the disk contains the claim of the execution. If the engine was reopened since the claim, it can contain
    /// a record with an unknown outcome instead; or the completion, if an earlier batch with it failed but reached the
    /// disk.
    fn complete(&mut self, end: ClaimEnd) {
        let token = end.token;
        let id = token.request.id;
        let replaced = match self.engine.stored_end(&token) {
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
                // A failed batch wrote the completion, and the files were synced when the engine was reopened.
                let outcome = record.into_outcome();
                let end = ClaimEnd { outcome, ..end };
                self.replies.ended.push(PendingEnd { end, expires });
                return;
            }
            self.totals.remove(RecordState::Unknown, weight);
            self.ledger.clients.remove(record.client);
            self.ledger.clients.add(token.request.client);
            // `self.end` overwrites the old entry of the expiry index only if both records expire at the same time.
            if expires != self.now.after(token.request.settings.ttl) {
                self.changes.remove_expiry(ExpiryKey { expires, id });
            }
        }
        if let ExecutionOutcome::Completed(response) = &end.outcome {
            self.bytes += response.weight();
        }
        self.end(end, Durability::Disk);
    }

    /// A release removes the claim without a record.
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

    /// Of the store, the scope and the client.
    fn subtract_key(&mut self, scope: ScopeHash, client: ClientHash) {
        self.totals.keys = self.totals.keys.saturating_sub(1);
        self.ledger.clients.remove(client);
        // After a read error, the scope reaches `max_keys_per_scope` one key early.
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

    /// Returns whether it removed a completed record or tombstone older than `min_ttl`.
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

    /// Whether the disk has an expired record that was not dropped yet.
    fn has_expired(&self) -> bool {
        self.ledger
            .ended
            .next_expiry()
            .is_some_and(|next| next <= self.now)
    }

    /// With the highest durability that any change requires. Writes nothing if there are no changes.
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
            // batch is synced meanwhile.
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
