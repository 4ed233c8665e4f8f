//! Idempotency records in memory: a table of all keys, and a moka cache that owns the responses.
//!
//! The table needs a few dozen bytes per key and is bounded by `max_keys`, the cache by `max_bytes`. When a response is
//! evicted, its record becomes a tombstone, because evicting the key could lead to a second execution. A replay does
//! not call the cache: that costs time, and would change the order of eviction from oldest to least recently used.
//!
//! All records of a scope are in one shard, so its keys are counted under one lock. moka is never called while a shard
//! is locked: any call can evict, and an eviction locks a shard. The expiry of moka is not used, because it takes
//! effect only at the next call of the cache.

mod counts;
mod responses;
mod shard;

use std::future::{Future, ready};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use self::counts::KeyCounts;
use self::responses::Responses;
use self::shard::{ClaimNumbers, EndedRecord, RecordShard};
use crate::clock::{Clock, Moment};
use crate::idempotency::claim::ClaimDecision;
use crate::idempotency::{
    Claim, ClaimRejection, ClaimRequest, ClaimToken, ClientHash, ExecutionOutcome,
    InFlightExecution, KeyHash, OnAbandon, Permit, RecordCounts, RecordId, RecordInfo, Records,
    ScopeHash, StoreError, StoredResponse,
};
use crate::request::hash_keys::BuildIdentityHasher;
use crate::store::capacity::{Full, StoreCapacity};
use crate::store::capacity_use::{Bound, CapacityUse, ForgottenKeys, UseSamples};

/// Maximum in bytes, besides the responses. `tests/key_memory_use.rs` measures up to 573 bytes with 1,000,000 keys,
/// each of its own client and scope, and responses of 50 bytes. Of responses with 0 to 2,000 bytes, these take the
/// most.
pub const BYTES_PER_KEY: u64 = 600;

const SHARDS: usize = 64;

/// More than one, so that the table shrinks while it is used.
const DROPPED_PER_CLAIM: usize = 2;

/// Expired records that are dropped each time a shard is locked.
const MAX_DROPPED_PER_LOCK: usize = 1_024;

/// Clones share the store.
#[derive(Clone, Debug)]
pub struct MemoryRecords(Arc<RecordTable>);

struct RecordTable {
    shards: Box<[Mutex<RecordShard>]>,
    counts: KeyCounts,
    responses: Responses,
    clock: Clock,
    next_number: AtomicU64,
    forgotten: ForgottenKeys,
    use_samples: UseSamples,
}

#[derive(Default)]
struct Swept {
    /// Whether expired records were dropped.
    any: bool,
    /// When the oldest completed record or tombstone can be forgotten, and its shard.
    oldest: Option<(Moment, usize)>,
    next_expiry: Option<Moment>,
}

impl MemoryRecords {
    /// Creates an empty store.
    pub fn new(capacity: StoreCapacity, clock: Clock) -> Self {
        Self(Arc::new_cyclic(|table: &Weak<RecordTable>| {
            let table = Weak::clone(table);
            let evicted = move |id, number| {
                if let Some(table) = table.upgrade() {
                    table.evicted(id, number);
                }
            };
            RecordTable {
                shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
                counts: KeyCounts::new(capacity),
                responses: Responses::new(&capacity, evicted),
                clock,
                next_number: AtomicU64::new(0),
                forgotten: ForgottenKeys::default(),
                use_samples: UseSamples::new(Bound::MaxKeys),
            }
        }))
    }

    /// [`Records::claim`] without waiting.
    pub fn claim_now(&self, request: &ClaimRequest) -> Claim {
        let (table, now) = (&self.0, request.at);
        // It counts until the new key takes its place.
        let mut forgotten = None;
        let claim = loop {
            let full = match table.try_claim(request, &mut forgotten) {
                Ok(claim) => break claim,
                Err(full) => full,
            };
            // The counts can include expired records of other shards too.
            let swept = table.sweep(now);
            if swept.any {
                continue;
            }
            if let Some((forgettable, shard)) = swept.oldest
                && forgettable <= now
            {
                forgotten = table.forget_oldest(shard, now);
                continue;
            }
            let Full::Client(limit) = full else {
                break Claim::Rejected(ClaimRejection::StoreFull);
            };
            let forgettable = swept.oldest.map(|(forgettable, _)| forgettable);
            let next = swept.next_expiry.into_iter().chain(forgettable).min();
            let min_wait = next.map_or(Duration::ZERO, |next| next.since(now));
            break Claim::Rejected(ClaimRejection::ClientFull { limit, min_wait });
        };
        table.counts.remove(forgotten.as_slice());
        if matches!(claim, Claim::Won(_)) && table.use_samples.is_due(since_start(now)) {
            table.capacity_use(now);
        }
        claim
    }

