//! Decides requests by the bucket states that Redis returned. Local buckets replace the states that Redis did not
//! return.
//!
//! If Redis returns no state for a rate limit, `on_store_error` of the limit applies. The states of Redis and those of
//! local buckets decide together, so the wait of a rejection is the longest of all. If all of them admit, the local
//! buckets are charged, all or none. A rejected request costs nothing.
//!
//! The debt of a bucket is the time until it is full. The next request for the same bucket that reaches Redis reports
//! the local debt. Redis then continues with the larger of the reported debt and its own debt. So a gateway never
//! admits more than the quota, however often Redis fails in between. The gateway does not report all local charges
//! together when Redis responds again, because requests would be decided before such a report is complete. If two
//! gateways charge one bucket without Redis, their debts do not add up, because Redis uses only the larger one.

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

/// Number of shards of the table of unreported charges. Each shard has its own lock.
const SHARDS: usize = 64;

/// For each bucket of a request, the time at which the bucket becomes full, or `None` if Redis returned no state for
/// it.
pub(super) type States = SmallVec<[Option<Moment>; USUAL_LIMITS]>;

/// Buckets in memory, and their charges that have not been reported to Redis.
#[derive(Debug)]
pub(super) struct LocalFallback {
    pub(super) local: MemoryBuckets,
    clock: Clock,
    unreported: Box<[Mutex<Unreported>]>,
}

/// Buckets with unreported charges.
type Unreported = HashMap<BucketKey, BucketState, BuildIdentityHasher>;

