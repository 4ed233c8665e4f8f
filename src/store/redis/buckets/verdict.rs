//! The decision on a request for which Redis returned the state of all buckets, of some, or of none.
//!
//! A limit without a state from Redis is treated as its `on_store_error` says. All states decide together, those of
//! Redis and those of local buckets, so that the wait of a rejection is the longest of all. Only if they admit are the
//! local buckets charged, all or none: a rejected request costs nothing.

use smallvec::SmallVec;

use super::Beside;
use crate::clock::Moment;
use crate::throttle::decision::USUAL_LIMITS;
use crate::throttle::{Charge, Decision, OnStoreError, Outcome, decide};

/// The times at which the buckets of a request are full, where Redis returned them.
pub(super) type States = SmallVec<[Option<Moment>; USUAL_LIMITS]>;

/// Some of a request's charges, and their places among all of them.
#[derive(Default)]
struct Picked<'a> {
    charges: SmallVec<[Charge<'a>; USUAL_LIMITS]>,
    places: SmallVec<[usize; USUAL_LIMITS]>,
}

impl<'a> Picked<'a> {
    fn push(&mut self, place: usize, charge: &Charge<'a>) {
        self.charges.push(*charge);
        self.places.push(place);
    }

    /// Copies the readings of these buckets into `verdict`, and their outcome if that is admitted so far.
    fn tell(&self, decided: &Decision, verdict: &mut Decision) {
        for (&place, reading) in self.places.iter().zip(&decided.readings) {
            verdict.readings[place] = *reading;
        }
        verdict.outcome = match (verdict.outcome, decided.outcome) {
            (Outcome::Admitted { delay }, Outcome::Admitted { delay: other }) => {
                let delay = delay.max(other);
                Outcome::Admitted { delay }
            }
            (Outcome::Admitted { .. }, Outcome::Rejected { wait, by }) => {
                let by = self.places[by];
                Outcome::Rejected { wait, by }
            }
            (Outcome::Admitted { .. }, Outcome::Unavailable) => Outcome::Unavailable,
            (decided, _) => decided,
        };
    }
}

/// Decides on charges that are made together. If it admits, `states` become those after the charges. A limit with
/// `on_store_error = "open"` and without a state reads as full.
pub(super) fn judge(
    charges: &[Charge<'_>],
    states: &mut States,
    now: Moment,
    beside: &Beside,
) -> Decision {
    let (mut counted, mut local) = (Picked::default(), Picked::default());
    let mut full_at: SmallVec<[Moment; USUAL_LIMITS]> = SmallVec::new();
    for (place, charge) in charges.iter().enumerate() {
        let state = match (states[place], charge.limit.on_store_error) {
            (Some(state), _) => state,
            (None, OnStoreError::Local) => {
                local.push(place, charge);
                beside.local.full_at(charge.limit.id, charge.bucket).0
            }
            (None, OnStoreError::Open) => continue,
            (None, OnStoreError::Closed) => {
                return Decision {
                    outcome: Outcome::Unavailable,
                    readings: SmallVec::new(),
                };
            }
        };
        counted.push(place, charge);
        full_at.push(state);
    }

    // The decision on no charges, with the reading of a full bucket for each limit.
    let mut verdict = decide(&[], &mut [], now);
    let full = |charge: &Charge<'_>| charge.limit.quota.read(Moment::default(), now);
    verdict.readings = charges.iter().map(full).collect();

    counted.tell(&decide(&counted.charges, &mut full_at, now), &mut verdict);
    if verdict.is_admitted() && !local.charges.is_empty() {
        // Another request may have charged them since their states were read: this decides.
        local.tell(&beside.charge_locally(&local.charges), &mut verdict);
    }
    if verdict.is_admitted() {
        for (&place, &state) in counted.places.iter().zip(&full_at) {
            if let Some(before) = &mut states[place] {
                *before = state;
            }
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::clock::Clock;
    use crate::store::memory::MemoryBuckets;
    use crate::throttle::{BucketKey, Limit, Quota};

    const SECOND: Duration = Duration::from_secs(1);

    fn limit(interval: Duration) -> Limit {
        let quota = Quota::new(NonZeroU32::MIN, interval, 0).unwrap();
        Limit::per_client("device", quota)
    }

    fn charge(limit: &Limit, number: u64) -> Charge<'_> {
        Charge {
            limit,
            bucket: BucketKey {
                high: number,
                low: number,
            },
            cost: NonZeroU32::MIN,
        }
    }

    /// On a cluster, one slot can respond and another be late.
    #[test]
    fn a_rejection_waits_for_a_local_bucket_that_takes_longer_than_the_one_in_redis() {
        let clock = Clock::virtual_from(SystemTime::UNIX_EPOCH);
        let beside = Beside::new(MemoryBuckets::new(100, clock.clone()), clock.clone());
        let (short, long) = (limit(SECOND * 5), limit(SECOND * 60));
        let charges = [charge(&short, 1), charge(&long, 2)];
        assert!(beside.charge_locally(&charges[1..]).is_admitted());
        let rejecting = clock.now().after(SECOND * 5);
        let mut states = States::from_slice(&[Some(rejecting), None]);
        let verdict = judge(&charges, &mut states, clock.now(), &beside);
        let (wait, by) = (SECOND * 60, 1);
        assert_eq!(verdict.outcome, Outcome::Rejected { wait, by });
        let next: Vec<_> = verdict.readings.iter().map(|it| it.next).collect();
        assert_eq!(next, [SECOND * 5, SECOND * 60]);

        // Nothing was charged: the local bucket admits as soon as it would have without this request.
        clock.advance(SECOND * 60);
        let mut states = States::from_slice(&[Some(Moment::default()), None]);
        assert!(judge(&charges, &mut states, clock.now(), &beside).is_admitted());
        assert_eq!(states[..], [Some(clock.now().after(SECOND * 5)), None]);
    }
}
