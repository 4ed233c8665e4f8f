//! Records in memory: what was promised in a table of our own, the answers in moka.
//!
//! The table is the authority on every key: what is not in it was never promised. It holds a few dozen
//! bytes a key and is bounded by `max_keys`. Answers are large and can be spared, so they belong to a
//! moka cache that weighs them by their bytes and drops the oldest when it is full; the table only knows
//! where they are, and a completed record whose answer is gone is a tombstone. Were answers and promises
//! in one cache, an eviction would be a second execution. The cache is not asked for an answer, which
//! would be dearer and make the order of eviction one of use.
//!
//! A shard of the table holds whole scopes, so that a scope's keys are counted under the lock that is
//! held anyway. moka is never called under that lock: it may evict on any call, and an eviction takes a
//! shard's lock to write the tombstone.
//!
//! moka's own expiry is not used: it takes effect only when the cache is called, and a promise must be
//! kept to the moment.

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

use self::counts::{Full, KeyCounts};
use self::shard::{Met, Settled, Shard, Tokens};
use super::hashers::{BuildFibonacciHasher, BuildIdentityHasher};
use crate::clock::{Clock, Moment};
use crate::idempotency::{
    Answer, Bid, Census, Claim, Desk, Ending, Finding, Flight, Kept, KeyHash, Permit, RecordId,
    Records, ScopeHash, State, StoreError, Ticket,
};
use crate::store::log_evictions;

/// How many shards the table has.
const SHARDS: usize = 64;

/// What an answer takes in the cache besides its own weight, about.
const CACHE_OVERHEAD: usize = 160;

/// From this weight on an answer has the cache make room at once, and not after some dozens of them.
const HEAVY: usize = 64 << 10;

/// What a usual answer takes, headers and all.
const USUAL_ANSWER: u64 = 1 << 10;

/// Most places laid out at once.
const MOST_EXPECTED: usize = 1 << 16;

/// Expired records dropped whenever somebody bids, so that the table shrinks back while it is used.
const DROPPED_PER_BID: usize = 2;

/// Expired records of a shard dropped under one lock at most.
const DROPPED_AT_ONCE: usize = 1_024;

/// How often it is logged that answers are being dropped.
const LOG_EVERY: Duration = Duration::from_mins(1);

/// All records of a gateway, in memory.
#[derive(Clone, Debug)]
pub struct MemoryRecords(Arc<Ledger>);

/// How much there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Keys remembered at once.
    pub max_keys: usize,
    /// Bytes their answers may take.
    pub max_bytes: u64,
}

struct Ledger {
    shards: Box<[Mutex<Shard>]>,
    counts: KeyCounts,
    /// By the token of the claim that led to it, which no other claim ever has.
    answers: Cache<u64, Stored, BuildFibonacciHasher>,
    clock: Clock,
    tokens: AtomicU64,
    evictions: AtomicU64,
    logged: AtomicU64,
}

#[derive(Clone)]
struct Stored {
    id: RecordId,
    answer: Arc<Answer>,
}

impl Room {
    /// How many answers of a usual size there is room for; so many places are laid out at once, which costs
    /// memory only as they are filled, and spares moving them as they become more.
    fn expected_answers(&self) -> usize {
        let answers = usize::try_from(self.max_bytes / USUAL_ANSWER).unwrap_or(usize::MAX);
        answers.min(self.max_keys).min(MOST_EXPECTED)
    }
}

impl Default for Room {
    fn default() -> Self {
        Self {
            max_keys: 1_000_000,
            max_bytes: 256 << 20,
        }
    }
}

impl MemoryRecords {
    /// A store with this much room.
    pub fn new(room: Room, clock: Clock) -> Self {
        Self(Arc::new_cyclic(|ledger: &Weak<Ledger>| {
            let ledger = Weak::clone(ledger);
            let evicted = move |token: Arc<u64>, stored: Stored, cause| {
                if cause == RemovalCause::Size
                    && let Some(ledger) = ledger.upgrade()
                {
                    ledger.evicted(stored.id, *token);
                }
            };
            Ledger {
                shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
                counts: KeyCounts::new(room.max_keys),
                answers: Cache::builder()
                    .max_capacity(room.max_bytes)
                    .initial_capacity(room.expected_answers())
                    .weigher(|_, stored: &Stored| {
                        let weight = stored.answer.weight() + CACHE_OVERHEAD;
                        u32::try_from(weight).unwrap_or(u32::MAX)
                    })
                    // The other policy would turn away answers asked for less often than those there are.
                    .eviction_policy(moka::policy::EvictionPolicy::lru())
                    .eviction_listener(evicted)
                    .build_with_hasher(BuildFibonacciHasher),
                clock,
                tokens: AtomicU64::new(0),
                evictions: AtomicU64::new(0),
                logged: AtomicU64::new(0),
            }
        }))
    }

