//! A model of a rate limit bucket that counts tokens.
//!
//! For each bucket, the gateway stores the time at which the bucket becomes full. The model instead has a credit that
//! grows up to a maximum, as the textbook token bucket does. The credit is an exact integer. One token is `interval`
//! units, where `interval` is the refill interval in nanoseconds. Each nanosecond adds one unit. A negative credit
//! means that delayed requests have already taken future tokens.

use std::time::Duration;

use crate::throttle::{Exceed, Limit, Quota};

/// The credit of a bucket, in units. One token is `interval` units.
#[derive(Clone, Debug)]
pub(crate) struct Credit {
    units: i128,
    /// Time of the last update, in nanoseconds.
    updated: u64,
}

/// The decision of the model on one charge. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelDecision {
    Admits { delay: u64 },
    Rejects { wait: u64 },
}

impl Credit {
    pub(crate) fn full(quota: Quota) -> Self {
        Self {
            units: full(quota),
            updated: 0,
        }
    }

    /// Adds one unit for each nanosecond until `now`, up to the maximum.
    pub(crate) fn accrue(&mut self, quota: Quota, now: u64) {
        self.units = full(quota).min(self.units + i128::from(now - self.updated));
        self.updated = now;
    }

    /// Decides a charge of `cost` tokens, but does not make the charge.
    pub(crate) fn decide(&self, limit: &Limit, cost: u32) -> ModelDecision {
        let missing = i128::from(cost) * interval(limit.quota) - self.units;
        let max_delay = match limit.exceed {
            Exceed::Reject => 0,
            Exceed::Delay { max } => units(max),
        };
        if missing <= max_delay {
            ModelDecision::Admits {
                delay: u64::try_from(missing.max(0)).unwrap(),
            }
        } else {
            ModelDecision::Rejects {
                wait: u64::try_from(missing - max_delay).unwrap(),
            }
        }
    }

    pub(crate) fn spend(&mut self, quota: Quota, cost: u32) {
        self.units -= i128::from(cost) * interval(quota);
    }

    /// Returns the number of complete tokens, and the nanoseconds until the next token.
    pub(crate) fn read(&self, quota: Quota) -> (u32, u64) {
        let whole = self.units.max(0) / interval(quota);
        let next = match full(quota) - self.units {
            0 => 0,
            _ => (whole + 1) * interval(quota) - self.units,
        };
        (whole.try_into().unwrap(), next.try_into().unwrap())
    }
}

/// Returns whether every period has at most `capacity` admitted tokens, plus one token per refill interval.
///
/// An admission consists of the time before it, the time after it, and its cost. The decision was made at an unknown
/// time between the two. A period begins at `from` and ends at `to`. The function computes a lower bound of
/// the tokens admitted in the period: the tokens of all admissions that ended by `to`, minus the tokens of all
/// admissions that began before `from`. Both terms are sums over sorted times, so one pass finds the worst `from` for
/// every `to`.
pub(crate) fn keeps_quota(quota: Quota, admissions: &[(u64, u64, u32)]) -> bool {
    let mut began: Vec<_> = admissions.iter().map(|&(at, _, cost)| (at, cost)).collect();
    let mut ended: Vec<_> = admissions.iter().map(|&(_, at, cost)| (at, cost)).collect();
    began.sort_unstable();
    ended.sort_unstable();

    let mut began = began.into_iter().peekable();
    let mut tokens_begun = 0_i128;
    let mut tokens_ended = 0_i128;
    // For each `from`, a value is computed: `from` minus the units of all admissions that began before `from`.
    // `worst_from` is the maximum of these values. If the period with the maximum keeps the quota, all periods that end
    // at `to` keep the quota.
    let mut worst_from = i128::MIN;
    ended.into_iter().all(|(to, cost)| {
        while let Some((from, cost)) = began.next_if(|&(from, _)| from <= to) {
            worst_from = worst_from.max(i128::from(from) - tokens_begun * interval(quota));
            tokens_begun += i128::from(cost);
        }
        tokens_ended += i128::from(cost);
        tokens_ended * interval(quota) + worst_from <= i128::from(to) + full(quota)
    })
}

fn interval(quota: Quota) -> i128 {
    units(quota.interval())
}

/// Returns the credit of a full bucket, in units.
fn full(quota: Quota) -> i128 {
    interval(quota) * i128::from(quota.capacity().get())
}

fn units(duration: Duration) -> i128 {
    i128::try_from(duration.as_nanos()).unwrap()
}

#[test]
fn one_token_too_many_is_detected() {
    let quota = Quota::new(std::num::NonZeroU32::MIN, Duration::from_nanos(10), 1).unwrap();
    let keeps = |times: &[u64]| {
        let admissions: Vec<_> = times.iter().map(|&at| (at, at, 1)).collect();
        keeps_quota(quota, &admissions)
    };
    assert!(keeps(&[5, 5, 15, 25, 45, 45, 55]));
    assert!(!keeps(&[5, 5, 14]));
    assert!(!keeps(&[5, 5, 5]));
    assert!(!keeps(&[0, 30, 30, 39]));
    assert!(!keeps_quota(quota, &[(5, 5, 2), (14, 14, 1)]));
    // The first admission empties the bucket at 5, and the next token is available at 15. In the first case,
    // the second decision was made at some time from 5 to 15. It is correct if it was made at 15. In the second case,
    // it was made at 14 or earlier, which is too early.
    assert!(keeps_quota(quota, &[(5, 5, 2), (5, 15, 1)]));
    assert!(!keeps_quota(quota, &[(5, 5, 2), (5, 14, 1)]));
}
