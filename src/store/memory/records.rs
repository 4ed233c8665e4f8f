//! Idempotency records in memory: a table of all idempotency keys, and a moka cache that owns the responses.
//!
//! The table needs a few dozen bytes per key and is bounded by `max_keys`. The cache is bounded by `max_bytes`, the
//! total size of the responses, and evicts the oldest responses. The table has only weak references to responses. When
//! a response is evicted, its completed record becomes a tombstone, which is a record without a response. Keys and
//! responses are separate, because evicting a key with its response could lead to a second execution. A replay does not
//! call the cache. A call costs time, and it would change the order of eviction from oldest to least recently used.
//!
//! All records of a scope are in one shard of the table, so the keys of a scope are counted while its shard is locked.
//! moka is never called while a shard is locked: any call can evict, and an eviction locks a shard. The expiry of moka
//! is not used, because it takes effect only at the next call of the cache. Records must expire on time.

mod counts;
mod shard;

use std::future::{Future, ready};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use moka::notification::RemovalCause;
use moka::sync::Cache;
use parking_lot::{Mutex, MutexGuard};

use self::counts::KeyCounts;
use self::shard::{ClaimNumbers, EndedRecord, RecordShard};
use super::hashers::BuildFibonacciHasher;
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
use crate::store::log_evictions;

/// Maximum memory of an idempotency key in bytes, besides the responses in `max_bytes`. `tests/key_memory_use.rs`
/// measures up to 573 bytes with 1,000,000 keys, each of its own client and scope, and responses of 50 bytes. Of responses
/// with 0 to 2,000 bytes, these take the most memory.
pub const BYTES_PER_KEY: u64 = 600;

/// Number of shards of the record table.
const SHARDS: usize = 64;

/// Approximate memory of an entry in the response cache besides its response, in bytes.
const CACHE_OVERHEAD: usize = 160;

/// When a response of at least this size in bytes is inserted, the cache evicts immediately. After smaller responses,
/// moka evicts only once in some dozens of insertions.
const LARGE_RESPONSE: usize = 64 << 10;

/// Typical size of a response with its headers, in bytes. Used to estimate the number of cache entries.
const USUAL_RESPONSE: u64 = 1 << 10;

/// Maximum number of cache slots that are allocated in advance.
const MAX_PREALLOCATED: usize = 1 << 16;

/// Number of expired records that each claim drops. It is more than one, so that the table shrinks while it is used.
const DROPPED_PER_CLAIM: usize = 2;

/// Maximum number of expired records that are dropped each time a shard is locked.
const MAX_DROPPED_PER_LOCK: usize = 1_024;

/// Minimum time between two log messages about evicted responses.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// The memory store of idempotency records. Clones share the store.
#[derive(Clone, Debug)]
pub struct MemoryRecords(Arc<RecordTable>);

/// The shards of the record table, with the cache of responses.
struct RecordTable {
    shards: Box<[Mutex<RecordShard>]>,
    counts: KeyCounts,
    /// Responses of completed records. The cache key is the number of the claim.
    responses: Cache<u64, CachedResponse, BuildFibonacciHasher>,
    clock: Clock,
    /// Number of the next claim.
    next_number: AtomicU64,
    /// Number of responses that were evicted since the store was created.
    evictions: AtomicU64,
    /// Time at which evictions were last logged, in nanoseconds plus 1. It is 0 if they were never logged.
    evictions_logged: AtomicU64,
    forgotten: ForgottenKeys,
    use_samples: UseSamples,
}

/// Result of a search for expired and old records in all shards.
#[derive(Default)]
struct Swept {
    /// Whether expired records were dropped.
    any: bool,
    /// When the oldest completed record or tombstone can be forgotten, and the index of its shard.
    oldest: Option<(Moment, usize)>,
    next_expiry: Option<Moment>,
}

#[derive(Clone)]
struct CachedResponse {
    id: RecordId,
    response: Arc<StoredResponse>,
}

/// Returns the number of cache slots to allocate in advance. An unused slot costs no memory, because its page is not
/// touched. Preallocated slots need not be moved when the cache grows.
fn expected_responses(capacity: &StoreCapacity) -> usize {
    let responses = usize::try_from(capacity.max_bytes / USUAL_RESPONSE).unwrap_or(usize::MAX);
    responses.min(capacity.max_keys).min(MAX_PREALLOCATED)
}

impl MemoryRecords {
    /// Creates an empty store.
    pub fn new(capacity: StoreCapacity, clock: Clock) -> Self {
        Self(Arc::new_cyclic(|table: &Weak<RecordTable>| {
            let table = Weak::clone(table);
            let evicted = move |number: Arc<u64>, stored: CachedResponse, cause| {
                if cause == RemovalCause::Size
                    && let Some(table) = table.upgrade()
                {
                    table.evicted(stored.id, *number);
                }
            };
            RecordTable {
                shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
                counts: KeyCounts::new(capacity),
                responses: Cache::builder()
                    .max_capacity(capacity.max_bytes)
                    .initial_capacity(expected_responses(&capacity))
                    .weigher(|_, stored: &CachedResponse| {
                        let weight = stored.response.weight() + CACHE_OVERHEAD;
                        u32::try_from(weight).unwrap_or(u32::MAX)
                    })
                    // LRU is used, because the default policy of moka can discard a new response instead of storing it.
                    .eviction_policy(moka::policy::EvictionPolicy::lru())
                    .eviction_listener(evicted)
                    .build_with_hasher(BuildFibonacciHasher),
                clock,
                next_number: AtomicU64::new(0),
                evictions: AtomicU64::new(0),
                evictions_logged: AtomicU64::new(0),
                forgotten: ForgottenKeys::default(),
                use_samples: UseSamples::new(Bound::MaxKeys),
            }
        }))
    }

