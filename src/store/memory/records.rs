//! Records in memory: a table of all keys, and a moka cache that owns the responses.
//!
//! The table holds a few dozen bytes per key and is bounded by `max_keys`. The cache weighs responses by their bytes
//! and evicts the oldest. The table has weak references to them, so a completed record whose response was evicted is a
//! tombstone. With keys and responses in one cache, an eviction could lead to a second execution. Replays do not call
//! the cache: that would cost more, and evict by last use.
//!
//! A shard of the table holds whole scopes, so that the keys of a scope are counted under the lock that is held anyway.
//! moka is never called under that lock, because any call may evict, and an eviction locks a shard. moka's expiry is
//! not used: it takes effect only when the cache is called, and records have to expire on time.

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
use self::shard::{ClaimNumbers, Ended, Shard};
use super::hashers::{BuildFibonacciHasher, BuildIdentityHasher};
use crate::clock::{Clock, Moment};
use crate::idempotency::claim::Availability;
use crate::idempotency::{
    Claim, ClaimRequest, ClaimToken, ExecutionOutcome, InFlightExecution, KeyHash, OnAbandon,
    Permit, RecordCounts, RecordId, RecordInfo, Records, ScopeHash, StoreError, StoredResponse,
};
use crate::store::capacity::{Full, StoreCapacity};
use crate::store::log_evictions;

/// Number of shards of the table.
const SHARDS: usize = 64;

/// Approximate memory of a cache entry besides its response, in bytes.
const CACHE_OVERHEAD: usize = 160;

/// From this weight on, a response makes the cache evict at once instead of after some dozens of insertions.
const HEAVY: usize = 64 << 10;

/// Usual size of a response with its headers, in bytes.
const USUAL_RESPONSE: u64 = 1 << 10;

/// Upper bound of the slots allocated at once.
const MOST_EXPECTED: usize = 1 << 16;

/// Expired records that each claim drops, so that the table shrinks while it is used.
const DROPPED_PER_BID: usize = 2;

/// Upper bound of the expired records that are dropped under one lock.
const DROPPED_AT_ONCE: usize = 1_024;

/// Minimum time between two log messages about evictions.
const LOG_EVERY: Duration = Duration::from_mins(1);

/// The records of a gateway, in memory.
#[derive(Clone, Debug)]
pub struct MemoryRecords(Arc<Ledger>);

struct Ledger {
    shards: Box<[Mutex<Shard>]>,
    counts: KeyCounts,
    /// Responses by the number of their claim.
    responses: Cache<u64, CachedResponse, BuildFibonacciHasher>,
    clock: Clock,
    numbers: AtomicU64,
    evictions: AtomicU64,
    logged: AtomicU64,
}

#[derive(Clone)]
struct CachedResponse {
    id: RecordId,
    response: Arc<StoredResponse>,
}

/// Returns for how many responses the cache allocates slots at once. A slot costs memory only when it is filled, and
/// slots allocated at once are not moved when the cache grows.
fn expected_responses(capacity: &StoreCapacity) -> usize {
    let responses = usize::try_from(capacity.max_bytes / USUAL_RESPONSE).unwrap_or(usize::MAX);
    responses.min(capacity.max_keys).min(MOST_EXPECTED)
}

impl MemoryRecords {
    /// Creates an empty store with this capacity.
    pub fn new(capacity: StoreCapacity, clock: Clock) -> Self {
        Self(Arc::new_cyclic(|ledger: &Weak<Ledger>| {
            let ledger = Weak::clone(ledger);
            let evicted = move |number: Arc<u64>, stored: CachedResponse, cause| {
                if cause == RemovalCause::Size
                    && let Some(ledger) = ledger.upgrade()
                {
                    ledger.evicted(stored.id, *number);
                }
            };
            Ledger {
                shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
                counts: KeyCounts::new(capacity),
                responses: Cache::builder()
                    .max_capacity(capacity.max_bytes)
                    .initial_capacity(expected_responses(&capacity))
                    .weigher(|_, stored: &CachedResponse| {
                        let weight = stored.response.weight() + CACHE_OVERHEAD;
                        u32::try_from(weight).unwrap_or(u32::MAX)
                    })
                    // The default policy would not admit responses that are replayed less often than others.
                    .eviction_policy(moka::policy::EvictionPolicy::lru())
                    .eviction_listener(evicted)
                    .build_with_hasher(BuildFibonacciHasher),
                clock,
                numbers: AtomicU64::new(0),
                evictions: AtomicU64::new(0),
                logged: AtomicU64::new(0),
            }
        }))
    }

