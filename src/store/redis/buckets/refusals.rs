//! Clients known to be refused, without asking Redis.
//!
//! A bucket that refused cannot admit before a moment that is known when it refuses: charges only move it
//! away. So whoever comes back too early, and those are the ones who come often, is refused here. What is
//! remembered of a bucket is when it will be full *no sooner* than, which decides, and *no later* than if
//! nobody charges it again, which is what the client is told: a `Retry-After` must not be too short. Both
//! are on this gateway's monotonic clock. The first counts from before Redis was asked and is a little
//! shorter than Redis said, as its clock may be the faster one; so nobody is refused here whom Redis would
//! admit. What is between the two is asked of Redis.
//!
//! All of it is true of one Redis: one that was restarted empty admits everybody. And it is only a cache:
//! where there is no room, it is emptied.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::Wanted;
use crate::clock::Moment;
use crate::store::memory::TakenAsHash;
use crate::throttle::decision::USUAL_LIMITS;
use crate::throttle::{BucketKey, Charge, Judgement, Outcome, Verdict, decide};

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
    bounds: HashMap<BucketKey, Bounds, TakenAsHash>,
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

    /// What becomes of a request, if that is certain: its enforced charges are refused (or there are none),
    /// and so is every watched one, as one that is not has to be made.
    pub(super) fn judge(&self, wanted: &Wanted<'_>, epoch: u64, now: Moment) -> Option<Judgement> {
        let verdict = if wanted.enforced.is_empty() {
            decide(&[], &mut [], now)
        } else {
            self.refuse(wanted.enforced, epoch, now)?
        };
        let mut watched = wanted.watched.iter();
        let all = watched.all(|it| self.refuse(std::slice::from_ref(it), epoch, now).is_some());
        all.then(|| Judgement {
            verdict,
            exceeded: (0..wanted.watched.len()).collect(),
        })
    }

    /// The refusal of `charges`, if it is certain.
    fn refuse(&self, charges: &[Charge<'_>], epoch: u64, now: Moment) -> Option<Verdict> {
        let bounds: SmallVec<[Bounds; USUAL_LIMITS]> = charges
            .iter()
            .map(|charge| self.bounds(charge.bucket, epoch, now))
            .collect();
        let refused = |full_at: fn(&Bounds) -> Moment| {
            let mut full_at: SmallVec<[Moment; USUAL_LIMITS]> =
                bounds.iter().map(full_at).collect();
            let verdict = decide(charges, &mut full_at, now);
            matches!(verdict.outcome, Outcome::Refused { .. }).then_some(verdict)
        };
        refused(|it| it.no_sooner)?;
        refused(|it| it.no_later)
    }

    fn bounds(&self, bucket: BucketKey, epoch: u64, now: Moment) -> Bounds {
        let shard = self.shard(bucket).lock();
        let known = shard.bounds.get(&bucket);
        known
            .filter(|known| shard.epoch == epoch && now < known.until)
            .copied()
            .unwrap_or(Bounds {
                no_sooner: Moment::default(),
                no_later: Moment::default(),
                until: Moment::default(),
            })
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
    use std::num::NonZeroU32;

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
        match refusals.judge(&wanted, epoch, now)?.verdict.outcome {
            Outcome::Refused { wait, .. } => Some(wait),
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
