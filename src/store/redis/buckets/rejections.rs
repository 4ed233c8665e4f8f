//! A cache of rejections. If a client retries too early, the gateway rejects the retry from this cache, without a call
//! to Redis.
//!
//! Charges only raise the debt of a rate limit bucket, which is the time until the bucket is full. So a bucket that
//! rejects a charge cannot admit the same charge before a time that is known at the rejection. The gateway knows only
//! approximately when the bucket becomes full. The cache has a lower and an upper bound of that time, both on the
//! monotonic clock of this gateway.
//!
//! - The lower bound decides whether to reject. It is the time at which the call was sent, plus 99.9 % of the debt that
//!   Redis returned. The debt is reduced by 0.1 %, because the clock of Redis can run faster than that of the gateway.
//!   So the cache rejects no request that Redis would admit.
//! - The upper bound is the time of the reply plus the debt that Redis returned. It determines `Retry-After`, because a
//!   client that waits this long must not be rejected again.
//!
//! A request that arrives between the lower and the upper bound is sent to Redis.
//!
//! Gateways with another quota can charge the bucket while a change is rolled out; the wait is then an estimate. No
//! gateway with the same quota can charge a bucket that rejects a cost of 1. But a bucket that rejects a larger cost
//! can have tokens for a smaller one. If a request has several limits, a limit that did not reject it can be charged on
//! other routes. So the cache decides only requests with one enforced limit at a cost of 1. Shadow limits have no
//! `Retry-After`, so they need only the lower bound.
//!
//! An entry is valid for one run of Redis, because every bucket is full after a restart without data. An insertion into
//! a full shard removes outdated entries. If more than half of the entries are current, it removes all entries.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::Duration;

use parking_lot::Mutex;

use super::RequestCharges;
use crate::clock::Moment;
use crate::request::hash_keys::BuildIdentityHasher;
use crate::throttle::{BucketKey, Charge, ChargeOutcome, ChargeResult, Decision, decide};

/// Number of shards of the cache. Each shard has its own lock.
const SHARDS: usize = 64;

/// Maximum number of buckets in each shard.
const CAPACITY: usize = 1_024;

/// Divisor of the tolerated difference in clock speed. The clock of Redis can run faster by 1/1000, which is 0.1 %.
const DRIFT: u32 = 1_000;

/// Rate limit buckets that rejected a charge, with the time until each bucket is full.
#[derive(Debug)]
pub(super) struct Rejections(Box<[Mutex<RejectionShard>]>);

type RejectionShard = HashMap<BucketKey, Observation, BuildIdentityHasher>;

/// The state of a bucket in a reply of Redis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Observation {
    /// The epoch of Redis at the time of the call. It changes when Redis is restarted or replaced.
    pub(super) epoch: u64,
    /// When the call was sent, on the clock of this gateway.
    pub(super) called: Moment,
    /// When the reply arrived, on the clock of this gateway.
    pub(super) replied: Moment,
    /// The cache ignores this entry from this time on.
    pub(super) until: Moment,
    /// Time from the execution of the call in Redis until the bucket is full.
    pub(super) owed: Duration,
    /// Refill time of an empty bucket. The cache ignores this entry after a reload with another one.
    pub(super) refill: Duration,
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

    /// Returns the decision on a request, or `None` if Redis has to decide. The cache decides if it rejects every
    /// charge, at most one charge is enforced, and the enforced charge has a cost of 1. If the cache does not reject
    /// the charge of a shadow limit, this charge has to be made in Redis.
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
        let shadow = charges.shadow();
        let rejected = |charge| self.reject(charge, epoch, now).is_some();
        shadow.iter().all(rejected).then(|| ChargeResult {
            decision,
            exceeded: (0..shadow.len()).collect(),
        })
    }

    /// Returns the rejection of `charge`, or `None` if the cache cannot reject the charge. The wait of the rejection is
    /// computed from the latest time at which the bucket can become full.
    fn reject(&self, charge: &Charge<'_>, epoch: u64, now: Moment) -> Option<Decision> {
        let known = self
            .shard(charge.bucket)
            .lock()
            .get(&charge.bucket)
            .copied();
        let refill = charge.limit.quota.refill();
        let known = known
            .filter(|known| known.epoch == epoch && known.refill == refill)
            .filter(|known| now < known.until && known.called >= charge.limit.quota_since.get())?;
        let rejected = |full_at: Moment| {
            let decision = decide(std::slice::from_ref(charge), &mut [full_at], now);
            matches!(decision.outcome, ChargeOutcome::Rejected { .. }).then_some(decision)
        };
        rejected(known.min_wait())?;
        rejected(known.no_later())
    }

    /// Adds a bucket that rejected a charge. `seen` is the state of the bucket before the charge.
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
            // The shard is emptied if more than half of its entries are current. Otherwise nearly every insertion would
            // scan it.
            if shard.len() > CAPACITY / 2 {
                shard.clear();
            }
        }
        shard.insert(bucket, seen);
    }

    /// Updates the entry of `bucket` after a charge, so that later rejections have the new wait. Has no effect if the
    /// bucket is not cached.
    pub(super) fn update(&self, bucket: BucketKey, seen: Observation) {
        let mut shard = self.shard(bucket).lock();
        let known = shard.get_mut(&bucket);
        if let Some(known) = known.filter(|known| known.epoch == seen.epoch) {
            *known = seen;
        }
    }

    pub(super) fn remove(&self, bucket: BucketKey) {
        self.shard(bucket).lock().remove(&bucket);
    }

    fn shard(&self, bucket: BucketKey) -> &Mutex<RejectionShard> {
        // The low half of the hash selects the shard, because the high half is the hash inside the shard.
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

    /// Creates an observation. `called` and `replied` are in milliseconds.
    fn seen(owed: Duration, epoch: u64, called: u64, replied: u64) -> Observation {
        Observation {
            epoch,
            called: at(called),
            replied: at(replied),
            until: at(u64::MAX / 1_000_000),
            owed,
            refill: SECOND * 10,
        }
    }

    fn bucket(number: u64) -> BucketKey {
        BucketKey {
            high: number,
            low: number,
        }
    }

    /// Returns the wait of a cached rejection, or `None` if the cache does not reject. The request has one limit with
    /// one token per 10 s and no burst.
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
        // Redis computed the debt of 10 s at some time between 1.0 s and 1.4 s, so the bucket becomes full at 11.0 s to
        // 11.4 s. If the clock of Redis runs 0.1 % faster, the bucket becomes full up to 10 ms earlier. So the cache
        // rejects until 10.99 s, and its wait ends at 11.4 s.
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
            let seen = Observation {
                refill: SECOND * 20,
                ..seen(SECOND * 20, 0, 0, 0)
            };
            rejections.insert(bucket(number), seen);
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
        // The entry of the last insertion must exist, whichever entries were removed.
        assert!(wait(&rejections, most * 3 - 1, 0, at(1)).is_some());
    }
}
