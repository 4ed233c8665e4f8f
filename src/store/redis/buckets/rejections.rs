//! A cache of rejections, so that a client that retries too early is rejected without a call to Redis.
//!
//! Charges only raise the debt of a bucket. So a bucket that rejects a charge cannot admit the same charge before a
//! time that is known at the rejection. The cache has two bounds of the time at which the bucket is full, both on the
//! monotonic clock of this gateway.
//!
//! - *No sooner* decides. It counts from before the call and is 0.1 % shorter than the figure of Redis, because the
//!   clock of Redis may run faster. So the cache rejects no request that Redis would admit.
//! - *No later* determines the `Retry-After` of the client, which must not be early.
//!
//! A request that arrives between the two bounds goes to Redis.
//!
//! *No later* is valid only while no other gateway charges the bucket. That is certain only for a bucket that rejects a
//! cost of 1. A bucket that rejects a larger cost can have tokens for a smaller one. A limit that did not itself reject
//! the request can be charged on other routes. So the cache decides only requests with one enforced limit at a cost
//! of 1. Shadow limits have no `Retry-After`, so *no sooner* is enough for them.
//!
//! An entry is valid for one run of Redis: after a restart without its data, every bucket is full. An insertion into a
//! full shard removes outdated entries, or all entries if most are current.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::Duration;

use parking_lot::Mutex;

use super::RequestCharges;
use crate::clock::Moment;
use crate::store::memory::BuildIdentityHasher;
use crate::throttle::{BucketKey, Charge, ChargeOutcome, ChargeResult, Decision, decide};

/// Number of shards, each with its own lock.
const SHARDS: usize = 64;

/// Maximum number of buckets in each shard.
const CAPACITY: usize = 1_024;

/// The clocks may differ by one part in this many: 0.1 %.
const DRIFT: u32 = 1_000;

/// Buckets that rejected a charge, with the debt that Redis returned.
#[derive(Debug)]
pub(super) struct Rejections(Box<[Mutex<RejectionShard>]>);

type RejectionShard = HashMap<BucketKey, Observation, BuildIdentityHasher>;

/// The debt of a bucket in a reply of Redis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observation {
    /// The epoch of Redis at the time of the call.
    pub(super) epoch: u64,
    /// Time just before the call.
    pub(super) called: Moment,
    /// Time just after the reply.
    pub(super) replied: Moment,
    /// Expiry of this entry.
    pub(super) until: Moment,
    /// The time until the bucket is full, counted from the execution of the call.
    pub(super) owed: Duration,
}

impl Observation {
    fn min_wait(&self) -> Moment {
        let least = self.owed.saturating_sub(self.owed / DRIFT);
        self.called.after(least)
    }

    fn no_later(&self) -> Moment {
        self.replied.after(self.owed)
    }
}

impl Rejections {
    pub(super) fn new() -> Self {
        Self((0..SHARDS).map(|_| Mutex::default()).collect())
    }

    /// Returns the decision on a request if the cache is certain of it, or `None` if Redis has to decide. The decision
    /// is certain if every charge is rejected and at most one is enforced. A charge of a shadow limit that is not
    /// rejected has to be made in Redis.
    pub(super) fn lookup(
        &self,
        charges: &RequestCharges<'_>,
        epoch: u64,
        now: Moment,
    ) -> Option<ChargeResult> {
        let decision = match charges.enforced() {
            [] => decide(&[], &mut [], now),
            [charge] if charge.cost == NonZeroU32::MIN => self.reject(charge, epoch, now)?,
            _ => return None,
        };
        let watched = charges.watched();
        let rejected = |charge| self.reject(charge, epoch, now).is_some();
        watched.iter().all(rejected).then(|| ChargeResult {
            decision,
            exceeded: (0..watched.len()).collect(),
        })
    }

    /// Returns the rejection of `charge` if both bounds reject it.
    fn reject(&self, charge: &Charge<'_>, epoch: u64, now: Moment) -> Option<Decision> {
        let known = self
            .shard(charge.bucket)
            .lock()
            .get(&charge.bucket)
            .copied();
        let known = known.filter(|known| known.epoch == epoch && now < known.until)?;
        let rejected = |full_at: Moment| {
            let decision = decide(std::slice::from_ref(charge), &mut [full_at], now);
            matches!(decision.outcome, ChargeOutcome::Rejected { .. }).then_some(decision)
        };
        rejected(known.min_wait())?;
        rejected(known.no_later())
    }

    /// Adds a bucket that rejected a charge. `seen` is its state before the charge.
    pub(super) fn insert(&self, bucket: BucketKey, seen: Observation) {
        let mut shard = self.shard(bucket).lock();
        if shard
            .get(&bucket)
            .is_some_and(|known| known.epoch > seen.epoch)
        {
            return;
        }
        if shard.len() >= CAPACITY && !shard.contains_key(&bucket) {
            shard.retain(|_, it| {
                it.epoch >= seen.epoch && it.min_wait().min(it.until) > seen.replied
            });
            // Otherwise each further insertion would scan the shard.
            if shard.len() > CAPACITY / 2 {
                shard.clear();
            }
        }
        shard.insert(bucket, seen);
    }

    /// Updates a cached bucket after a charge, so that later rejections have the new wait.
    pub(super) fn update(&self, bucket: BucketKey, seen: Observation) {
        let mut shard = self.shard(bucket).lock();
        let known = shard.get_mut(&bucket);
        if let Some(known) = known.filter(|known| known.epoch == seen.epoch) {
            *known = seen;
        }
    }