    pub(crate) fn capacity_use(&self) -> CapacityUse {
        self.0.capacity_use(self.0.clock.now())
    }
}

impl RecordTable {
    /// If need be in place of the key of `forgotten`. Fails if the client or the store has too many keys; the caller
    /// then searches all shards for keys to drop.
    fn try_claim(
        self: &Arc<Self>,
        request: &ClaimRequest,
        forgotten: &mut Option<ClientHash>,
    ) -> Result<Claim, Full> {
        let (table, now) = (self, request.at);
        let mut shard = table.shard(request.id.scope);
        let mut dropped = shard.drop_expired(now, DROPPED_PER_CLAIM);
        table.counts.remove(&dropped.clients);
        let claim = loop {
            match shard.decide(request, now) {
                Some(ClaimDecision::InFlight(execution)) => {
                    break Ok(Claim::InFlight(execution.join()));
                }
                Some(ClaimDecision::Replay(response)) => break Ok(Claim::Replay(response)),
                Some(ClaimDecision::Rejected(rejection)) => break Ok(Claim::Rejected(rejection)),
                Some(ClaimDecision::Available) => {
                    break Ok(table.grant(&mut shard, request, &mut dropped.numbers));
                }
                None => {}
            }
            let keys = shard.keys_of(request.id.scope);
            let full = if request.settings.is_scope_full(keys) {
                let next = shard.ended.next_expiry();
                let min_wait = next.map_or(Duration::ZERO, |next| next.since(now));
                Ok(Claim::Rejected(ClaimRejection::ScopeFull { min_wait }))
            } else {
                let counted = match forgotten.take() {
                    Some(client) => {
                        table.counts.transfer(client, request.client);
                        Ok(())
                    }
                    None => table.counts.add(request.client),
                };
                match counted {
                    Ok(()) => break Ok(table.grant(&mut shard, request, &mut dropped.numbers)),
                    Err(full) => Err(full),
                }
            };
            // The counts can include expired records of this shard.
            let more = shard.drop_expired(now, MAX_DROPPED_PER_LOCK);
            if more.clients.is_empty() {
                break full;
            }
            table.counts.remove(&more.clients);
            dropped.numbers.extend(more.numbers);
        };
        drop(shard);
        table.responses.remove(dropped.numbers);
        claim
    }

    fn shard(&self, scope: ScopeHash) -> MutexGuard<'_, RecordShard> {
        // The hash maps in the shards use the lower bits.
        let hash = BuildIdentityHasher.hash_one(scope) >> 32;
        let index =
            usize::try_from(hash % SHARDS as u64).expect("the index of a shard fits into a usize");
        self.shards[index].lock()
    }

    /// If the claim replaces no record, the caller has already counted the key.
    fn grant(
        self: &Arc<Self>,
        shard: &mut RecordShard,
        request: &ClaimRequest,
        dropped: &mut ClaimNumbers,
    ) -> Claim {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let token = ClaimToken {
            request: *request,
            number,
        };
        if let Some(replaced) = shard.begin(InFlightExecution::new(token, request.at)) {
            dropped.push(replaced.number);
            self.counts.transfer(replaced.client, request.client);
        }
        let on_abandon: Arc<dyn OnAbandon> = Arc::<Self>::clone(self);
        Claim::Won(Permit::new(token, on_abandon))
    }

    fn end(&self, token: &ClaimToken, outcome: ExecutionOutcome) {
        let Some((state, response)) = outcome.record() else {
            self.release(token, outcome);
            return;
        };
        let response = response.map(Arc::clone);
        let now = self.clock.now();
        let ended = EndedRecord {
            state,
            number: token.number,
            fingerprint: token.request.fingerprint,
            client: token.request.client,
            since: now,
            expires: now.after(token.request.settings.ttl),
            response: response.as_ref().map(Arc::downgrade).unwrap_or_default(),
        };
        let execution = self
            .shard(token.request.id.scope)
            .end_with_record(token, ended);
        if let Some(execution) = execution {
            execution.end(outcome);
        }
        if let Some(response) = response {
            // The record is stored first, because the insertion can evict the response immediately, which turns the
            // record into a tombstone.
            self.responses
                .insert(token.number, token.request.id, response);
        }
    }

    fn release(&self, token: &ClaimToken, outcome: ExecutionOutcome) {
        let execution = self.shard(token.request.id.scope).release(token);
        if let Some(execution) = execution {
            self.counts.remove(&[token.request.client]);
            execution.end(outcome);
        }
    }

    /// Drops expired records of every shard, and finds the oldest record.
    fn sweep(&self, now: Moment) -> Swept {
        let min_ttl = self.counts.capacity().min_ttl;
        let mut swept = Swept::default();
        for (index, shard) in self.shards.iter().enumerate() {
            let mut shard = shard.lock();
            let dropped = shard.drop_expired(now, MAX_DROPPED_PER_LOCK);
            let oldest = shard.ended.next_forgettable(min_ttl);
            let oldest = oldest.map(|forgettable| (forgettable, index));
            swept.oldest = swept.oldest.into_iter().chain(oldest).min();
            let expiry = shard.ended.next_expiry();
            swept.next_expiry = swept.next_expiry.into_iter().chain(expiry).min();
            drop(shard);
            self.counts.remove(&dropped.clients);
            swept.any |= !dropped.clients.is_empty();
            self.responses.remove(dropped.numbers);
        }
        swept
    }

    /// Forgets the oldest completed record or tombstone of a shard, if it is older than `min_ttl`. The count of the
    /// returned client still includes it.
    fn forget_oldest(&self, shard: usize, now: Moment) -> Option<ClientHash> {
        let min_ttl = self.counts.capacity().min_ttl;
        let forgotten = self.shards[shard].lock().forget_oldest(now, min_ttl)?;
        self.responses.remove([forgotten.number]);
        self.forgotten
            .add(since_start(now), now.since(forgotten.since));
        Some(forgotten.client)
    }

    fn capacity_use(&self, now: Moment) -> CapacityUse {
        let max_keys = self.counts.capacity().max_keys as u64;
        self.use_samples
            .add(since_start(now), self.counts.keys(), max_keys)
    }

    fn evicted(&self, id: RecordId, number: u64) {
        self.shard(id.scope).make_tombstone(id, number);
        self.responses.count_eviction(since_start(self.clock.now()));
    }
}

