//! The same promises, counted another way.
//!
//! The gateway keeps for each bucket the moment it will be full. The model keeps credit that accrues and
//! is capped, as the textbook's token bucket does, in exact integers: a token is worth `interval` units
//! and a unit comes back every nanosecond. Credit below zero is owed to slots handed out ahead.

use std::time::Duration;

use crate::throttle::{Exceed, Limit, Quota};

#[derive(Clone, Debug)]
pub(crate) struct Credit {
    units: i128,
    as_of: u64,
}

/// What the model says of one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Passes { after: u64 },
    Waits { at_least: u64 },
}

impl Credit {
    pub(crate) fn full(quota: Quota) -> Self {
        Self {
            units: full(quota),
            as_of: 0,
        }
    }

    /// Lets time pass until `now`.
    pub(crate) fn accrue(&mut self, quota: Quota, now: u64) {
        self.units = full(quota).min(self.units + i128::from(now - self.as_of));
        self.as_of = now;
    }

    /// What a charge of `cost` tokens would meet.
    pub(crate) fn ask(&self, limit: &Limit, cost: u32) -> Answer {
        let missing = i128::from(cost) * interval(limit.quota) - self.units;
        let patience = match limit.exceed {
            Exceed::Reject => 0,
            Exceed::Delay { max } => units(max),
        };
        if missing <= patience {
            Answer::Passes {
                after: u64::try_from(missing.max(0)).unwrap(),
            }
        } else {
            Answer::Waits {
                at_least: u64::try_from(missing - patience).unwrap(),
            }
        }
    }

    pub(crate) fn spend(&mut self, quota: Quota, cost: u32) {
        self.units -= i128::from(cost) * interval(quota);
    }

    /// Whole tokens left, and nanoseconds to the next one.
    pub(crate) fn read(&self, quota: Quota) -> (u32, u64) {
        let whole = self.units.max(0) / interval(quota);
        let next = match full(quota) - self.units {
            0 => 0,
            _ => (whole + 1) * interval(quota) - self.units,
        };
        (whole.try_into().unwrap(), next.try_into().unwrap())
    }
}

/// Whether in every window of time at most `capacity` tokens and one per interval were given out.
///
/// Each admission is a time before it, a time after it, and its cost: where in between it was decided is
/// not known. The tokens of admissions that began at `from` or later and ended by `to` are at least those
/// of all that ended by `to` less those of all that began before `from`; each is a sum over sorted times,
/// so that after sorting one pass finds the worst `from` for every `to`.
pub(crate) fn keeps_quota(quota: Quota, admissions: &[(u64, u64, u32)]) -> bool {
    let mut began: Vec<_> = admissions.iter().map(|&(at, _, cost)| (at, cost)).collect();
    let mut ended: Vec<_> = admissions.iter().map(|&(_, at, cost)| (at, cost)).collect();
    began.sort_unstable();
    ended.sort_unstable();

    let mut began = began.into_iter().peekable();
    let mut tokens_begun = 0_i128;
    let mut tokens_ended = 0_i128;
    // The largest of `from` less the worth of all begun before it: the window that leaves most room to err.
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

/// The worth of a full bucket.
fn full(quota: Quota) -> i128 {
    interval(quota) * i128::from(quota.capacity().get())
}

fn units(duration: Duration) -> i128 {
    i128::try_from(duration.as_nanos()).unwrap()
}

#[test]
fn the_window_check_sees_one_token_too_many() {
    let quota = Quota::new(std::num::NonZeroU32::MIN, Duration::from_nanos(10), 1).unwrap();
    let exactly = |times: &[u64]| {
        let admissions: Vec<_> = times.iter().map(|&at| (at, at, 1)).collect();
        keeps_quota(quota, &admissions)
    };
    assert!(exactly(&[5, 5, 15, 25, 45, 45, 55]));
    assert!(!exactly(&[5, 5, 14]));
    assert!(!exactly(&[5, 5, 5]));
    assert!(!exactly(&[0, 30, 30, 39]));
    assert!(!keeps_quota(quota, &[(5, 5, 2), (14, 14, 1)]));
    // Decided somewhere between 5 and 15, it may have been at 15.
    assert!(keeps_quota(quota, &[(5, 5, 2), (5, 15, 1)]));
    assert!(!keeps_quota(quota, &[(5, 5, 2), (5, 14, 1)]));
}
