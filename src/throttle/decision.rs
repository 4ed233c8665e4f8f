//! Decision on a request that several limits apply to.
//!
//! All limits are evaluated at the same time. If all admit the request, all are charged, otherwise none. A limit that
//! delays requests assigns the request a slot, and admits it if the slot is at most `max` away. The request waits for
//! the latest of its slots. If limits reject the request, its wait is the longest of their waits.

use std::cmp::Reverse;
use std::future::Future;
use std::num::NonZeroU32;
use std::time::Duration;

use smallvec::SmallVec;

use super::{BucketKey, BucketReading, Exceed, Limit};
use crate::clock::Moment;

/// Number of limits of a request that are stored without an allocation.
pub(crate) const USUAL_LIMITS: usize = 4;

/// Number of tokens to take from one bucket.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// Limit that the bucket belongs to.
    pub limit: &'a Limit,
    /// Bucket of the request for this limit.
    pub bucket: BucketKey,
    /// Number of tokens to take.
    pub cost: NonZeroU32,
}

/// Decision on the charges of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request is admitted.
    pub outcome: ChargeOutcome,
    /// State of each bucket after the decision, in the order of the charges.
    pub readings: SmallVec<[BucketReading; USUAL_LIMITS]>,
}

impl Decision {
    /// Returns whether the request is admitted, immediately or after a delay.
    pub fn is_admitted(&self) -> bool {
        matches!(self.outcome, ChargeOutcome::Admitted { .. })
    }

    /// Returns the indexes of the charges that rejected the request, longest wait first. Charges with equal waits are
    /// in the order of the charges.
    pub fn rejecting(&self) -> SmallVec<[usize; USUAL_LIMITS]> {
        let mut rejecting: SmallVec<[usize; USUAL_LIMITS]> = (0..self.readings.len())
            .filter(|&index| self.readings[index].rejects)
            .collect();
        rejecting.sort_by_key(|&index| Reverse(self.readings[index].next));
        rejecting
    }
}

/// Result of charging a request to enforced limits and to limits in shadow mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChargeResult {
    /// Decision on the charges of enforced limits.
    pub decision: Decision,
    /// Indexes of the shadow charges that the limit would have rejected.
    pub exceeded: SmallVec<[usize; USUAL_LIMITS]>,
}

/// Whether a request is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeOutcome {
    /// All charges were made.
    Admitted {
        /// Time to delay the request; zero if no limit delays it.
        delay: Duration,
    },
    /// At least one limit rejected the request. No charge was made.
    Rejected {
        /// Time until all limits would admit the request.
        wait: Duration,
        /// Index of the charge with the longest wait; the first of equal waits.
        by: usize,
    },
    /// The store is unavailable, and a limit has `on_store_error = "closed"`. No charge was made.
    Unavailable,
}

/// Store of buckets.
pub trait Buckets: Send + Sync + 'static {
    /// Makes all `enforced` charges in one atomic step, or none if any is rejected. Then makes each of the `shadow`
    /// charges separately, which does not change the outcome.
    fn charge(
        &self,
        enforced: &[Charge<'_>],
        shadow: &[Charge<'_>],
    ) -> impl Future<Output = ChargeResult> + Send;

    /// Makes the same charges as [`charge`](Self::charge) without waiting. Charges nothing and returns `None` if the
    /// buckets are not in memory.
    fn try_charge(&self, enforced: &[Charge<'_>], shadow: &[Charge<'_>]) -> Option<ChargeResult>;
}

/// Decides `charges` at `now`. `full_at` contains the time at which each bucket is full. If the request is admitted,
/// the function updates `full_at`, and the caller commits the new states together. Otherwise `full_at` is unchanged,
/// and each reading that rejects contains the wait of its own limit.
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
        ChargeOutcome::Rejected { wait, by }
    } else {
        full_at.copy_from_slice(&taken);
        ChargeOutcome::Admitted { delay }
    };

    let readings = charges
        .iter()
        .zip(full_at.iter())
        .zip(&waits)
        .map(|((charge, &full_at), wait)| {
            let reading = charge.limit.quota.read(full_at, now);
            BucketReading {
                next: wait.unwrap_or(reading.next),
                rejects: wait.is_some(),
                ..reading
            }
        })
        .collect();
    Decision { outcome, readings }
}

