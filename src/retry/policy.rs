//! What a caller does after each attempt.
//!
//! A [`Policy`] is a table, a backoff and the bounds of both; a [`RetryState`] is one request's way through it. The
//! course is told what happened and how much time has gone by, and answers with what comes next. It could have
//! slept and called for itself, as [`Retrying`](super::Retrying) does, but then a simulation would have to
//! pretend to be a network, and the gateway could not ask its retry budget in between.
//!
//! A deadline bounds when attempts begin, not how long the last of them takes.

use std::num::NonZeroU32;
use std::time::Duration;

use super::backoff::Backoff;
use super::classify::{Failure, Table};

/// What a caller does after each attempt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Which failures are tried again after.
    pub table: Table,
    /// How long it waits where nobody says.
    pub backoff: Backoff,
    /// Attempts in all, the first included.
    pub attempts: NonZeroU32,
    /// Every attempt begins sooner than this after the first; `None` for no bound.
    pub deadline: Option<Duration>,
    /// What it makes of a `Retry-After`.
    pub retry_after: RetryAfterPolicy,
}

/// What a caller makes of a `Retry-After`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAfterPolicy {
    /// It waits as long as it is told, but never longer than this: then it comes back early, and is told again.
    Obeyed {
        /// The longest wait anybody can impose.
        most: Duration,
    },
    /// It does not look.
    Ignored,
}

/// The attempts of one request, as far as they went.
#[derive(Clone, Debug)]
pub struct RetryState {
    policy: Policy,
    /// Attempts made.
    made: u32,
    /// The last wait that was this caller's own choice.
    previous: Option<Duration>,
}

/// What comes after an attempt that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Another one.
    Retry(Wait),
    /// Nothing.
    GiveUp(GiveUp),
}

/// How long to wait for the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// This long.
    pub delay: Duration,
    /// Whether that is what a `Retry-After` said, or as much of it as the policy obeys.
    pub told: bool,
}

/// Why there is no further attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveUp {
    /// Another would fail like this one.
    NotWorthIt,
    /// There were as many as there may be.
    Exhausted,
    /// The next one would begin too late.
    TooLate,
}

impl Policy {
    /// Before the first attempt.
    pub fn begin(self) -> RetryState {
        RetryState {
            policy: self,
            made: 0,
            previous: None,
        }
    }
}

impl RetryAfterPolicy {
    /// How long to wait when told `retry_after`; `None` where the caller decides for itself.
    fn told(self, retry_after: Option<Duration>) -> Option<Duration> {
        match self {
            Self::Obeyed { most } => retry_after.map(|told| told.min(most)),
            Self::Ignored => None,
        }
    }
}

impl RetryState {
    /// An attempt failed, `elapsed` after the first began; `retry_after` is what its answer told the caller to
    /// wait, if it did.
    pub fn failed(
        &mut self,
        failure: Failure,
        retry_after: Option<Duration>,
        elapsed: Duration,
        random: &mut fastrand::Rng,
    ) -> Next {
        let retry = self.made;
        self.made = self.made.saturating_add(1);
        if !self.policy.table.retries(failure) {
            return Next::GiveUp(GiveUp::NotWorthIt);
        }
        if self.made >= self.policy.attempts.get() {
            return Next::GiveUp(GiveUp::Exhausted);
        }
        let wait = self.wait(retry, retry_after, random);
        let begins = elapsed.saturating_add(wait.delay);
        match self.policy.deadline {
            Some(deadline) if begins >= deadline => Next::GiveUp(GiveUp::TooLate),
            _ => Next::Retry(wait),
        }
    }

    fn wait(
        &mut self,
        retry: u32,
        retry_after: Option<Duration>,
        random: &mut fastrand::Rng,
    ) -> Wait {
        if let Some(delay) = self.policy.retry_after.told(retry_after) {
            return Wait { delay, told: true };
        }
        let delay = self.policy.backoff.wait(retry, self.previous, random);
        self.previous = Some(delay);
        Wait { delay, told: false }
    }

    /// Attempts that failed so far.
    pub fn made(&self) -> u32 {
        self.made
    }

    /// What it follows.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::super::{Jitter, Preset, Strategy};
    use super::*;

    const LIMITED: Failure = Failure::Status(StatusCode::TOO_MANY_REQUESTS);

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    /// 1, 2, 4, 8, … seconds, whatever chance says; a minute's `Retry-After` at most.
    fn doubling(attempts: u32) -> Policy {
        Policy {
            table: Table::TrafficControl,
            backoff: Backoff {
                strategy: Strategy::Exponential,
                base: secs(1),
                cap: secs(32),
                factor: 2.0,
                jitter: Jitter::None,
            },
            attempts: NonZeroU32::new(attempts).unwrap(),
            deadline: None,
            retry_after: RetryAfterPolicy::Obeyed { most: secs(60) },
        }
    }

