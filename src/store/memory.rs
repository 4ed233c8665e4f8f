//! Buckets in memory: a bounded table over dashmap.
//!
//! Three promises shape it. *Atomic*: a request's buckets may lie in several shards, so all of those
//! are locked, in ascending order, before any is read; the clock is read under the locks, so no admission
//! is stamped earlier than one it waited for. *Bounded*: each shard holds its share of `max_clients` and
//! no more; room is made by dropping buckets that are full again, which are indistinguishable from absent
//! ones. *Forgets nothing that matters*: where no bucket is full, a newcomer is counted in one of
//! [`OVERFLOW_BUCKETS`] shared ones (per limit, picked by the seeded hash), and a bucket that later finds
//! room takes the shared one's state along.
//!
//! dashmap is used for its sharded table and locks (`raw-api`); its own entry calls lock one shard at a
//! time and could not decide two buckets together.

pub mod records;
mod shard;
mod taken;

use std::future::{Future, ready};
use std::time::Duration;

use dashmap::DashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;

use self::shard::{Margin, Shard};
use crate::clock::{Clock, Moment};
use crate::throttle::decision::{USUAL_LIMITS, limit_debt};
use crate::throttle::{BucketKey, Buckets, Charge, Judgement, LimitId, Outcome, Verdict, decide};

pub(in crate::store) use self::taken::TakenAsHash;

/// Shared buckets of a limit, for clients that cannot be tracked one by one.
pub const OVERFLOW_BUCKETS: usize = 65_536;

/// Buckets a shard is sized for: small enough that no clean-up under its lock takes long.
const BUCKETS_PER_SHARD: usize = 4_096;

/// All buckets of a gateway.
pub struct MemoryBuckets {
    clock: Clock,
    table: DashMap<BucketKey, Moment, TakenAsHash>,
    /// Beside each shard of the table, what it takes to keep it bounded. Locked only under the shard's
    /// own lock, so never contended.
    margins: Box<[Mutex<Margin>]>,
    capacity: usize,
}

impl MemoryBuckets {
    /// Room for `max_clients` buckets, all limits together.
    pub fn new(max_clients: usize, clock: Clock) -> Self {
        let shards = (max_clients / BUCKETS_PER_SHARD)
            .next_power_of_two()
            .clamp(2, 4_096);
        let margins = (0..shards)
            .map(|index| {
                let share = max_clients / shards + usize::from(index < max_clients % shards);
                Mutex::new(Margin::new(share, OVERFLOW_BUCKETS / shards))
            })
            .collect();
        Self {
            clock,
            // The whole table is laid out at once: pages are touched only as clients come, and growing
            // later would hold old and new copies of a shard at the same time. A quarter more than is
            // ever filled, because in a table nearly full removals leave marks that make it grow.
            table: DashMap::with_capacity_and_hasher_and_shard_amount(
                (max_clients + max_clients / 4).max(shards),
                TakenAsHash,
                shards,
            ),
            margins,
            capacity: max_clients,
        }
    }

    /// Buckets tracked now.
    pub fn tracked(&self) -> usize {
        self.table.len()
    }

    /// Buckets tracked at most.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Every tracked bucket that is not full, with the nanoseconds it takes to fill.
    pub fn drained(&self) -> Vec<(BucketKey, u64)> {
        let mut drained = Vec::new();
        for (table, margin) in self.table.shards().iter().zip(&self.margins) {
            let shard = Shard::new(table.write(), margin);
            let now = self.clock.now();
            drained.extend(shard.drained(now));
        }
        drained
    }

    /// Takes up buckets that will be full after these times, as far as there is room for them.
    pub fn restore(&self, drained: impl IntoIterator<Item = (BucketKey, Duration)>) {
        for (bucket, left) in drained {
            let index = self.shard_of(bucket);
            let mut shard = Shard::new(self.table.shards()[index].write(), &self.margins[index]);
            if !left.is_zero() {
                shard.restore(bucket, self.clock.now().after(left));
            }
        }
    }

    /// Somebody else saw that `bucket` will be full no sooner than `full_at`.
    pub fn observe(&self, limit: LimitId, bucket: BucketKey, full_at: Moment) {
        let index = self.shard_of(bucket);
        let mut shard = Shard::new(self.table.shards()[index].write(), &self.margins[index]);
        let now = self.clock.now();
        if full_at > now && full_at > shard.full_at(limit, bucket) {
            shard.put(limit, bucket, full_at, now);
        }
    }