/// Reduces the debt of a bucket to the maximum that `limit` allows: an empty bucket, plus the longest delay if the
/// limit delays requests.
///
/// A bucket that was charged under a slower quota before a restart can have a larger debt. The store commits the
/// reduced debt even if it rejects the request. Otherwise a limit that was raised would reject requests until the old
/// debt is refilled, and the waits that it reports would be too short.
pub(crate) fn limit_debt(limit: &Limit, full_at: Moment, now: Moment) -> Moment {
    let empty = now.after(limit.quota.refill());
    full_at.min(match limit.exceed {
        Exceed::Reject => empty,
        Exceed::Delay { max } => empty.after(max),
    })
}

/// Takes the tokens of one charge. Returns the new state of the bucket and the delay of the request. Returns the wait
/// as the error if the limit rejects the request.
fn take(charge: &Charge<'_>, full_at: Moment, now: Moment) -> Result<(Moment, Duration), Duration> {
    let quota = charge.limit.quota;
    match (quota.take(full_at, now, charge.cost), charge.limit.exceed) {
        (Ok(after), _) => Ok((after, Duration::ZERO)),
        (Err(wait), Exceed::Delay { max }) if wait <= max => {
            let after = quota.take(full_at, now.after(wait), charge.cost)?;
            Ok((after, wait))
        }
        // The limit admits the request when its slot is at most `max` away.
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
    fn a_request_without_limits_is_admitted_without_delay() {
        let decision = decide(&[], &mut [], at(5));
        let delay = Duration::ZERO;
        assert_eq!(decision.outcome, ChargeOutcome::Admitted { delay });
        assert!(decision.readings.is_empty());
    }

    #[test]
    fn no_limit_is_charged_if_one_rejects() {
        let (wide, tight) = (
            limit(SECOND, 3, Exceed::Reject),
            limit(SECOND, 0, Exceed::Reject),
        );
        let mut full_at = [at(0), at(1_400)];
        let decision = decide(&charges([&wide, &tight]), &mut full_at, at(1_000));
        let wait = millis(400);
        assert_eq!(decision.outcome, ChargeOutcome::Rejected { wait, by: 1 });
        assert_eq!(full_at, [at(0), at(1_400)]);

        let decision = decide(&charges([&wide, &tight]), &mut full_at, at(1_400));
        assert!(matches!(decision.outcome, ChargeOutcome::Admitted { .. }));
        assert_eq!(full_at, [at(2_400), at(2_400)]);
    }

    #[test]
    fn a_rejection_reports_the_limit_with_the_longest_wait() {
        let limits = [1, 3, 2].map(|seconds| limit(SECOND * seconds, 0, Exceed::Reject));
        let mut full_at = [at(1_000), at(3_000), at(2_000)];
        let decision = decide(&charges(limits.each_ref()), &mut full_at, at(0));
        let wait = SECOND * 3;
        assert_eq!(decision.outcome, ChargeOutcome::Rejected { wait, by: 1 });
        let waits: Vec<_> = decision
            .readings
            .iter()
            .map(|reading| reading.next)
            .collect();
        assert_eq!(waits, [SECOND, SECOND * 3, SECOND * 2]);
        assert_eq!(decision.rejecting()[..], [1, 2, 0]);
    }

    #[test]
    fn a_rejection_with_equal_waits_reports_the_first_limit() {
        let limits = [2, 2, 1].map(|seconds| limit(SECOND * seconds, 0, Exceed::Reject));
        let mut full_at = [at(2_000), at(2_000), at(0)];
        let decision = decide(&charges(limits.each_ref()), &mut full_at, at(0));
        let wait = SECOND * 2;
        assert_eq!(decision.outcome, ChargeOutcome::Rejected { wait, by: 0 });
        assert_eq!(decision.rejecting()[..], [0, 1]);
        let mut full_at = [at(0); 3];
        let decision = decide(&charges(limits.each_ref()), &mut full_at, at(0));
        assert!(decision.is_admitted() && decision.rejecting().is_empty());
    }

    #[test]
    fn a_rejection_contains_the_remaining_tokens_of_limits_that_would_admit() {
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
    fn a_delaying_limit_assigns_slots_in_order_beyond_the_burst() {
        let limit = delaying(SECOND, 0, SECOND * 2);
        let mut full_at = [at(0)];
        let delays: Vec<_> = (0..4)
            .map(|_| decide(&charges([&limit]), &mut full_at, at(0)).outcome)
            .collect();
        let slot = |seconds| ChargeOutcome::Admitted {
            delay: SECOND * seconds,
        };
        // The next slot is three seconds away. The limit admits a request for it when it is two seconds away.
        let rejected = ChargeOutcome::Rejected {
            wait: SECOND,
            by: 0,
        };
        assert_eq!(delays, [slot(0), slot(1), slot(2), rejected]);
        assert_eq!(
            decide(&charges([&limit]), &mut full_at, at(1_000)).outcome,
            slot(2)
        );
    }

    #[test]
    fn a_request_waits_for_the_latest_of_its_slots() {
        let limits = [1, 3, 2].map(|seconds| delaying(SECOND * seconds, 0, SECOND * 10));
        let mut full_at = [at(1_000), at(3_000), at(2_000)];
        let decision = decide(&charges(limits.each_ref()), &mut full_at, at(500));
        let delay = millis(2_500);
        assert_eq!(decision.outcome, ChargeOutcome::Admitted { delay });
        assert_eq!(full_at, [at(2_000), at(6_000), at(4_000)]);
    }

    #[test]
    fn a_debt_from_a_slower_quota_is_reduced_to_the_maximum() {
        let (rejecting, delaying) = (
            limit(SECOND, 3, Exceed::Reject),
            delaying(SECOND, 3, SECOND * 2),
        );
        for (limit, wait) in [(&rejecting, SECOND), (&delaying, SECOND)] {
            let mut full_at = [limit_debt(limit, at(500_000), at(0))];
            let decision = decide(&charges([limit]), &mut full_at, at(0));
            assert_eq!(decision.outcome, ChargeOutcome::Rejected { wait, by: 0 });
            assert_eq!(decision.readings[0].remaining, 0);
        }
    }

    #[test]
    fn the_debt_of_assigned_slots_is_not_reduced() {
        let limit = delaying(SECOND, 0, SECOND * 5);
        let mut full_at = [at(0)];
        for slot in 0..6 {
            let decision = decide(&charges([&limit]), &mut full_at, at(0));
            let delay = SECOND * slot;
            assert_eq!(decision.outcome, ChargeOutcome::Admitted { delay });
        }
        assert_eq!(full_at, [at(6_000)]);
        assert_eq!(limit_debt(&limit, full_at[0], at(0)), at(6_000));
    }

    #[test]
    fn a_rejected_request_takes_no_slot_of_a_delaying_limit() {
        let (delaying, tight) = (
            delaying(SECOND, 0, SECOND * 10),
            limit(SECOND, 0, Exceed::Reject),
        );
        let mut full_at = [at(5_000), at(1_000)];
        let decision = decide(&charges([&delaying, &tight]), &mut full_at, at(0));
        let wait = SECOND;
        assert_eq!(decision.outcome, ChargeOutcome::Rejected { wait, by: 1 });
        assert_eq!(full_at, [at(5_000), at(1_000)]);
    }

    #[test]
    fn a_cost_above_the_capacity_is_rejected_with_an_infinite_wait() {
        for exceed in [Exceed::Reject, Exceed::Delay { max: Duration::MAX }] {
            let small = limit(SECOND, 1, exceed);
            let mut charges = charges([&small]);
            charges[0].cost = NonZeroU32::new(3).unwrap();
            let decision = decide(&charges, &mut [at(0)], at(0));
            let wait = Duration::MAX;
            assert_eq!(decision.outcome, ChargeOutcome::Rejected { wait, by: 0 });
        }
    }
}