    /// What a course has next each time it fails in this way, at the moment each wait ends.
    fn next(policy: Policy, failures: &[(Failure, Option<u64>)]) -> Vec<Next> {
        let (mut course, mut random) = (policy.begin(), fastrand::Rng::with_seed(1));
        let mut elapsed = Duration::ZERO;
        let told = failures.iter().map(|(failure, retry_after)| {
            let next = course.failed(*failure, retry_after.map(secs), elapsed, &mut random);
            if let Next::Retry(wait) = next {
                elapsed += wait.delay;
            }
            next
        });
        told.collect()
    }

    fn own(delay: u64) -> Next {
        let delay = secs(delay);
        Next::Retry(Wait { delay, told: false })
    }

    fn told(delay: u64) -> Next {
        let delay = secs(delay);
        Next::Retry(Wait { delay, told: true })
    }

    #[test]
    fn attempts_count_the_first_one() {
        let failures = [(LIMITED, None); 3];
        let exhausted = Next::GiveUp(GiveUp::Exhausted);
        assert_eq!(next(doubling(3), &failures), [own(1), own(2), exhausted]);
        assert_eq!(next(doubling(1), &failures[..1]), [exhausted]);
    }

    #[test]
    fn what_is_not_worth_it_ends_at_once_even_on_the_last_attempt() {
        let wrong = (Failure::Status(StatusCode::UNPROCESSABLE_ENTITY), Some(1));
        let not_worth_it = Next::GiveUp(GiveUp::NotWorthIt);
        assert_eq!(next(doubling(5), &[wrong]), [not_worth_it]);
        assert_eq!(next(doubling(1), &[wrong]), [not_worth_it]);
    }

    #[test]
    fn a_retry_after_is_waited_for_and_an_own_wait_goes_on_where_it_would_have_been() {
        let failures = [(LIMITED, None), (LIMITED, Some(10)), (LIMITED, None)];
        assert_eq!(next(doubling(9), &failures), [own(1), told(10), own(4)]);
    }

    #[test]
    fn nobody_can_impose_more_than_the_most() {
        let failures = [(LIMITED, Some(61)), (LIMITED, Some(u64::MAX))];
        assert_eq!(next(doubling(9), &failures), [told(60), told(60)]);
    }

    #[test]
    fn who_ignores_a_retry_after_waits_as_ever() {
        let policy = Policy {
            retry_after: RetryAfterPolicy::Ignored,
            ..doubling(9)
        };
        let failures = [(LIMITED, Some(10)), (LIMITED, Some(0))];
        assert_eq!(next(policy, &failures), [own(1), own(2)]);
    }

    #[test]
    fn a_retry_that_would_begin_at_the_deadline_is_given_up() {
        let until = |deadline| Policy {
            deadline: Some(deadline),
            ..doubling(9)
        };
        let too_late = Next::GiveUp(GiveUp::TooLate);
        let failures = [(LIMITED, None); 2];
        let just_after_3s = secs(3) + Duration::from_nanos(1);
        assert_eq!(next(until(secs(3)), &failures), [own(1), too_late]);
        assert_eq!(next(until(just_after_3s), &failures), [own(1), own(2)]);
    }

    #[test]
    fn a_retry_after_that_does_not_fit_into_the_deadline_ends_the_course() {
        let policy = Policy {
            deadline: Some(secs(30)),
            ..doubling(9)
        };
        let too_late = Next::GiveUp(GiveUp::TooLate);
        assert_eq!(next(policy, &[(LIMITED, Some(30))]), [too_late]);
        assert_eq!(next(policy, &[(LIMITED, Some(29))]), [told(29)]);
    }

    /// The second wait when the first is this, or the caller's own; after a base of 1 s, up to 3 s.
    fn second_decorrelated(first: Option<Duration>, seed: u64) -> Duration {
        let mut policy = doubling(9);
        policy.backoff.jitter = Jitter::Decorrelated;
        policy.backoff.cap = secs(1_000);
        let (mut course, mut random) = (policy.begin(), fastrand::Rng::with_seed(seed));
        course.failed(LIMITED, first, Duration::ZERO, &mut random);
        match course.failed(LIMITED, None, secs(60), &mut random) {
            Next::Retry(wait) => wait.delay,
            Next::GiveUp(_) => panic!("there are attempts left"),
        }
    }

    #[test]
    fn a_decorrelated_wait_follows_the_last_own_wait_and_no_imposed_one() {
        let longest = |first| {
            (0..100)
                .map(move |seed| second_decorrelated(first, seed))
                .max()
        };
        assert!(longest(Some(secs(60))) <= Some(secs(3)));
        assert!(longest(None) > Some(secs(6)));
        assert!(longest(None) <= Some(secs(9)));
    }

    #[test]
    fn every_preset_ends_whatever_happens() {
        for preset in Preset::ALL {
            let attempts = preset.policy().attempts.get();
            let mut course = preset.policy().begin();
            let mut random = fastrand::Rng::with_seed(1);
            let mut fail = || course.failed(LIMITED, None, Duration::MAX, &mut random);
            let retries = (1..attempts).filter(|_| matches!(fail(), Next::Retry(_)));
            assert_eq!(retries.count(), attempts as usize - 1, "{preset}");
            assert_eq!(fail(), Next::GiveUp(GiveUp::Exhausted), "{preset}");
        }
    }
}