    /// Claims a key without waiting; see [`Records::claim`].
    pub fn claim_now(&self, request: &ClaimRequest) -> Claim {
        let (ledger, now) = (&self.0, request.at);
        let mut shard = ledger.shard(request.id.scope);
        let mut dropped = shard.drop_expired(now, DROPPED_PER_BID);
        ledger.counts.remove(&dropped.clients);
        let claim = loop {
            let full = match shard.meet(request, now) {
                Ok(claim) => break claim,
                Err(Availability::Replace) => {
                    break ledger.win(&mut shard, request, &mut dropped.numbers);
                }
                Err(Availability::New)
                    if request
                        .settings
                        .is_scope_full(shard.keys_of(request.id.scope)) =>
                {
                    Claim::ScopeFull {
                        min_wait: shard.next_expiry(now).unwrap_or_default(),
                    }
                }
                Err(Availability::New) => match ledger.counts.add(request.client) {
                    Ok(()) => break ledger.win(&mut shard, request, &mut dropped.numbers),
                    // The time is known when all shards can be locked.
                    Err(Full::Client(limit)) => Claim::ClientFull {
                        limit,
                        min_wait: Duration::ZERO,
                    },
                    Err(Full::Store) => Claim::StoreFull,
                },
            };
            // Expired records can still be counted.
            let more = shard.drop_expired(now, DROPPED_AT_ONCE);
            if more.clients.is_empty() {
                break full;
            }
            ledger.counts.remove(&more.clients);
            dropped.numbers.extend(more.numbers);
        };
        drop(shard);
        ledger.forget(dropped.numbers);
        match claim {
            // Expired records of other shards can be counted, too.
            Claim::StoreFull | Claim::ClientFull { .. } if ledger.sweep(now) => {
                self.claim_now(request)
            }
            Claim::ClientFull { limit, .. } => Claim::ClientFull {
                limit,
                min_wait: ledger.next_expiry(now),
            },
            claim => claim,
        }
    }
}

impl Ledger {
    fn shard(&self, scope: ScopeHash) -> MutexGuard<'_, Shard> {
        // The upper bits, because the maps of the shards use the lower ones.
        let hash = BuildIdentityHasher.hash_one(scope) >> 32;
        let index = usize::try_from(hash % SHARDS as u64).expect("less than a usize");
        self.shards[index].lock()
    }

    /// Stores the claim of a counted key, or of one that takes the place of a record: that key then counts for the
    /// client of `request`.
    fn win(
        self: &Arc<Self>,
        shard: &mut Shard,
        request: &ClaimRequest,
        dropped: &mut ClaimNumbers,
    ) -> Claim {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
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

    /// Ends a claim and passes the outcome to its waiters.
    fn end(&self, token: &ClaimToken, outcome: ExecutionOutcome) {
        let Some((state, response)) = outcome.record() else {
            self.release(token, outcome);
            return;
        };
        let response = response.map(Arc::clone);
        let now = self.clock.now();
        let ended = Ended {
            state,
            number: token.number,
            fingerprint: token.request.fingerprint,
            client: token.request.client,
            since: now,
            expires: now.after(token.request.settings.ttl),
            response: response.as_ref().map(Arc::downgrade).unwrap_or_default(),
        };
        let execution = self.shard(token.request.id.scope).settle(token, ended);
        if let Some(execution) = execution {
            execution.end(outcome);
        }
        if let Some(response) = response {
            // After the record, so that an eviction at once finds the record to change.
            let heavy = response.weight() >= HEAVY;
            let id = token.request.id;
            self.responses
                .insert(token.number, CachedResponse { id, response });
            if heavy {
                self.responses.run_pending_tasks();
            }
        }
    }

    /// Ends a claim without a record, so that its key is free.
    fn release(&self, token: &ClaimToken, outcome: ExecutionOutcome) {
        let execution = self.shard(token.request.id.scope).release(token);
        if let Some(execution) = execution {
            self.counts.remove(&[token.request.client]);
            execution.end(outcome);
        }
    }

    fn forget(&self, expired: impl IntoIterator<Item = u64>) {
        for number in expired {
            self.responses.invalidate(&number);
        }
    }

    /// Drops expired records of every shard, up to [`DROPPED_AT_ONCE`] of each. Returns whether there were any.
    fn sweep(&self, now: Moment) -> bool {
        let mut any = false;
        for shard in &self.shards {
            let dropped = shard.lock().drop_expired(now, DROPPED_AT_ONCE);
            self.counts.remove(&dropped.clients);
            any |= !dropped.clients.is_empty();
            self.forget(dropped.numbers);
        }
        any
    }

    /// Returns how long until the first record of any shard expires.
    fn next_expiry(&self, now: Moment) -> Duration {
        let shards = self.shards.iter();
        let next = shards.filter_map(|shard| shard.lock().next_expiry(now));
        next.min().unwrap_or_default()
    }

    /// Turns a completed record into a tombstone after its response was evicted.
    fn evicted(&self, id: RecordId, number: u64) {
        self.shard(id.scope).entomb(id, number);
        let evictions = self.evictions.fetch_add(1, Ordering::Relaxed) + 1;
        if due(&self.logged, self.clock.now(), LOG_EVERY) {
            log_evictions(evictions);
        }
    }
}

/// Whether `every` has passed since this last returned `true`.
fn due(last: &AtomicU64, now: Moment, every: Duration) -> bool {
    // 0 means never, so times count from 1.
    let now = now.as_nanos().saturating_add(1);
    let every = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX);
    last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
        (last == 0 || now.saturating_sub(last) >= every).then_some(now)
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
            let found = shard.look_at(RecordId { key, scope }, now);
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

    fn copies_replays(&self) -> bool {
        false
    }

    fn counts(&self) -> RecordCounts {
        while self.0.sweep(self.0.clock.now()) {}
        self.0.responses.run_pending_tasks();
        let mut counts = RecordCounts {
            bytes: self.0.responses.weighted_size(),
            evictions: self.0.evictions.load(Ordering::Relaxed),
            ..RecordCounts::default()
        };
        for shard in &self.0.shards {
            shard.lock().count_into(&mut counts);
        }
        counts
    }
}

impl OnAbandon for Ledger {
    fn abandoned(&self, token: ClaimToken, outcome: ExecutionOutcome) {
        self.end(&token, outcome);
    }
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger")
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}