impl LocalFallback {
    pub(super) fn new(max_clients: usize, clock: Clock) -> Self {
        Self {
            local: MemoryBuckets::new(max_clients, clock.clone()),
            clock,
            unreported: (0..SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    /// Decides all charges of a request. Also returns the bucket states after the decision.
    pub(super) fn decide_all(
        &self,
        charges: &RequestCharges<'_>,
        before: &States,
        now: Moment,
    ) -> (ChargeResult, States) {
        let mut after = before.clone();
        let (enforced, shadow) = after.split_at_mut(charges.enforced);
        let decision = self.decide(charges.enforced(), enforced, now);
        let mut exceeded = SmallVec::new();
        for (index, (charge, state)) in charges.shadow().iter().zip(shadow).enumerate() {
            let charge = std::slice::from_ref(charge);
            // A shadow limit without a state is charged locally, because `on_store_error` does not apply to a limit
            // that rejects nothing.
            let decision = match state {
                Some(_) => self.decide(charge, std::slice::from_mut(state), now),
                None => self.charge(charge),
            };
            if !decision.is_admitted() {
                exceeded.push(index);
            }
        }
        (ChargeResult { decision, exceeded }, after)
    }

    /// Decides whether all `charges` are made or none. If the decision admits, `states` become the states after the
    /// charges. If a limit has `on_store_error = "open"` and no state, its reading is that of a full bucket.
    fn decide(
        &self,
        charges: &[Charge<'_>],
        states: &mut [Option<Moment>],
        now: Moment,
    ) -> Decision {
        let (mut counted, mut local) = (Subset::default(), Subset::default());
        let mut full_at: SmallVec<[Moment; USUAL_LIMITS]> = SmallVec::new();
        for (index, charge) in charges.iter().enumerate() {
            let state = match (states[index], charge.limit.on_store_error) {
                (Some(state), _) => state,
                (None, OnStoreError::Local) => {
                    local.push(index, charge);
                    self.local.full_at(charge.limit, charge.bucket).0
                }
                (None, OnStoreError::Open) => continue,
                (None, OnStoreError::Closed) => {
                    return Decision {
                        outcome: ChargeOutcome::Unavailable,
                        readings: SmallVec::new(),
                    };
                }
            };
            counted.push(index, charge);
            full_at.push(state);
        }

        // Initially, the decision admits the request, and its `readings` show a full bucket for each rate limit. The
        // results of the charges are merged into the decision below.
        let mut decision = decide(&[], &mut [], now);
        let full = |charge: &Charge<'_>| charge.limit.quota.read(Moment::default(), now);
        decision.readings = charges.iter().map(full).collect();

        counted.merge(&decide(&counted.charges, &mut full_at, now), &mut decision);
        if decision.is_admitted() && !local.charges.is_empty() {
            // Charging the local buckets can still reject the request, because another request can have charged them
            // since they were read.
            local.merge(&self.charge(&local.charges), &mut decision);
        }
        if decision.is_admitted() {
            for (&index, &state) in counted.indexes.iter().zip(&full_at) {
                if let Some(before) = &mut states[index] {
                    *before = state;
                }
            }
        }
        decision
    }

    /// Makes all `charges` in the local buckets or none, and records them as unreported.
    ///
    /// A charge beyond `max_clients` buckets is not recorded, because an overflow bucket that several clients share
    /// receives the charge.
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

    /// Returns the state of the bucket of `charge` according to its unreported charges. It is full if all charges are
    /// reported.
    pub(super) fn unreported(&self, charge: &Charge<'_>) -> BucketState {
        let shard = self.shard(charge.bucket).lock();
        shard.get(&charge.bucket).copied().unwrap_or_default()
    }

    /// Records that this gateway has reported the state `reported` to Redis. If the recorded state differs, a newer
    /// charge is still unreported.
    pub(super) fn reported(&self, charge: &Charge<'_>, reported: BucketState) {
        let mut shard = self.shard(charge.bucket).lock();
        if shard.get(&charge.bucket) == Some(&reported) {
            shard.remove(&charge.bucket);
        }
    }

    pub(super) fn refill(&self, limit: &Limit, bucket: BucketKey) {
        self.local.refill(limit, bucket);
        self.shard(bucket).lock().remove(&bucket);
    }

    /// Records that the bucket of `charge` was charged at `now` without Redis, and becomes full at `full_at`.
    ///
    /// Buckets that are full at `now` are removed before a shard grows. All other buckets are also in the table of
    /// local buckets. `max_clients` bounds that table, and therefore the number of buckets recorded here.
    fn add(&self, charge: &Charge<'_>, full_at: Moment, now: Moment) {
        let mut shard = self.shard(charge.bucket).lock();
        if shard.len() == shard.capacity() {
            shard.retain(|_, state| state.full_at > now);
            // The capacity doubles, so that the average cost of these removals per charge is constant.
            let additional = shard.len();
            shard.reserve(additional);
        }
        let known = shard.entry(charge.bucket).or_default();
        let full_at = full_at.max(full_at_under(charge.limit, *known, now));
        *known = charge.limit.quota.state(full_at);
    }

    fn shard(&self, bucket: BucketKey) -> &Mutex<Unreported> {
        // The low half of the hash selects the shard, because the high half is the hash inside the shard.
        let shard = bucket.low % SHARDS as u64;
        &self.unreported[usize::try_from(shard).expect("SHARDS fits a usize")]
    }
}

/// Some charges of a request, with their indexes in the request.
#[derive(Default)]
struct Subset<'a> {
    charges: SmallVec<[Charge<'a>; USUAL_LIMITS]>,
    indexes: SmallVec<[usize; USUAL_LIMITS]>,
}

impl<'a> Subset<'a> {
    fn push(&mut self, index: usize, charge: &Charge<'a>) {
        self.charges.push(*charge);
        self.indexes.push(index);
    }

    /// Copies the readings of `decided` into `decision`. Also copies the outcome, unless `decision` already rejects.
    fn merge(&self, decided: &Decision, decision: &mut Decision) {
        for (&index, reading) in self.indexes.iter().zip(&decided.readings) {
            decision.readings[index] = *reading;
        }
        decision.outcome = match (decision.outcome, decided.outcome) {
            (ChargeOutcome::Admitted { delay }, ChargeOutcome::Admitted { delay: other }) => {
                let delay = delay.max(other);
                ChargeOutcome::Admitted { delay }
            }
            (ChargeOutcome::Admitted { .. }, ChargeOutcome::Rejected { wait, by }) => {
                let by = self.indexes[by];
                ChargeOutcome::Rejected { wait, by }
            }
            (ChargeOutcome::Admitted { .. }, ChargeOutcome::Unavailable) => {
                ChargeOutcome::Unavailable
            }
            (rejected, _) => rejected,
        };
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
    fn full_buckets_are_removed_before_a_shard_grows_and_others_are_not() {
        let fallback = fallback();
        let limit = limit(SECOND);
        fallback.add(&charge(&limit, u64::MAX), at(u64::MAX), at(0));
        for number in 0..100_000 {
            fallback.add(&charge(&limit, number), at(number + 10), at(number));
        }
        let held = fallback.shard(bucket(0)).lock().len();
        assert!(held < 100, "{held}");
        let last = fallback.unreported(&charge(&limit, u64::MAX));
        assert_eq!(last.full_at, at(u64::MAX));
    }

    /// On a Redis Cluster, one rate limit can use Redis while another uses its local bucket: the server of one slot
    /// responds, and the server of another slot times out.
    #[test]
    fn a_rejection_waits_for_a_local_bucket_that_takes_longer_than_the_one_in_redis() {
        let fallback = fallback();
        let clock = fallback.clock.clone();
        let (short, long) = (limit(SECOND * 5), limit(SECOND * 60));
        let charges = [charge(&short, 1), charge(&long, 2)];
        assert!(fallback.charge(&charges[1..]).is_admitted());
        let rejecting = clock.now().after(SECOND * 5);
        let mut states = [Some(rejecting), None];
        let decision = fallback.decide(&charges, &mut states, clock.now());
        let (wait, by) = (SECOND * 60, 1);
        assert_eq!(decision.outcome, ChargeOutcome::Rejected { wait, by });
        let next: Vec<_> = decision.readings.iter().map(|it| it.next).collect();
        assert_eq!(next, [SECOND * 5, SECOND * 60]);

        // The rejected request took no tokens, so the local bucket is full again after 60 s and admits the next
        // request.
        clock.advance(SECOND * 60);
        let mut states = [Some(Moment::default()), None];
        let decision = fallback.decide(&charges, &mut states, clock.now());
        assert!(decision.is_admitted());
        assert_eq!(states, [Some(clock.now().after(SECOND * 5)), None]);
    }
}
