//! A cache of rejections: a client that retries too early is rejected without a call to Redis.
//!
//! A bucket that rejected a charge cannot admit the same charge before a time that is known when it rejects,
//! because charges only make a bucket owe more. Two bounds of the time at which it is full are cached, both on this
//! gateway's monotonic clock. *No sooner* decides. It counts from before the call and is 0.1 % shorter than Redis's
//! figure, because Redis's clock may run faster: the cache rejects no request that Redis would admit. *No later*
//! is what the client receives, so that `Retry-After` is not early. A request between the two bounds goes to Redis.
//!
//! *No later* holds only while no other gateway charges the bucket. That is certain for a bucket that rejects
//! a cost of 1, and for no other: a larger cost leaves tokens for smaller ones, and a limit that did not itself
//! reject the request can be charged on other routes. So the cache decides only requests with one enforced limit
//! at a cost of 1. Shadow limits have no `Retry-After`, and *no sooner* is enough for them.
//!
//! Entries hold for one run of Redis: after a restart without its data, every bucket is full. Where there
//! is no capacity left, the cache is emptied.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::time::Duration;

use parking_lot::Mutex;

use super::Wanted;
use crate::clock::Moment;
use crate::store::memory::BuildIdentityHasher;
use crate::throttle::{BucketKey, Charge, ChargeResult, Decision, Outcome, decide};

/// Parts with locks of their own.
const SHARDS: usize = 64;

/// Buckets remembered in each.
const ROOM: usize = 1_024;

/// By which part of a wait clocks may differ.
const DRIFT: u32 = 1_000;

/// Buckets that are known not to be full.
#[derive(Debug)]
pub(super) struct Refusals(Box<[Mutex<Shard>]>);

#[derive(Debug, Default)]
struct Shard {
    /// The time of Redis that all of this is from.
    epoch: u64,
    bounds: HashMap<BucketKey, Bounds, BuildIdentityHasher>,
}

/// When a bucket will be full.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    no_sooner: Moment,
    no_later: Moment,
    /// Until when this is relied on.
    until: Moment,
}

/// When something was learnt, and for how long it can be relied on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// The time of Redis that was asked.
    pub(super) epoch: u64,
    /// Before it was.
    pub(super) asked: Moment,
    /// When it had answered.
    pub(super) answered: Moment,
    /// How long nothing can have changed for the better.
    pub(super) reliable: Duration,
}

impl Bounds {
    fn of(owed: Duration, span: Span) -> Self {
        Self {
            no_sooner: span.asked.after(owed.saturating_sub(owed / DRIFT)),
            no_later: span.answered.after(owed),
            until: span.asked.after(span.reliable),
        }
    }
}

impl Refusals {
    pub(super) fn new() -> Self {
        Self((0..SHARDS).map(|_| Mutex::default()).collect())
    }

    /// Returns the decision on a request if the cache is certain of it: its only enforced charge is rejected (or
    /// there is none), and so is every watched one. A watched charge that is not rejected has to be made in Redis.
    pub(super) fn judge(
        &self,
        wanted: &Wanted<'_>,
        epoch: u64,
        now: Moment,
    ) -> Option<ChargeResult> {
        let verdict = match wanted.enforced {
            [] => decide(&[], &mut [], now),
            [charge] if charge.cost == NonZeroU32::MIN => self.refuse(charge, epoch, now)?,
            _ => return None,
        };
        let mut watched = wanted.watched.iter();
        let all = watched.all(|charge| self.refuse(charge, epoch, now).is_some());
        all.then(|| ChargeResult {
            decision: verdict,
            exceeded: (0..wanted.watched.len()).collect(),
        })
    }

    /// Returns the rejection of `charge` if it is certain.
    fn refuse(&self, charge: &Charge<'_>, epoch: u64, now: Moment) -> Option<Decision> {
        let bounds = self.bounds(charge.bucket, epoch, now)?;
        let refused = |full_at: Moment| {
            let verdict = decide(std::slice::from_ref(charge), &mut [full_at], now);
            matches!(verdict.outcome, Outcome::Rejected { .. }).then_some(verdict)
        };
        refused(bounds.no_sooner)?;
        refused(bounds.no_later)
    }

    fn bounds(&self, bucket: BucketKey, epoch: u64, now: Moment) -> Option<Bounds> {
        let shard = self.shard(bucket).lock();
        let known = shard.bounds.get(&bucket);
        known
            .filter(|known| shard.epoch == epoch && now < known.until)
            .copied()
    }

    /// Takes note of a bucket that refused, and owed so much when Redis was asked.
    pub(super) fn note(&self, bucket: BucketKey, owed: Duration, span: Span) {
        let bounds = Bounds::of(owed, span);
        self.shard(bucket).lock().note(bucket, bounds, span);
    }

    /// Takes note of a bucket that was charged and owes so much since; only if it is known, as whoever was
    /// refused by it is to be told of this charge, too.
    pub(super) fn renew(&self, bucket: BucketKey, owed: Duration, span: Span) {
        let mut shard = self.shard(bucket).lock();
        if shard.epoch == span.epoch
            && let Some(known) = shard.bounds.get_mut(&bucket)
        {
            *known = Bounds::of(owed, span);
        }
    }

    fn shard(&self, bucket: BucketKey) -> &Mutex<Shard> {
        // The other half of a bucket's name picks its place within the shard.
        let shard = bucket.low % SHARDS as u64;
        &self.0[usize::try_from(shard).expect("less than a usize")]
    }
}