    fn shard(&self, bucket: BucketKey) -> &Mutex<RejectionShard> {
        // The low half selects the shard. The high half is the hash within the shard.
        let shard = bucket.low % SHARDS as u64;
        &self.0[usize::try_from(shard).expect("SHARDS fits a usize")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::throttle::{Limit, Quota};

    const SECOND: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    /// Returns an observation, with the times of call and reply in milliseconds.
    fn seen(owed: Duration, epoch: u64, called: u64, replied: u64) -> Observation {
        Observation {
            epoch,
            called: at(called),
            replied: at(replied),
            until: at(u64::MAX / 1_000_000),
            owed,
        }
    }

    fn bucket(number: u64) -> BucketKey {
        BucketKey {
            high: number,
            low: number,
        }
    }

    /// Returns the cached wait of a request with one limit, which has one token per 10 s and no burst.
    fn wait(rejections: &Rejections, number: u64, epoch: u64, now: Moment) -> Option<Duration> {
        let quota = Quota::new(NonZeroU32::MIN, SECOND * 10, 0).unwrap();
        let charge = Charge {
            limit: &Limit::per_client("device", quota),
            bucket: bucket(number),
            cost: NonZeroU32::MIN,
        };
        let charges = RequestCharges {
            all: &[charge],
            enforced: 1,
        };
        match rejections.lookup(&charges, epoch, now)?.decision.outcome {
            ChargeOutcome::Rejected { wait, .. } => Some(wait),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_cached_rejection_ends_no_later_and_its_wait_no_sooner_than_in_redis() {
        let rejections = Rejections::new();
        rejections.insert(bucket(1), seen(SECOND * 10, 0, 1_000, 1_400));
        assert_eq!(wait(&rejections, 1, 0, at(1_400)), Some(SECOND * 10));
        // The bucket is full at some time between 11.0 s and 11.4 s, or 10 ms earlier by a faster clock.
        assert_eq!(
            wait(&rejections, 1, 0, at(10_989)),
            Some(SECOND * 411 / 1_000)
        );
        assert_eq!(wait(&rejections, 1, 0, at(10_990)), None);
        assert_eq!(wait(&rejections, 2, 0, at(1_400)), None);
    }

    #[test]
    fn a_later_charge_extends_the_wait_of_a_cached_rejection() {
        let rejections = Rejections::new();
        rejections.insert(bucket(1), seen(SECOND * 10, 0, 0, 0));
        rejections.update(bucket(1), seen(SECOND * 20, 0, 5_000, 5_000));
        assert_eq!(wait(&rejections, 1, 0, at(5_000)), Some(SECOND * 20));
        rejections.update(bucket(2), seen(SECOND * 20, 0, 5_000, 5_000));
        assert_eq!(wait(&rejections, 2, 0, at(5_000)), None);
    }

    #[test]
    fn a_request_with_two_limits_or_a_larger_cost_is_not_decided_by_the_cache() {
        let rejections = Rejections::new();
        for number in [1, 2] {
            rejections.insert(bucket(number), seen(SECOND * 20, 0, 0, 0));
        }
        let quota = Quota::new(NonZeroU32::MIN, SECOND * 10, 1).unwrap();
        let limit = Limit::per_client("device", quota);
        let charge = |number, cost| Charge {
            limit: &limit,
            bucket: bucket(number),
            cost: NonZeroU32::new(cost).unwrap(),
        };
        let decided = |all: &[Charge<'_>]| {
            let enforced = all.len();
            let charges = RequestCharges { all, enforced };
            rejections.lookup(&charges, 0, at(1)).is_some()
        };
        assert!(decided(&[charge(1, 1)]));
        assert!(!decided(&[charge(1, 2)]));
        assert!(!decided(&[charge(1, 1), charge(2, 1)]));
        assert!(!decided(&[charge(1, 1), charge(3, 1)]));
    }

    #[test]
    fn a_cached_rejection_expires() {
        let rejections = Rejections::new();
        let seen = Observation {
            until: at(3_000),
            ..seen(SECOND * 10, 0, 1_000, 1_000)
        };
        rejections.insert(bucket(1), seen);
        assert_eq!(
            wait(&rejections, 1, 0, at(2_999)),
            Some(SECOND * 8_001 / 1_000)
        );
        assert_eq!(wait(&rejections, 1, 0, at(3_000)), None);
    }

    #[test]
    fn a_cached_rejection_does_not_outlive_its_epoch() {
        let rejections = Rejections::new();
        rejections.insert(bucket(1), seen(SECOND * 10, 1, 0, 0));
        assert!(wait(&rejections, 1, 1, at(1)).is_some());
        assert!(wait(&rejections, 1, 2, at(1)).is_none());
        rejections.insert(bucket(1), seen(SECOND * 5, 2, 0, 0));
        rejections.insert(bucket(1), seen(SECOND * 10, 1, 0, 0));
        assert_eq!(wait(&rejections, 1, 2, at(0)), Some(SECOND * 5));
    }

    #[test]
    fn the_cache_is_bounded() {
        let rejections = Rejections::new();
        let most = (SHARDS * CAPACITY) as u64;
        for number in 0..most * 3 {
            rejections.insert(bucket(number), seen(SECOND * 10, 0, 0, 0));
        }
        let held: usize = rejections.0.iter().map(|it| it.lock().len()).sum();
        assert!(held as u64 <= most, "{held}");
        // The last insertion is cached, whichever entries were removed.
        assert!(wait(&rejections, most * 3 - 1, 0, at(1)).is_some());
    }
}