fn since_start(moment: Moment) -> Duration {
    Duration::from_nanos(moment.as_nanos())
}

impl Records for MemoryRecords {
    fn claim(
        &self,
        request: &ClaimRequest,
    ) -> impl Future<Output = Result<Claim, StoreError>> + Send {
        ready(Ok(self.claim_now(request)))
    }

    fn end(
        &self,
        permit: Permit,
        outcome: ExecutionOutcome,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        self.0.end(&permit.into_token(), outcome);
        ready(Ok(()))
    }

    fn find(
        &self,
        key: KeyHash,
        scope: Option<ScopeHash>,
        most: usize,
    ) -> impl Future<Output = Result<Vec<RecordInfo>, StoreError>> + Send {
        let now = self.0.clock.now();
        let found = if let Some(scope) = scope {
            let shard = self.0.shard(scope);
            let found = shard.get(RecordId { key, scope }, now);
            found.into_iter().take(most).collect()
        } else {
            let shards = self.0.shards.iter();
            let found = shards.flat_map(|shard| shard.lock().find(key, now));
            found.take(most).collect()
        };
        ready(Ok(found))
    }

    fn response(
        &self,
        id: RecordId,
    ) -> impl Future<Output = Result<Option<Arc<StoredResponse>>, StoreError>> + Send {
        let response = self.0.shard(id.scope).response(id, self.0.clock.now());
        ready(Ok(response))
    }

    fn free_unknown(&self, id: RecordId) -> impl Future<Output = Result<bool, StoreError>> + Send {
        let freed = self.0.shard(id.scope).free_unknown(id);
        self.0.counts.remove(freed.as_slice());
        ready(Ok(freed.is_some()))
    }

    fn is_in_memory(&self) -> bool {
        true
    }

    fn counts(&self) -> RecordCounts {
        let now = self.0.clock.now();
        while self.0.sweep(now).any {}
        let mut counts = RecordCounts {
            forgotten: self.0.forgotten.count(),
            ..RecordCounts::default()
        };
        self.0.responses.count_into(&mut counts);
        let mut longest_ttl = None;
        for shard in &self.0.shards {
            let mut shard = shard.lock();
            shard.count_into(&mut counts);
            longest_ttl = longest_ttl.max(shard.ended.longest_ttl());
            let unknown = shard.oldest_unknown().map(|since| now.since(since));
            counts.oldest_unknown = counts.oldest_unknown.max(unknown);
        }
        counts.effective_ttl = (self.0.forgotten).effective_ttl(since_start(now), longest_ttl);
        counts
    }
}

impl OnAbandon for RecordTable {
    fn abandoned(&self, token: ClaimToken, outcome: ExecutionOutcome) {
        self.end(&token, outcome);
    }
}

impl std::fmt::Debug for RecordTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordTable")
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}