    /// Claims an idempotency key without waiting. See [`Records::claim`].
    pub fn claim_now(&self, request: &ClaimRequest) -> Claim {
        let (table, now) = (&self.0, request.at);
        // Client of a key that was forgotten for this claim. It counts until the new key takes its place.
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

    /// Returns the use of `max_keys`.
    pub(crate) fn capacity_use(&self) -> CapacityUse {
        self.0.capacity_use(self.0.clock.now())
    }
}

impl RecordTable {
    /// Claims an idempotency key, if need be in place of the key of the client `forgotten`. Fails if the client or the
    /// store has too many keys. The caller then searches all shards for keys to drop.
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
            // The counts can include expired records of this shard. If any are dropped, the claim is tried again.
            let more = shard.drop_expired(now, MAX_DROPPED_PER_LOCK);
            if more.clients.is_empty() {
                break full;
            }
            table.counts.remove(&more.clients);
            dropped.numbers.extend(more.numbers);
        };
        drop(shard);
        table.remove_responses(dropped.numbers);
        claim
    }

    fn shard(&self, scope: ScopeHash) -> MutexGuard<'_, RecordShard> {
        // The index uses the upper bits of the hash, because the hash maps in the shards use the lower ones.
        let hash = BuildIdentityHasher.hash_one(scope) >> 32;
        let index =
            usize::try_from(hash % SHARDS as u64).expect("the index of a shard fits into a usize");
        self.shards[index].lock()
    }

    /// Stores a claim. If it replaces a record, the idempotency key is moved from the key count of the old client to
    /// that of the new one. If it replaces none, the caller has already counted the key.
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

    /// Ends a claim, and passes the outcome to the duplicate requests that wait for it.
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
            // The record is stored before its response is inserted, because the insertion can evict the response
            // immediately. The eviction then turns the record into a tombstone.
            let is_large = response.weight() >= LARGE_RESPONSE;
            let id = token.request.id;
            self.responses
                .insert(token.number, CachedResponse { id, response });
            if is_large {
                self.responses.run_pending_tasks();
            }
        }
    }

    /// Ends a claim and stores no record, so that the idempotency key can be claimed again.
    fn release(&self, token: &ClaimToken, outcome: ExecutionOutcome) {
        let execution = self.shard(token.request.id.scope).release(token);
        if let Some(execution) = execution {
            self.counts.remove(&[token.request.client]);
            execution.end(outcome);
        }
    }

    /// Removes the responses of the claims with these numbers from the cache.
    fn remove_responses(&self, expired: impl IntoIterator<Item = u64>) {
        for number in expired {
            self.responses.invalidate(&number);
        }
    }

    /// Drops up to [`MAX_DROPPED_PER_LOCK`] expired records of every shard, and finds the oldest record.
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
            self.remove_responses(dropped.numbers);
        }
        swept
    }

    /// Forgets the oldest completed record or tombstone of a shard, if it is older than `min_ttl`. Returns its client,
    /// whose key count still includes the key.
    fn forget_oldest(&self, shard: usize, now: Moment) -> Option<ClientHash> {
        let min_ttl = self.counts.capacity().min_ttl;
        let forgotten = self.shards[shard].lock().forget_oldest(now, min_ttl)?;
        self.remove_responses([forgotten.number]);
        self.forgotten
            .add(since_start(now), now.since(forgotten.since));
        Some(forgotten.client)
    }

    fn capacity_use(&self, now: Moment) -> CapacityUse {
        let max_keys = self.counts.capacity().max_keys as u64;
        self.use_samples
            .add(since_start(now), self.counts.keys(), max_keys)
    }

    /// Turns the completed record of claim `number` into a tombstone, because its response was evicted.
    fn evicted(&self, id: RecordId, number: u64) {
        self.shard(id.scope).make_tombstone(id, number);
        let evictions = self.evictions.fetch_add(1, Ordering::Relaxed) + 1;
        if is_due(&self.evictions_logged, self.clock.now(), LOG_INTERVAL) {
            log_evictions(evictions);
        }
    }
}

fn since_start(moment: Moment) -> Duration {
    Duration::from_nanos(moment.as_nanos())
}

/// Returns whether `interval` has passed since the time in `last`. If it has passed, stores `now` in `last`.
fn is_due(last: &AtomicU64, now: Moment, interval: Duration) -> bool {
    // Times are stored plus 1, because 0 means that no time is stored yet.
    let now = now.as_nanos().saturating_add(1);
    let interval = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
    last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
        (last == 0 || now.saturating_sub(last) >= interval).then_some(now)
    })
    .is_ok()
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

    fn claims_at_once(&self) -> bool {
        true
    }

    fn copies_replays(&self) -> bool {
        false
    }

    fn counts(&self) -> RecordCounts {
        let now = self.0.clock.now();
        while self.0.sweep(now).any {}
        self.0.responses.run_pending_tasks();
        let mut counts = RecordCounts {
            bytes: self.0.responses.weighted_size(),
            evictions: self.0.evictions.load(Ordering::Relaxed),
            forgotten: self.0.forgotten.count(),
            ..RecordCounts::default()
        };
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
