//! Charges to local buckets that Redis has not counted yet.
//!
//! While Redis does not respond, a gateway admits requests by its local buckets. The next request that Redis decides
//! for such a bucket reports what the bucket owes here, and Redis counts the larger of both debts. So a gateway never
//! admits more than the quota, however often Redis fails in between. A separate replay when Redis is back was
//! rejected: requests would be decided before it has finished.
//!
//! Two gateways that charge one bucket without Redis do not add up: only the larger debt counts.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::clock::Moment;
use crate::store::memory::BuildIdentityHasher;
use crate::throttle::BucketKey;

/// Number of parts, each with its own lock.
const SHARDS: usize = 64;

/// Buckets with charges that Redis does not know, and the time at which each is full.
#[derive(Debug)]
pub(super) struct Backlog(Box<[Mutex<Shard>]>);

type Shard = HashMap<BucketKey, Moment, BuildIdentityHasher>;

impl Backlog {
    pub(super) fn new() -> Self {
        Self((0..SHARDS).map(|_| Mutex::default()).collect())
    }

    /// Returns when `bucket` is full, or the start of the clock if Redis knows all its charges.
    pub(super) fn full_at(&self, bucket: BucketKey) -> Moment {
        let shard = self.shard(bucket).lock();
        shard.get(&bucket).copied().unwrap_or_default()
    }

    /// Records that `bucket` was charged at `now` without Redis and is full at `full_at`.
    ///
    /// Buckets that are full are removed before a shard grows. Its caller tracks each bucket that is not, so the
    /// size is bounded by `max_clients`.
    pub(super) fn add(&self, bucket: BucketKey, full_at: Moment, now: Moment) {
        let mut shard = self.shard(bucket).lock();
        if shard.len() == shard.capacity() {
            shard.retain(|_, full_at| *full_at > now);
            // At least as many again before the next removal, so that its cost per charge is constant.
            let room = shard.len();
            shard.reserve(room);
        }
        let known = shard.entry(bucket).or_default();
        *known = full_at.max(*known);
    }

    /// Removes `bucket` after Redis has learnt that it is full at `reported`, unless it was charged since.
    pub(super) fn remove(&self, bucket: BucketKey, reported: Moment) {
        let mut shard = self.shard(bucket).lock();
        if shard.get(&bucket).is_some_and(|&known| known <= reported) {
            shard.remove(&bucket);
        }
    }

    fn shard(&self, bucket: BucketKey) -> &Mutex<Shard> {
        // The other half of the name is the hash within the shard.
        let shard = bucket.low % SHARDS as u64;
        &self.0[usize::try_from(shard).expect("less than a usize")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(high: u64) -> BucketKey {
        BucketKey { high, low: 7 }
    }

    const fn at(nanos: u64) -> Moment {
        Moment::from_nanos(nanos)
    }

    #[test]
    fn a_charge_made_after_the_report_is_still_to_be_reported() {
        let backlog = Backlog::new();
        assert_eq!(backlog.full_at(bucket(1)), at(0));
        backlog.add(bucket(1), at(100), at(0));
        let reported = backlog.full_at(bucket(1));
        backlog.add(bucket(1), at(150), at(10));
        backlog.remove(bucket(1), reported);
        assert_eq!(backlog.full_at(bucket(1)), at(150));
        backlog.remove(bucket(1), at(150));
        assert_eq!(backlog.full_at(bucket(1)), at(0));
    }

    #[test]
    fn full_buckets_are_removed_before_a_shard_grows_and_others_are_not() {
        let backlog = Backlog::new();
        backlog.add(bucket(u64::MAX), at(u64::MAX), at(0));
        for number in 0..100_000 {
            backlog.add(bucket(number), at(number + 10), at(number));
        }
        let held = backlog.shard(bucket(0)).lock().len();
        assert!(held < 100, "{held}");
        assert_eq!(backlog.full_at(bucket(u64::MAX)), at(u64::MAX));
    }
}
