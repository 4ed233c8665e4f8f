//! Decides all limits of a request together.
//!
//! Every limit is checked at the same time, and all are charged if all admit the request, otherwise none. A limit that
//! delays admits the request if its slot is no further away than `max`; the request then waits for the latest of its
//! slots. A limit that rejects has a wait, and the wait of the request is the longest.

use std::cmp::Reverse;
use std::future::Future;
use std::num::NonZeroU32;
use std::time::Duration;

use smallvec::SmallVec;

use super::{BucketKey, Exceed, Limit, Reading};
use crate::clock::Moment;

/// The number of limits of a request up to which nothing is allocated.
pub(crate) const USUAL_LIMITS: usize = 4;

/// Tokens to take from one bucket.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The limit that the bucket belongs to.
    pub limit: &'a Limit,
    /// The bucket of the request under that limit.
    pub bucket: BucketKey,
    /// The number of tokens.
    pub cost: NonZeroU32,
}

/// The decision on the charges of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request is admitted.
    pub outcome: Outcome,
    /// The state of each bucket after the decision, in the order of the charges.
    pub readings: SmallVec<[Reading; USUAL_LIMITS]>,
}

impl Decision {
    /// Returns whether the request is admitted, at once or after a delay.
    pub fn is_admitted(&self) -> bool {
        matches!(self.outcome, Outcome::Admitted { .. })
    }

    /// Returns the indexes of the charges that rejected the request, longest wait first. Of equal waits, the first
    /// charge comes first.
    pub fn rejecting(&self) -> SmallVec<[usize; USUAL_LIMITS]> {
        let mut rejecting: SmallVec<[usize; USUAL_LIMITS]> = (0..self.readings.len())
            .filter(|&index| self.readings[index].rejects)
            .collect();
        rejecting.sort_by_key(|&index| Reverse(self.readings[index].next));
        rejecting
    }
}

/// The result of all charges of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChargeResult {
    /// The decision on the enforced charges.
    pub decision: Decision,
    /// Indexes of the watched charges that would have been rejected.
    pub exceeded: SmallVec<[usize; USUAL_LIMITS]>,
}

/// Whether a request is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All charges were made.
    Admitted {
        /// Delay of the request; zero unless a limit delays.
        delay: Duration,
    },
    /// No charge was made.
    Rejected {
        /// Time until all limits would admit the request.
        wait: Duration,
        /// Index of the charge with the longest wait; of equal waits, the first.
        by: usize,
    },
    /// The store cannot be queried, and a limit rejects requests then. No charge was made.
    Unavailable,
}

