//! Buckets of rate limits in memory, in a table that is bounded and divided into shards.
//!
//! *Atomic charges*: a request can charge buckets in several shards. All of them are locked, in ascending order, before
//! the first bucket is read. The clock is read while they are locked, so a later charge never has an earlier time.
//!
//! *Bounded memory*: a shard evicts only full buckets, because a full bucket and an absent one have the same state. If
//! a shard is at its maximum and no bucket is full, the request is charged to one of the [`OVERFLOW_BUCKETS`] shared
//! buckets of the limit, which the keyed hash selects. If the missing bucket is created later, it starts with the state
//! of the shared one.
//!
//! A concurrent map such as dashmap locks one entry at a time. It can neither charge two buckets atomically, nor update
//! the table and the eviction order under one lock.

mod bucket_shard;
mod hashers;
pub(crate) mod records;

use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use std::future::{Future, ready};

use self::bucket_shard::BucketShard;
use crate::clock::{Clock, Moment};
use crate::throttle::decision::{USUAL_LIMITS, full_at_under};
use crate::throttle::{
    BucketKey, BucketState, Buckets, Charge, ChargeOutcome, ChargeResult, Decision, Limit, decide,
};

/// Shared buckets of each rate limit.
pub(crate) const OVERFLOW_BUCKETS: usize = 65_536;

/// Maximum, in bytes, as `tests/memory_use.rs` measures it.
pub(crate) const BYTES_PER_BUCKET: u64 = 110;

/// Small, so that an eviction locks its shard only for a short time.
const BUCKETS_PER_SHARD: usize = 4_096;

/// Buckets of all rate limits of a gateway.
pub struct MemoryBuckets {
    clock: Clock,
    /// Their number is a power of two.
    shards: Box<[Mutex<BucketShard>]>,
    capacity: usize,
}

impl MemoryBuckets {
    /// `max_clients` applies to all rate limits together.
    pub fn new(max_clients: usize, clock: Clock) -> Self {
        let shards = (max_clients / BUCKETS_PER_SHARD)
            .next_power_of_two()
            .clamp(2, 4_096);
        Self {
            clock,
            shards: (0..shards)
                .map(|index| {
                    let capacity = max_clients / shards + usize::from(index < max_clients % shards);
                    Mutex::new(BucketShard::new(capacity, OVERFLOW_BUCKETS / shards))
                })
                .collect(),
            capacity: max_clients,
        }
    }

    /// Number of tracked buckets.
    pub fn tracked(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    pub(in crate::store) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Maximum number of tracked buckets.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn shared_charges(&self) -> u64 {
        let shards = self.shards.iter();
        shards.map(|shard| shard.lock().shared_charges).sum()
    }

    /// Every tracked bucket that is not full.
    pub fn drained(&self) -> Vec<(BucketKey, BucketState)> {
        let mut drained = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            drained.extend(shard.drained(self.clock.now()));
        }
        drained
    }

    /// Buckets beyond the capacity are ignored.
    pub fn restore(&self, drained: impl IntoIterator<Item = (BucketKey, BucketState)>) {
        for (bucket, state) in drained {
            self.lock(bucket).restore(bucket, state);
        }
    }

    pub(crate) fn retain_limits(&self, limits: &[&str]) {
        for shard in &self.shards {
            shard.lock().retain_limits(limits);
        }
    }

    /// Raises `full_at` of `bucket` to the one that another store reported.
    pub fn observe(&self, limit: &Limit, bucket: BucketKey, full_at: Moment) {
        let mut shard = self.lock(bucket);
        let now = self.clock.now();
        let known = shard.state(limit, bucket);
        if full_at > now && full_at > full_at_under(limit, known, now) {
            shard.put(limit, bucket, full_at, now);
        }
    }

    /// When `bucket` is full, and whether it is tracked. If not, the time is that of its shared bucket.
    pub(in crate::store) fn full_at(&self, limit: &Limit, bucket: BucketKey) -> (Moment, bool) {
        let shard = self.lock(bucket);
        let full_at = full_at_under(limit, shard.state(limit, bucket), self.clock.now());
        (full_at, shard.tracks(bucket))
    }