    /// Decides on a bid; see [`Records::claim`].
    pub fn claim_now(&self, bid: &Bid) -> Claim {
        let (ledger, now) = (&self.0, bid.at);
        let mut shard = ledger.shard(bid.id.scope);
        let mut dropped = shard.drop_expired(now, DROPPED_PER_BID);
        ledger.counts.remove(&dropped.clients);
        let claim = loop {
            let full = match shard.meet(bid, now) {
                Met::Claim(claim) => break claim,
                Met::Free => break ledger.win(&mut shard, bid, &mut dropped.tokens),
                Met::Absent
                    if shard.keys_of(bid.id.scope) >= bid.terms.max_keys_per_scope.get() =>
                {
                    Claim::ScopeFull {
                        no_sooner: shard.next_expiry(now).unwrap_or_default(),
                    }
                }
                Met::Absent => match ledger.counts.add(bid.client) {
                    Ok(()) => break ledger.win(&mut shard, bid, &mut dropped.tokens),
                    // The time is known when all shards can be locked.
                    Err(Full::Client(limit)) => Claim::ClientFull {
                        limit,
                        no_sooner: Duration::ZERO,
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
            dropped.tokens.extend(more.tokens);
        };
        drop(shard);
        ledger.forget(dropped.tokens);
        match claim {
            // Expired records of other shards can be counted, too.
            Claim::StoreFull | Claim::ClientFull { .. } if ledger.sweep(now) => self.claim_now(bid),
            Claim::ClientFull { limit, .. } => Claim::ClientFull {
                limit,
                no_sooner: ledger.next_expiry(now),
            },
            claim => claim,
        }
    }
}

impl Ledger {
    fn shard(&self, scope: ScopeHash) -> MutexGuard<'_, Shard> {
        // The upper bits, as the tables of the shards go by the lower ones.
        let hash = BuildIdentityHasher.hash_one(scope) >> 32;
        let index = usize::try_from(hash % SHARDS as u64).expect("less than a usize");
        self.shards[index].lock()
    }

    /// Stores the claim of a counted key, or of one that takes the place of a record: that key then counts for the
    /// client of `bid`.
    fn win(self: &Arc<Self>, shard: &mut Shard, bid: &Bid, dropped: &mut Tokens) -> Claim {
        let token = self.tokens.fetch_add(1, Ordering::Relaxed);
        let ticket = Ticket { bid: *bid, token };
        if let Some(replaced) = shard.take_off(Flight::new(ticket, bid.at)) {
            dropped.push(replaced.token);
            self.counts.transfer(replaced.client, bid.client);
        }
        let desk: Arc<dyn Desk> = Arc::<Self>::clone(self);
        Claim::Won(Permit::new(ticket, desk))
    }

    /// Ends a claim with a record in this state.
    fn settle(&self, ticket: &Ticket, state: State, ending: Ending) {
        let answer = match &ending {
            Ending::Completed(answer) => Arc::downgrade(answer),
            _ => Weak::new(),
        };
        let now = self.clock.now();
        let settled = Settled {
            state,
            token: ticket.token,
            fingerprint: ticket.bid.fingerprint,
            client: ticket.bid.client,
            since: now,
            expires: now.after(ticket.bid.terms.ttl),
            answer,
        };
        let flight = self.shard(ticket.bid.id.scope).settle(ticket, settled);
        if let Some(flight) = flight {
            flight.land(ending);
        }
    }

    /// Ends a claim without a record, so that its key is free.
    fn release(&self, ticket: &Ticket, answer: Option<Arc<Answer>>) {
        let flight = self.shard(ticket.bid.id.scope).release(ticket);
        if let Some(flight) = flight {
            self.counts.remove(&[ticket.bid.client]);
            flight.land(Ending::Released(answer));
        }
    }

    fn forget(&self, expired: impl IntoIterator<Item = u64>) {
        for token in expired {
            self.answers.invalidate(&token);
        }
    }

    /// Drops expired records of every shard, up to [`DROPPED_AT_ONCE`] of each. Returns whether there were any.
    fn sweep(&self, now: Moment) -> bool {
        let mut any = false;
        for shard in &self.shards {
            let dropped = shard.lock().drop_expired(now, DROPPED_AT_ONCE);
            self.counts.remove(&dropped.clients);
            any |= !dropped.clients.is_empty();
            self.forget(dropped.tokens);
        }
        any
    }

    /// Returns how long until the first record of any shard expires.
    fn next_expiry(&self, now: Moment) -> Duration {
        let shards = self.shards.iter();
        let next = shards.filter_map(|shard| shard.lock().next_expiry(now));
        next.min().unwrap_or_default()
    }

    /// An answer was dropped to make room.
    fn evicted(&self, id: RecordId, token: u64) {
        self.shard(id.scope).entomb(id, token);
        let evictions = self.evictions.fetch_add(1, Ordering::Relaxed) + 1;
        if due(&self.logged, self.clock.now(), LOG_EVERY) {
            log_evictions(evictions);
        }
    }
}

/// Whether `every` has passed since the last time this was so.
fn due(last: &AtomicU64, now: Moment, every: Duration) -> bool {
    // Never is told from the clock's first moment by counting from one.
    let now = now.as_nanos().saturating_add(1);
    let every = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX);
    last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| {
        (last == 0 || now.saturating_sub(last) >= every).then_some(now)
    })
    .is_ok()
}