/// A store of buckets.
pub trait Buckets: Send + Sync + 'static {
    /// Makes all `enforced` charges in one atomic step, or none if any is rejected. Then makes each of the `watched`
    /// charges by itself; they do not change the outcome.
    fn charge(
        &self,
        enforced: &[Charge<'_>],
        watched: &[Charge<'_>],
    ) -> impl Future<Output = ChargeResult> + Send;

    /// Does the same as [`charge`](Self::charge) at once, or nothing and returns `None` if the buckets are not in memory.
    fn try_charge(&self, enforced: &[Charge<'_>], watched: &[Charge<'_>]) -> Option<ChargeResult>;
}

/// Decides `charges` at `now`, given the time at which each bucket is full. If the request is admitted, `full_at` holds
/// the new states, which the caller commits together. Otherwise it is unchanged, and each reading that rejects has the
/// wait of its own limit.
pub fn decide(charges: &[Charge<'_>], full_at: &mut [Moment], now: Moment) -> Decision {
    debug_assert_eq!(charges.len(), full_at.len());
    let mut taken: SmallVec<[Moment; USUAL_LIMITS]> = SmallVec::new();
    let mut waits: SmallVec<[Option<Duration>; USUAL_LIMITS]> = SmallVec::new();
    let mut delay = Duration::ZERO;
    for (charge, &full_at) in charges.iter().zip(full_at.iter()) {
        match take(charge, full_at, now) {
            Ok((after, wait)) => {
                delay = delay.max(wait);
                taken.push(after);
                waits.push(None);
            }
            Err(wait) => {
                taken.push(full_at);
                waits.push(Some(wait));
            }
        }
    }

    let longest = waits
        .iter()
        .enumerate()
        .filter_map(|(by, wait)| wait.map(|wait| (wait, by)))
        .min_by_key(|&(wait, _)| Reverse(wait));
    let outcome = if let Some((wait, by)) = longest {
        Outcome::Rejected { wait, by }
    } else {
        full_at.copy_from_slice(&taken);
        Outcome::Admitted { delay }
    };

    let readings = charges
        .iter()
        .zip(full_at.iter())
        .zip(&waits)
        .map(|((charge, &full_at), wait)| {
            let reading = charge.limit.quota.read(full_at, now);
            Reading {
                next: wait.unwrap_or(reading.next),
                rejects: wait.is_some(),
                ..reading
            }
        })
        .collect();
    Decision { outcome, readings }
}

/// Limits the debt of a bucket to what `limit` allows: an empty bucket, charged for a slot as far away as the
/// limit delays requests.
///
/// A bucket charged under another quota before a restart can owe more. The store commits the limited debt also
/// if it rejects the request: otherwise a loosened limit would reject until the old debt has run down, and
/// every wait it states would be too short.
pub(crate) fn limit_debt(limit: &Limit, full_at: Moment, now: Moment) -> Moment {
    let empty = now.after(limit.quota.refill());
    full_at.min(match limit.exceed {
        Exceed::Reject => empty,
        Exceed::Delay { max } => empty.after(max),
    })
}

/// Takes the tokens of one charge. Returns the state of the bucket after it and the delay of the request, or as an
/// error the wait.
fn take(charge: &Charge<'_>, full_at: Moment, now: Moment) -> Result<(Moment, Duration), Duration> {
    let quota = charge.limit.quota;
    match (quota.take(full_at, now, charge.cost), charge.limit.exceed) {
        (Ok(after), _) => Ok((after, Duration::ZERO)),
        (Err(wait), Exceed::Delay { max }) if wait <= max => {
            let after = quota.take(full_at, now.after(wait), charge.cost)?;
            Ok((after, wait))
        }
        // The limit admits the request once its slot is no further away than `max`.
        (Err(wait), Exceed::Delay { max }) => Err(wait.saturating_sub(max)),
        (Err(wait), Exceed::Reject) => Err(wait),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::throttle::{KeyPart, LimitId, Mode, OnStoreError, Quota, RetryAfterForm};

    const SECOND: Duration = Duration::from_secs(1);

    fn limit(interval: Duration, burst: u32, exceed: Exceed) -> Limit {
        Limit {
            id: LimitId(0),
            name: "device".into(),
            quota: Quota::new(NonZeroU32::MIN, interval, burst).unwrap(),
            key: Box::new([KeyPart::Client]),
            exceed,
            mode: Mode::Enforce,
            retry_after: RetryAfterForm::Seconds,
            on_store_error: OnStoreError::Local,
        }
    }

    fn delaying(interval: Duration, burst: u32, max: Duration) -> Limit {
        limit(interval, burst, Exceed::Delay { max })
    }

    fn charges<const N: usize>(limits: [&Limit; N]) -> [Charge<'_>; N] {
        limits.map(|limit| Charge {
            limit,
            bucket: BucketKey { high: 0, low: 0 },
            cost: NonZeroU32::MIN,
        })
    }

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_request_without_limits_passes_at_once() {
        let decision = decide(&[], &mut [], at(5));
        let delay = Duration::ZERO;
        assert_eq!(decision.outcome, Outcome::Admitted { delay });
        assert!(decision.readings.is_empty());
    }

    #[test]
    fn all_limits_admit_or_none_is_charged() {
        let (wide, tight) = (
            limit(SECOND, 3, Exceed::Reject),
            limit(SECOND, 0, Exceed::Reject),
        );
        let mut full_at = [at(0), at(1_400)];
        let decision = decide(&charges([&wide, &tight]), &mut full_at, at(1_000));
        let wait = millis(400);
        assert_eq!(decision.outcome, Outcome::Rejected { wait, by: 1 });
        assert_eq!(full_at, [at(0), at(1_400)]);

        let decision = decide(&charges([&wide, &tight]), &mut full_at, at(1_400));
        assert!(matches!(decision.outcome, Outcome::Admitted { .. }));
        assert_eq!(full_at, [at(2_400), at(2_400)]);
    }

    #[test]
    fn the_longest_wait_is_the_one_named() {
        let limits = [1, 3, 2].map(|seconds| limit(SECOND * seconds, 0, Exceed::Reject));
        let mut full_at = [at(1_000), at(3_000), at(2_000)];
        let decision = decide(&charges(limits.each_ref()), &mut full_at, at(0));
        let wait = SECOND * 3;
        assert_eq!(decision.outcome, Outcome::Rejected { wait, by: 1 });
        let told: Vec<_> = decision
            .readings
            .iter()
            .map(|reading| reading.next)
            .collect();
        assert_eq!(told, [SECOND, SECOND * 3, SECOND * 2]);
        assert_eq!(decision.rejecting()[..], [1, 2, 0]);
    }

    #[test]
    fn of_equal_waits_the_first_limit_is_named() {
        let limits = [2, 2, 1].map(|seconds| limit(SECOND * seconds, 0, Exceed::Reject));
        let mut full_at = [at(2_000), at(2_000), at(0)];
        let decision = decide(&charges(limits.each_ref()), &mut full_at, at(0));
        let wait = SECOND * 2;
        assert_eq!(decision.outcome, Outcome::Rejected { wait, by: 0 });
        assert_eq!(decision.rejecting()[..], [0, 1]);
        let mut full_at = [at(0); 3];
        let decision = decide(&charges(limits.each_ref()), &mut full_at, at(0));
        assert!(decision.is_admitted() && decision.rejecting().is_empty());
    }

    #[test]
    fn a_refusal_tells_of_a_limit_that_would_have_admitted_what_it_holds() {
        let (wide, tight) = (
            limit(SECOND, 3, Exceed::Reject),
            limit(SECOND, 0, Exceed::Reject),
        );
        let mut full_at = [at(1_500), at(1_000)];
        let decision = decide(&charges([&wide, &tight]), &mut full_at, at(0));
        let [wide, tight] = decision.readings[..] else {
            panic!("one reading a limit")
        };
        assert_eq!((wide.remaining, wide.next), (2, millis(500)));
        assert_eq!((tight.remaining, tight.next), (0, SECOND));
        assert!(tight.rejects && !wide.rejects);
    }

    #[test]
    fn beyond_the_burst_a_delaying_limit_hands_out_slots_in_order() {
        let outflow = delaying(SECOND, 0, SECOND * 2);
        let mut full_at = [at(0)];
        let delays: Vec<_> = (0..4)
            .map(|_| decide(&charges([&outflow]), &mut full_at, at(0)).outcome)
            .collect();
        let slot = |seconds| Outcome::Admitted {
            delay: SECOND * seconds,
        };
        // The slot three seconds away is out of reach until it is two seconds away.
        let refused = Outcome::Rejected {
            wait: SECOND,
            by: 0,
        };
        assert_eq!(delays, [slot(0), slot(1), slot(2), refused]);
        assert_eq!(
            decide(&charges([&outflow]), &mut full_at, at(1_000)).outcome,
            slot(2)
        );
    }

    #[test]
    fn the_latest_slot_of_several_counts() {
        let limits = [1, 3, 2].map(|seconds| delaying(SECOND * seconds, 0, SECOND * 10));
        let mut full_at = [at(1_000), at(3_000), at(2_000)];
        let decision = decide(&charges(limits.each_ref()), &mut full_at, at(500));
        let delay = millis(2_500);
        assert_eq!(decision.outcome, Outcome::Admitted { delay });
        assert_eq!(full_at, [at(2_000), at(6_000), at(4_000)]);
    }

    #[test]
    fn a_debt_from_a_slower_quota_is_that_of_an_empty_bucket() {
        let (rejecting, outflow) = (
            limit(SECOND, 3, Exceed::Reject),
            delaying(SECOND, 3, SECOND * 2),
        );
        for (limit, wait) in [(&rejecting, SECOND), (&outflow, SECOND)] {
            let mut full_at = [limit_debt(limit, at(500_000), at(0))];
            let decision = decide(&charges([limit]), &mut full_at, at(0));
            assert_eq!(decision.outcome, Outcome::Rejected { wait, by: 0 });
            assert_eq!(decision.readings[0].remaining, 0);
        }
    }

    #[test]
    fn slots_that_a_delaying_limit_gave_away_are_no_excess_debt() {
        let outflow = delaying(SECOND, 0, SECOND * 5);
        let mut full_at = [at(0)];
        for slot in 0..6 {
            let decision = decide(&charges([&outflow]), &mut full_at, at(0));
            let delay = SECOND * slot;
            assert_eq!(decision.outcome, Outcome::Admitted { delay });
        }
        assert_eq!(full_at, [at(6_000)]);
        assert_eq!(limit_debt(&outflow, full_at[0], at(0)), at(6_000));
    }

    #[test]
    fn a_limit_that_refuses_spends_no_slot_of_one_that_delays() {
        let (outflow, tight) = (
            delaying(SECOND, 0, SECOND * 10),
            limit(SECOND, 0, Exceed::Reject),
        );
        let mut full_at = [at(5_000), at(1_000)];
        let decision = decide(&charges([&outflow, &tight]), &mut full_at, at(0));
        let wait = SECOND;
        assert_eq!(decision.outcome, Outcome::Rejected { wait, by: 1 });
        assert_eq!(full_at, [at(5_000), at(1_000)]);
    }

    #[test]
    fn a_cost_no_bucket_can_hold_waits_forever_whether_refused_or_delayed() {
        for exceed in [Exceed::Reject, Exceed::Delay { max: Duration::MAX }] {
            let small = limit(SECOND, 1, exceed);
            let mut charges = charges([&small]);
            charges[0].cost = NonZeroU32::new(3).unwrap();
            let decision = decide(&charges, &mut [at(0)], at(0));
            let wait = Duration::MAX;
            assert_eq!(decision.outcome, Outcome::Rejected { wait, by: 0 });
        }
    }
}