    /// Returns `false` if the bucket is not tracked and its shared bucket, which others use, is not full.
    pub(in crate::store) fn refill(&self, limit: &Limit, bucket: BucketKey) -> bool {
        let mut shard = self.lock(bucket);
        let now = self.clock.now();
        if shard.tracks(bucket) {
            shard.put(limit, bucket, now, now);
            return true;
        }
        shard.state(limit, bucket).full_at <= now
    }

    /// Uses bits in the middle of the hash. The hash map of the shard uses the lowest bits and the highest seven.
    fn shard_of(&self, bucket: BucketKey) -> usize {
        let hash =
            usize::try_from(bucket.high >> 32).expect("a value of 32 bits fits into a usize");
        hash & (self.shards.len() - 1)
    }

    fn lock(&self, bucket: BucketKey) -> MutexGuard<'_, BucketShard> {
        self.shards[self.shard_of(bucket)].lock()
    }

    /// Makes all charges, or none if a limit rejects its charge.
    pub fn charge_now(&self, charges: &[Charge<'_>]) -> Decision {
        match charges {
            [charge] => self.charge_one(charge),
            _ => self.charge_several(charges),
        }
    }

    fn charge_all(&self, enforced: &[Charge<'_>], shadow: &[Charge<'_>]) -> ChargeResult {
        let decision = self.charge_now(enforced);
        let is_rejected = |charge| {
            let decision = self.charge_now(std::slice::from_ref(charge));
            matches!(decision.outcome, ChargeOutcome::Rejected { .. })
        };
        let shadow = shadow.iter().enumerate();
        let exceeded = shadow.filter_map(|(index, charge)| is_rejected(charge).then_some(index));
        ChargeResult {
            decision,
            exceeded: exceeded.collect(),
        }
    }

    /// The usual case, which needs one lock and no sorting.
    fn charge_one(&self, charge: &Charge<'_>) -> Decision {
        let mut shard = self.lock(charge.bucket);
        let now = self.clock.now();
        let before = shard.state(charge.limit, charge.bucket);
        let mut full_at = [full_at_under(charge.limit, before, now)];
        let decision = decide(std::slice::from_ref(charge), &mut full_at, now);
        if full_at[0] != before.full_at {
            shard.put(charge.limit, charge.bucket, full_at[0], now);
        }
        decision
    }

    fn charge_several(&self, charges: &[Charge<'_>]) -> Decision {
        let mut indexes: SmallVec<[usize; USUAL_LIMITS]> = charges
            .iter()
            .map(|charge| self.shard_of(charge.bucket))
            .collect();
        indexes.sort_unstable();
        indexes.dedup();
        // In ascending order, so two requests cannot deadlock.
        let mut shards: SmallVec<[MutexGuard<'_, BucketShard>; USUAL_LIMITS]> = indexes
            .iter()
            .map(|&index| self.shards[index].lock())
            .collect();
        let now = self.clock.now();

        let lock_index = |charge: &Charge<'_>| {
            indexes
                .binary_search(&self.shard_of(charge.bucket))
                .expect("the shard of every charge is locked")
        };
        let before: SmallVec<[BucketState; USUAL_LIMITS]> = charges
            .iter()
            .map(|charge| shards[lock_index(charge)].state(charge.limit, charge.bucket))
            .collect();
        let scaled = charges.iter().zip(&before);
        let mut full_at: SmallVec<[Moment; USUAL_LIMITS]> = scaled
            .map(|(charge, &before)| full_at_under(charge.limit, before, now))
            .collect();
        let decision = decide(charges, &mut full_at, now);
        for ((charge, before), full_at) in charges.iter().zip(before).zip(full_at) {
            if full_at != before.full_at {
                shards[lock_index(charge)].put(charge.limit, charge.bucket, full_at, now);
            }
        }
        decision
    }
}

impl Buckets for MemoryBuckets {
    fn charge(
        &self,
        enforced: &[Charge<'_>],
        shadow: &[Charge<'_>],
    ) -> impl Future<Output = ChargeResult> + Send {
        ready(self.charge_all(enforced, shadow))
    }

    fn try_charge(&self, enforced: &[Charge<'_>], shadow: &[Charge<'_>]) -> Option<ChargeResult> {
        Some(self.charge_all(enforced, shadow))
    }
}

impl std::fmt::Debug for MemoryBuckets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryBuckets")
            .field("tracked", &self.tracked())
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
