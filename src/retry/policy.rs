//! Retry policy: decides after each failed attempt whether and when to retry.
//!
//! A [`RetryState`] applies the [`RetryPolicy`] to one request and neither sleeps nor sends requests, unlike
//! [`Retrying`](super::Retrying). Simulations therefore need no network, and the gateway can check its retry budget
//! before each retry. No attempt starts after the deadline, but an attempt can end after it.

use std::num::NonZeroU32;
use std::time::Duration;

use super::backoff::Backoff;
use super::classify::{Failure, RetryTable};

/// Rules that decide after each failed attempt whether and when to retry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Failures that are retried.
    pub table: RetryTable,
    /// Delays between attempts if no `Retry-After` applies.
    pub backoff: Backoff,
    /// Maximum number of attempts, including the first.
    pub attempts: NonZeroU32,
    /// Maximum time from the start of the first attempt to the start of the last one. `None` means no deadline.
    pub deadline: Option<Duration>,
    /// Whether a delay follows `Retry-After`.
    pub retry_after: RetryAfterPolicy,
}

/// Whether a delay follows the `Retry-After` of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAfterPolicy {
    /// The delay is that of `Retry-After`, but no longer than `most`.
    Obeyed {
        /// Maximum delay.
        most: Duration,
    },
    /// The backoff determines the delay.
    Ignored,
}

/// Retry state of one request.
#[derive(Clone, Debug)]
pub struct RetryState {
    policy: RetryPolicy,
    made: u32,
    /// Decorrelated jitter derives the next delay from it.
    previous: Option<Duration>,
}

/// What to do after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Make another attempt after this delay.
    Retry(Wait),
    /// Make no further attempt, for this reason.
    GiveUp(GiveUp),
}

/// Delay before the next attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The delay.
    pub delay: Duration,
    /// Whether it comes from `Retry-After`, possibly shortened by the policy.
    pub from_header: bool,
}

/// Why no further attempt is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GiveUp {
    /// The retry table does not contain the failure.
    NotWorthIt,
    /// The maximum number of attempts is reached.
    Exhausted,
    /// The next attempt would start at the deadline or later.
    TooLate,
}

impl RetryPolicy {
    /// Returns the retry state of a new request.
    pub fn begin(self) -> RetryState {
        RetryState {
            policy: self,
            made: 0,
            previous: None,
        }
    }
}

impl RetryAfterPolicy {
    fn delay(self, retry_after: Option<Duration>) -> Option<Duration> {
        match self {
            Self::Obeyed { most } => retry_after.map(|delay| delay.min(most)),
            Self::Ignored => None,
        }
    }
}

