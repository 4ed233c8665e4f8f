//! Decides requests by the bucket states that Redis returned, or by local buckets if it did not return all of them.
//!
//! Without Redis, `on_store_error` of each limit applies. A rejected request costs nothing.
//!
//! The next request for a bucket that reaches Redis reports the local debt (the time until the bucket is full), and
//! Redis continues with the larger debt. So a gateway never admits more than the quota, however often Redis fails. Local
//! charges are not reported all together when Redis is back, because requests would be decided before that is complete.
//! The debts of two gateways without Redis do not add up.

use std::collections::HashMap;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::RequestCharges;
use crate::clock::{Clock, Moment};
use crate::request::hash_keys::BuildIdentityHasher;
use crate::store::memory::MemoryBuckets;
use crate::throttle::decision::{USUAL_LIMITS, full_at_under};
use crate::throttle::{
    BucketKey, BucketState, Charge, ChargeOutcome, ChargeResult, Decision, Limit, OnStoreError,
    decide,
};

/// When each bucket of a request becomes full.
pub(super) type States = SmallVec<[Moment; USUAL_LIMITS]>;

#[derive(Debug)]
pub(super) struct LocalFallback {
    pub(super) local: MemoryBuckets,
    clock: Clock,
    /// Empty while Redis responds.
    unreported: Mutex<HashMap<BucketKey, BucketState, BuildIdentityHasher>>,
}

impl LocalFallback {
    pub(super) fn new(max_clients: usize, clock: Clock) -> Self {
        Self {
            local: MemoryBuckets::new(max_clients, clock.clone()),
            clock,
            unreported: Mutex::default(),
        }
    }

    pub(super) fn decide(&self, charges: &RequestCharges<'_>, now: Moment) -> ChargeResult {
        let decision = self.enforce(charges.enforced(), now);
        // Shadow limits are charged locally whatever their `on_store_error`, because they reject nothing.
        let shadow = charges.shadow().chunks(1);
        with_shadow(decision, shadow.map(|charge| self.charge(charge)))
    }