    /// Returns when `bucket` will be full, and whether it is tracked by itself. A bucket that is not tracked has the
    /// state of its shared one.
    pub(in crate::store) fn full_at(&self, limit: LimitId, bucket: BucketKey) -> (Moment, bool) {
        let index = self.shard_of(bucket);
        let shard = Shard::new(self.table.shards()[index].write(), &self.margins[index]);
        (shard.full_at(limit, bucket), shard.tracks(bucket))
    }

    fn shard_of(&self, bucket: BucketKey) -> usize {
        self.table.determine_map(&bucket)
    }

    /// Makes all charges, or none; see [`Buckets::charge`].
    pub fn charge_now(&self, charges: &[Charge<'_>]) -> Verdict {
        match charges {
            [charge] => self.charge_one(charge),
            _ => self.charge_several(charges),
        }
    }

    /// Makes all `enforced` charges, or none, and then each of the `watched` ones.
    pub fn judge(&self, enforced: &[Charge<'_>], watched: &[Charge<'_>]) -> Judgement {
        let verdict = self.charge_now(enforced);
        let exceeds = |charge| {
            let verdict = self.charge_now(std::slice::from_ref(charge));
            matches!(verdict.outcome, Outcome::Refused { .. })
        };
        let exceeded = watched.iter().enumerate();
        let exceeded = exceeded.filter_map(|(place, charge)| exceeds(charge).then_some(place));
        Judgement {
            verdict,
            exceeded: exceeded.collect(),
        }
    }

    /// Makes the only charge of a request, the usual case: there is no lock order, and no second lookup.
    fn charge_one(&self, charge: &Charge<'_>) -> Verdict {
        let index = self.shard_of(charge.bucket);
        let mut shard = Shard::new(self.table.shards()[index].write(), &self.margins[index]);
        let now = self.clock.now();
        let before = shard.full_at(charge.limit.id, charge.bucket);
        let mut full_at = [limit_debt(charge.limit, before, now)];
        let verdict = decide(std::slice::from_ref(charge), &mut full_at, now);
        if full_at[0] != before {
            shard.put(charge.limit.id, charge.bucket, full_at[0], now);
        }
        verdict
    }

    /// Makes all charges of a request, or none.
    fn charge_several(&self, charges: &[Charge<'_>]) -> Verdict {
        let mut wanted: SmallVec<[usize; USUAL_LIMITS]> = charges
            .iter()
            .map(|charge| self.shard_of(charge.bucket))
            .collect();
        wanted.sort_unstable();
        wanted.dedup();
        // Ascending order, each shard once: two requests can never hold what the other waits for.
        let mut shards: SmallVec<[Shard<'_>; USUAL_LIMITS]> = wanted
            .iter()
            .map(|&index| Shard::new(self.table.shards()[index].write(), &self.margins[index]))
            .collect();
        let now = self.clock.now();

        let place = |charge: &Charge<'_>| {
            wanted
                .binary_search(&self.shard_of(charge.bucket))
                .expect("every charge's shard was asked for")
        };
        let before: SmallVec<[Moment; USUAL_LIMITS]> = charges
            .iter()
            .map(|charge| shards[place(charge)].full_at(charge.limit.id, charge.bucket))
            .collect();
        let limited = charges.iter().zip(&before);
        let mut full_at: SmallVec<[Moment; USUAL_LIMITS]> = limited
            .map(|(charge, &before)| limit_debt(charge.limit, before, now))
            .collect();
        let verdict = decide(charges, &mut full_at, now);
        for ((charge, before), full_at) in charges.iter().zip(before).zip(full_at) {
            if full_at != before {
                shards[place(charge)].put(charge.limit.id, charge.bucket, full_at, now);
            }
        }
        verdict
    }
}

impl Buckets for MemoryBuckets {
    fn charge(
        &self,
        enforced: &[Charge<'_>],
        watched: &[Charge<'_>],
    ) -> impl Future<Output = Judgement> + Send {
        ready(self.judge(enforced, watched))
    }

    fn try_charge(&self, enforced: &[Charge<'_>], watched: &[Charge<'_>]) -> Option<Judgement> {
        Some(self.judge(enforced, watched))
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