impl RetryState {
    /// Reports a failed attempt. `elapsed` is the time since the start of the first one, and `retry_after` the delay in
    /// the `Retry-After` of the response.
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
        if let Some(delay) = self.policy.retry_after.delay(retry_after) {
            return Wait {
                delay,
                from_header: true,
            };
        }
        let delay = self.policy.backoff.wait(retry, self.previous, random);
        self.previous = Some(delay);
        Wait {
            delay,
            from_header: false,
        }
    }

    /// Returns the number of failed attempts so far.
    pub fn made(&self) -> u32 {
        self.made
    }

    /// Returns the policy that this state applies.
    pub fn policy(&self) -> &RetryPolicy {
        &self.policy
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::super::{Jitter, Strategy};
    use super::*;

    const LIMITED: Failure = Failure::Status(StatusCode::TOO_MANY_REQUESTS);

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    /// Returns a policy with delays of 1, 2, 4, 8, … s without jitter. It shortens `Retry-After` to 60 s.
    fn doubling(attempts: u32) -> RetryPolicy {
        RetryPolicy {
            table: RetryTable::TrafficControl,
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

    /// Reports these failures and returns the step after each of them. Each attempt fails immediately, so the elapsed
    /// time is the sum of the delays.
    fn next(policy: RetryPolicy, failures: &[(Failure, Option<u64>)]) -> Vec<Next> {
        let (mut state, mut random) = (policy.begin(), fastrand::Rng::with_seed(1));
        let mut elapsed = Duration::ZERO;
        let steps = failures.iter().map(|(failure, retry_after)| {
            let next = state.failed(*failure, retry_after.map(secs), elapsed, &mut random);
            if let Next::Retry(wait) = next {
                elapsed += wait.delay;
            }
            next
        });
        steps.collect()
    }

    fn backoff(delay: u64) -> Next {
        let delay = secs(delay);
        Next::Retry(Wait {
            delay,
            from_header: false,
        })
    }

    fn from_header(delay: u64) -> Next {
        let delay = secs(delay);
        Next::Retry(Wait {
            delay,
            from_header: true,
        })
    }

    #[test]
    fn the_maximum_of_attempts_includes_the_first() {
        let failures = [(LIMITED, None); 3];
        let exhausted = Next::GiveUp(GiveUp::Exhausted);
        assert_eq!(
            next(doubling(3), &failures),
            [backoff(1), backoff(2), exhausted]
        );
        assert_eq!(next(doubling(1), &failures[..1]), [exhausted]);
    }

    #[test]
    fn a_failure_that_is_not_retryable_ends_the_attempts_immediately() {
        let wrong = (Failure::Status(StatusCode::UNPROCESSABLE_ENTITY), Some(1));
        let not_worth_it = Next::GiveUp(GiveUp::NotWorthIt);
        assert_eq!(next(doubling(5), &[wrong]), [not_worth_it]);
        assert_eq!(next(doubling(1), &[wrong]), [not_worth_it]);
    }

    #[test]
    fn retry_after_replaces_one_delay_and_the_backoff_continues_to_grow() {
        let failures = [(LIMITED, None), (LIMITED, Some(10)), (LIMITED, None)];
        assert_eq!(
            next(doubling(9), &failures),
            [backoff(1), from_header(10), backoff(4)]
        );
    }

    #[test]
    fn a_long_retry_after_is_shortened_to_the_maximum() {
        let failures = [(LIMITED, Some(61)), (LIMITED, Some(u64::MAX))];
        assert_eq!(
            next(doubling(9), &failures),
            [from_header(60), from_header(60)]
        );
    }

    #[test]
    fn an_ignored_retry_after_does_not_change_the_delays() {
        let policy = RetryPolicy {
            retry_after: RetryAfterPolicy::Ignored,
            ..doubling(9)
        };
        let failures = [(LIMITED, Some(10)), (LIMITED, Some(0))];
        assert_eq!(next(policy, &failures), [backoff(1), backoff(2)]);
    }

    #[test]
    fn a_retry_that_would_begin_at_the_deadline_is_given_up() {
        let until = |deadline| RetryPolicy {
            deadline: Some(deadline),
            ..doubling(9)
        };
        let too_late = Next::GiveUp(GiveUp::TooLate);
        let failures = [(LIMITED, None); 2];
        let just_after_3s = secs(3) + Duration::from_nanos(1);
        assert_eq!(next(until(secs(3)), &failures), [backoff(1), too_late]);
        assert_eq!(
            next(until(just_after_3s), &failures),
            [backoff(1), backoff(2)]
        );
    }

    #[test]
    fn a_retry_after_beyond_the_deadline_ends_the_attempts() {
        let policy = RetryPolicy {
            deadline: Some(secs(30)),
            ..doubling(9)
        };
        let too_late = Next::GiveUp(GiveUp::TooLate);
        assert_eq!(next(policy, &[(LIMITED, Some(30))]), [too_late]);
        assert_eq!(next(policy, &[(LIMITED, Some(29))]), [from_header(29)]);
    }

    /// Returns the delay before the second retry, with decorrelated jitter and a base of 1 s. `first` is the
    /// `Retry-After` of the first response.
    fn second_decorrelated(first: Option<Duration>, seed: u64) -> Duration {
        let mut policy = doubling(9);
        policy.backoff.jitter = Jitter::Decorrelated;
        policy.backoff.cap = secs(1_000);
        let (mut state, mut random) = (policy.begin(), fastrand::Rng::with_seed(seed));
        state.failed(LIMITED, first, Duration::ZERO, &mut random);
        match state.failed(LIMITED, None, secs(60), &mut random) {
            Next::Retry(wait) => wait.delay,
            Next::GiveUp(_) => panic!("there are attempts left"),
        }
    }

    #[test]
    fn a_decorrelated_delay_depends_on_the_last_backoff_and_not_on_retry_after() {
        let longest = |first| {
            (0..100)
                .map(move |seed| second_decorrelated(first, seed))
                .max()
        };
        assert!(longest(Some(secs(60))) <= Some(secs(3)));
        assert!(longest(None) > Some(secs(6)));
        assert!(longest(None) <= Some(secs(9)));
    }
}