    /// A limit with `on_store_error = "open"` reads as a full bucket.
    fn enforce(&self, charges: &[Charge<'_>], now: Moment) -> Decision {
        let applies = |charge: &Charge<'_>, setting| charge.limit.on_store_error == setting;
        if (charges.iter()).any(|charge| applies(charge, OnStoreError::Closed)) {
            return Decision {
                outcome: ChargeOutcome::Unavailable,
                readings: SmallVec::new(),
            };
        }
        let local =
            (0..charges.len()).filter(|&index| applies(&charges[index], OnStoreError::Local));
        let local: SmallVec<[usize; USUAL_LIMITS]> = local.collect();
        let taken: SmallVec<[Charge<'_>; USUAL_LIMITS]> =
            local.iter().map(|&index| charges[index]).collect();
        let Decision { outcome, readings } = self.charge(&taken);
        let full = |charge: &Charge<'_>| charge.limit.quota.read(Moment::default(), now);
        let mut decision = Decision {
            outcome: match outcome {
                ChargeOutcome::Rejected { wait, by } => {
                    let by = local[by];
                    ChargeOutcome::Rejected { wait, by }
                }
                other => other,
            },
            readings: charges.iter().map(full).collect(),
        };
        for (index, reading) in local.into_iter().zip(readings) {
            decision.readings[index] = reading;
        }
        decision
    }

    /// A charge beyond `max_clients` buckets is not recorded as unreported, because it was made to an overflow bucket
    /// that several clients share.
    fn charge(&self, charges: &[Charge<'_>]) -> Decision {
        let decision = self.local.charge_now(charges);
        if decision.is_admitted() {
            let now = self.clock.now();
            for charge in charges {
                let (full_at, is_tracked) = self.local.full_at(charge.limit, charge.bucket);
                if is_tracked {
                    self.add(charge, full_at, now);
                }
            }
        }
        decision
    }

    /// The bucket is full if all charges are reported.
    pub(super) fn unreported(&self, charge: &Charge<'_>) -> BucketState {
        let unreported = self.unreported.lock();
        unreported.get(&charge.bucket).copied().unwrap_or_default()
    }

    /// If the recorded state differs from `reported`, a newer charge is still unreported.
    pub(super) fn reported(&self, charge: &Charge<'_>, reported: BucketState) {
        let mut unreported = self.unreported.lock();
        if unreported.get(&charge.bucket) == Some(&reported) {
            unreported.remove(&charge.bucket);
        }
    }

    pub(super) fn refill(&self, limit: &Limit, bucket: BucketKey) {
        self.local.refill(limit, bucket);
        self.unreported.lock().remove(&bucket);
    }

    /// Full buckets are removed before the table grows. All others are also in the table of local buckets, so
    /// `max_clients` bounds their number.
    fn add(&self, charge: &Charge<'_>, full_at: Moment, now: Moment) {
        let mut unreported = self.unreported.lock();
        if unreported.len() == unreported.capacity() {
            unreported.retain(|_, state| state.full_at > now);
            // The capacity doubles, so that the average cost of these removals is constant.
            let additional = unreported.len();
            unreported.reserve(additional);
        }
        let known = unreported.entry(charge.bucket).or_default();
        let full_at = full_at.max(full_at_under(charge.limit, *known, now));
        *known = charge.limit.quota.state(full_at);
    }
}

/// Decides by the `states` in Redis, which become those after the decision.
pub(super) fn decide_by(
    states: &mut States,
    charges: &RequestCharges<'_>,
    now: Moment,
) -> ChargeResult {
    let (enforced, shadow) = states.split_at_mut(charges.enforced);
    let decision = decide(charges.enforced(), enforced, now);
    let shadow = charges.shadow().chunks(1).zip(shadow.chunks_mut(1));
    let shadow = shadow.map(|(charge, state)| decide(charge, state, now));
    with_shadow(decision, shadow)
}

fn with_shadow(decision: Decision, shadow: impl Iterator<Item = Decision>) -> ChargeResult {
    let exceeded = shadow
        .enumerate()
        .filter(|(_, decision)| !decision.is_admitted());
    ChargeResult {
        decision,
        exceeded: exceeded.map(|(index, _)| index).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::throttle::{Limit, Quota};

    const SECOND: Duration = Duration::from_secs(1);

    fn fallback() -> LocalFallback {
        LocalFallback::new(100, Clock::virtual_from(SystemTime::UNIX_EPOCH))
    }

    fn bucket(high: u64) -> BucketKey {
        BucketKey { high, low: 7 }
    }

    const fn at(nanos: u64) -> Moment {
        Moment::from_nanos(nanos)
    }

    fn limit(interval: Duration) -> Limit {
        let quota = Quota::new(NonZeroU32::MIN, interval, 0).unwrap();
        Limit::per_client("device", quota)
    }

    fn charge(limit: &Limit, number: u64) -> Charge<'_> {
        Charge {
            limit,
            bucket: bucket(number),
            cost: NonZeroU32::MIN,
        }
    }

    #[test]
    fn a_charge_made_after_the_report_stays_unreported() {
        let fallback = fallback();
        let limit = limit(SECOND);
        let one = charge(&limit, 1);
        assert_eq!(fallback.unreported(&one).full_at, at(0));
        fallback.add(&one, at(100), at(0));
        let reported = fallback.unreported(&one);
        fallback.add(&one, at(150), at(10));
        fallback.reported(&one, reported);
        let later = fallback.unreported(&one);
        assert_eq!(later.full_at, at(150));
        fallback.reported(&one, later);
        assert_eq!(fallback.unreported(&one).full_at, at(0));
    }

    #[test]
    fn full_buckets_are_removed_before_the_table_grows_and_others_are_not() {
        let fallback = fallback();
        let limit = limit(SECOND);
        fallback.add(&charge(&limit, u64::MAX), at(u64::MAX), at(0));
        for number in 0..100_000 {
            fallback.add(&charge(&limit, number), at(number + 10), at(number));
        }
        let held = fallback.unreported.lock().len();
        assert!(held < 100, "{held}");
        let last = fallback.unreported(&charge(&limit, u64::MAX));
        assert_eq!(last.full_at, at(u64::MAX));
    }
}