impl Records for MemoryRecords {
    fn claim(&self, bid: &Bid) -> impl Future<Output = Result<Claim, StoreError>> + Send {
        ready(Ok(self.claim_now(bid)))
    }

    fn complete(
        &self,
        permit: Permit,
        kept: Kept,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        let ticket = permit.redeem();
        match kept {
            Kept::Tombstone => self.0.settle(&ticket, State::Tombstone, Ending::Tombstone),
            Kept::Answer(answer) => {
                let ending = Ending::Completed(Arc::clone(&answer));
                self.0.settle(&ticket, State::Completed, ending);
                // After the record: an answer that is dropped again at once finds one to write it in.
                let heavy = answer.weight() >= HEAVY;
                let id = ticket.bid.id;
                self.0.answers.insert(ticket.token, Stored { id, answer });
                if heavy {
                    self.0.answers.run_pending_tasks();
                }
            }
        }
        ready(Ok(()))
    }

    fn release(
        &self,
        permit: Permit,
        answer: Option<Arc<Answer>>,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        self.0.release(&permit.redeem(), answer);
        ready(Ok(()))
    }

    fn mark_unknown(&self, permit: Permit) -> impl Future<Output = Result<(), StoreError>> + Send {
        let ticket = permit.redeem();
        self.0.settle(&ticket, State::Unknown, Ending::Unknown);
        ready(Ok(()))
    }

    fn find(
        &self,
        key: KeyHash,
        scope: Option<ScopeHash>,
        most: usize,
    ) -> impl Future<Output = Result<Vec<Finding>, StoreError>> + Send {
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
    ) -> impl Future<Output = Result<Option<Arc<Answer>>, StoreError>> + Send {
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

    fn census(&self) -> Census {
        while self.0.sweep(self.0.clock.now()) {}
        self.0.answers.run_pending_tasks();
        let mut census = Census {
            bytes: self.0.answers.weighted_size(),
            evictions: self.0.evictions.load(Ordering::Relaxed),
            ..Census::default()
        };
        for shard in &self.0.shards {
            shard.lock().count_into(&mut census);
        }
        census
    }
}

impl Desk for Ledger {
    fn abandoned(&self, ticket: Ticket, sent: bool) {
        if sent {
            self.settle(&ticket, State::Unknown, Ending::Unknown);
        } else {
            self.release(&ticket, None);
        }
    }
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger")
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}