impl Shard {
    fn note(&mut self, bucket: BucketKey, bounds: Bounds, span: Span) {
        if span.epoch < self.epoch {
            return;
        }
        if span.epoch > self.epoch {
            self.epoch = span.epoch;
            self.bounds.clear();
        }
        if self.bounds.len() >= ROOM && !self.bounds.contains_key(&bucket) {
            self.bounds
                .retain(|_, it| it.no_sooner.min(it.until) > span.answered);
            // To look through all of them for every newcomer would be slow.
            if self.bounds.len() > ROOM / 2 {
                self.bounds.clear();
            }
        }
        self.bounds.insert(bucket, bounds);
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

    /// Redis was asked at the first and had answered at the second.
    fn span(epoch: u64, asked: u64, answered: u64) -> Span {
        Span {
            epoch,
            asked: at(asked),
            answered: at(answered),
            reliable: Duration::MAX,
        }
    }

    fn bucket(number: u64) -> BucketKey {
        BucketKey {
            high: number,
            low: number,
        }
    }

    /// What a request of one limit, ten seconds a token and no burst, is told without asking.
    fn told(refusals: &Refusals, number: u64, epoch: u64, now: Moment) -> Option<Duration> {
        let quota = Quota::new(NonZeroU32::MIN, SECOND * 10, 0).unwrap();
        let charge = Charge {
            limit: &Limit::per_client("device", quota),
            bucket: bucket(number),
            cost: NonZeroU32::MIN,
        };
        let wanted = Wanted {
            enforced: &[charge],
            watched: &[],
        };
        match refusals.judge(&wanted, epoch, now)?.decision.outcome {
            Outcome::Rejected { wait, .. } => Some(wait),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nobody_is_refused_too_long_or_told_too_little() {
        let refusals = Refusals::new();
        refusals.note(bucket(1), SECOND * 10, span(0, 1_000, 1_400));
        assert_eq!(told(&refusals, 1, 0, at(1_400)), Some(SECOND * 10));
        // It is full at some time between 11.0 s and 11.4 s, or 10 ms earlier by a faster clock.
        assert_eq!(
            told(&refusals, 1, 0, at(10_989)),
            Some(SECOND * 411 / 1_000)
        );
        assert_eq!(told(&refusals, 1, 0, at(10_990)), None);
        assert_eq!(told(&refusals, 2, 0, at(1_400)), None);
    }

    #[test]
    fn what_is_charged_since_is_told_to_those_who_were_refused() {
        let refusals = Refusals::new();
        refusals.note(bucket(1), SECOND * 10, span(0, 0, 0));
        refusals.renew(bucket(1), SECOND * 20, span(0, 5_000, 5_000));
        assert_eq!(told(&refusals, 1, 0, at(5_000)), Some(SECOND * 20));
        refusals.renew(bucket(2), SECOND * 20, span(0, 5_000, 5_000));
        assert_eq!(told(&refusals, 2, 0, at(5_000)), None);
    }

    #[test]
    fn a_request_with_two_limits_or_a_larger_cost_is_not_decided_by_the_cache() {
        let refusals = Refusals::new();
        for number in [1, 2] {
            refusals.note(bucket(number), SECOND * 20, span(0, 0, 0));
        }
        let quota = Quota::new(NonZeroU32::MIN, SECOND * 10, 1).unwrap();
        let limit = Limit::per_client("device", quota);
        let charge = |number, cost| Charge {
            limit: &limit,
            bucket: bucket(number),
            cost: NonZeroU32::new(cost).unwrap(),
        };
        let decided = |enforced: &[Charge<'_>]| {
            let wanted = Wanted {
                enforced,
                watched: &[],
            };
            refusals.judge(&wanted, 0, at(1)).is_some()
        };
        assert!(decided(&[charge(1, 1)]));
        assert!(!decided(&[charge(1, 2)]));
        assert!(!decided(&[charge(1, 1), charge(2, 1)]));
        assert!(!decided(&[charge(1, 1), charge(3, 1)]));
    }

    #[test]
    fn what_was_told_is_relied_on_for_a_while_and_no_longer() {
        let refusals = Refusals::new();
        let reliable = SECOND * 2;
        let span = Span {
            reliable,
            ..span(0, 1_000, 1_000)
        };
        refusals.note(bucket(1), SECOND * 10, span);
        assert_eq!(
            told(&refusals, 1, 0, at(2_999)),
            Some(SECOND * 8_001 / 1_000)
        );
        assert_eq!(told(&refusals, 1, 0, at(3_000)), None);
    }

    #[test]
    fn what_one_redis_told_is_not_true_of_another() {
        let refusals = Refusals::new();
        refusals.note(bucket(1), SECOND * 10, span(1, 0, 0));
        assert!(told(&refusals, 1, 1, at(1)).is_some());
        assert!(told(&refusals, 1, 2, at(1)).is_none());
        refusals.note(bucket(1), SECOND * 5, span(2, 0, 0));
        refusals.note(bucket(1), SECOND * 10, span(1, 0, 0));
        assert_eq!(told(&refusals, 1, 2, at(0)), Some(SECOND * 5));
    }

    #[test]
    fn it_holds_so_many_and_no_more() {
        let refusals = Refusals::new();
        let most = (SHARDS * ROOM) as u64;
        for number in 0..most * 3 {
            refusals.note(bucket(number), SECOND * 10, span(0, 0, 0));
        }
        let held: usize = refusals.0.iter().map(|it| it.lock().bounds.len()).sum();
        assert!(held as u64 <= most, "{held}");
        // The last to come is known, whoever had to go.
        assert!(told(&refusals, most * 3 - 1, 0, at(1)).is_some());
    }
}
