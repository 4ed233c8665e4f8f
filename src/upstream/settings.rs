//! How an upstream that struggles is treated, as the policy has it.

use std::num::NonZeroU32;
use std::time::Duration;

use http::StatusCode;
use http::uri::PathAndQuery;

use crate::problem::Fallback;
use crate::retry::{self, Preset};

/// `[upstream.NAME.retry]`: when a request is sent once more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RetrySettings {
    /// What comes after each attempt. Its deadline is the request's, all attempts together.
    pub policy: retry::Policy,
    /// Bytes of a request's body that are kept for another attempt; larger ones are sent once.
    pub max_body: usize,
    /// How many retries there may be for all requests.
    pub budget: BudgetSettings,
}

/// How many retries an upstream is sent at most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BudgetSettings {
    /// The part of its requests that may be retries.
    pub ratio: f64,
    /// Over how long that is counted.
    pub window: Duration,
    /// Retries a second there may be whatever the traffic.
    pub floor: u32,
}

/// `[upstream.NAME.breaker]`: what opens the circuit of a server, and for how long.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BreakerSettings {
    /// Which failures open it.
    pub opens_on: OpensOn,
    /// Failures in a row that open it.
    pub consecutive_failures: NonZeroU32,
    /// Statuses that are failures.
    pub failures: FailureStatuses,
    /// Part of the requests, above 0 and up to 1, that opens it if they fail.
    pub failure_ratio: f64,
    /// Time over which that part is counted.
    pub window: Duration,
    /// Requests in that time below which the part has no meaning.
    pub min_requests: NonZeroU32,
    /// First open time.
    pub open: Duration,
    /// Longest open time.
    pub open_max: Duration,
    /// Body of the 503 while the circuits of all servers are open, instead of a problem document.
    pub fallback: Option<Fallback>,
}

/// Which failures open a circuit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OpensOn {
    /// None: `enabled = false`.
    Nothing,
    /// Connect failures, and response failures of one outlier among several servers: no section.
    #[default]
    Outliers,
    /// All failures: with a section.
    AllFailures,
}

/// Statuses from 500 to 599 that are failures of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FailureStatuses(u128);

impl FailureStatuses {
    /// All of 500 to 599.
    pub(crate) const ALL: Self = Self((1 << 100) - 1);

    /// Whether a response with this status is a failure.
    pub(crate) fn contains(self, status: StatusCode) -> bool {
        self.0 & bit(status.as_u16()) != 0
    }

    /// Returns the statuses in ascending order.
    pub(crate) fn iter(self) -> impl Iterator<Item = u16> {
        (500..600).filter(move |&status| self.0 & bit(status) != 0)
    }
}

impl FromIterator<u16> for FailureStatuses {
    /// Collects statuses; those outside of 500 to 599 are ignored.
    fn from_iter<I: IntoIterator<Item = u16>>(statuses: I) -> Self {
        Self(
            statuses
                .into_iter()
                .fold(0, |all, status| all | bit(status)),
        )
    }
}

impl Default for FailureStatuses {
    fn default() -> Self {
        Self::from_iter([502, 503, 504])
    }
}

/// Returns the bit of a status, or 0 outside of 500 to 599.
fn bit(status: u16) -> u128 {
    match status {
        500..600 => 1 << (status - 500),
        _ => 0,
    }
}

/// `health` of an upstream: how its servers are asked whether they are well.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HealthSettings {
    /// What is asked for, by GET.
    pub path: PathAndQuery,
    /// How often.
    pub interval: Duration,
    /// How long an answer may take.
    pub timeout: Duration,
    /// The part of the servers that may be taken out for failing; the others stay, well or not.
    pub max_ejected: f64,
}

/// `[upstream.NAME.concurrency]`: how many requests it is sent at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConcurrencySettings {
    /// Never fewer.
    pub min: NonZeroU32,
    /// Never more.
    pub max: NonZeroU32,
    /// Where it begins.
    pub initial: NonZeroU32,
}

impl RetrySettings {
    /// When the head of an answer has to be there, if there is ever a second attempt.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let retries = self.policy.attempts > NonZeroU32::MIN;
        self.policy.deadline.filter(|_| retries)
    }
}

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            policy: retry::Policy {
                deadline: Some(Duration::from_secs(30)),
                ..Preset::Standard.policy()
            },
            max_body: 64 * 1024,
            budget: BudgetSettings::default(),
        }
    }
}

impl Default for BudgetSettings {
    fn default() -> Self {
        Self {
            ratio: 0.1,
            window: Duration::from_secs(10),
            floor: 3,
        }
    }
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            opens_on: OpensOn::default(),
            consecutive_failures: NonZeroU32::new(5).expect("not zero"),
            failures: FailureStatuses::default(),
            failure_ratio: 0.5,
            window: Duration::from_secs(10),
            min_requests: NonZeroU32::new(20).expect("not zero"),
            open: Duration::from_secs(1),
            open_max: Duration::from_mins(1),
            fallback: None,
        }
    }
}

impl Default for ConcurrencySettings {
    fn default() -> Self {
        Self {
            min: NonZeroU32::new(4).expect("not zero"),
            max: NonZeroU32::new(1_000).expect("not zero"),
            initial: NonZeroU32::new(20).expect("not zero"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_statuses_are_those_listed_and_never_4xx() {
        let contained = |statuses: FailureStatuses| {
            let all = (100..1_000).filter(|&code| {
                let status = StatusCode::from_u16(code).expect("a status");
                statuses.contains(status)
            });
            let all: Vec<_> = all.collect();
            assert_eq!(all, statuses.iter().collect::<Vec<_>>());
            all
        };
        assert_eq!(contained(FailureStatuses::default()), [502, 503, 504]);
        let all: Vec<_> = (500..600).collect();
        assert_eq!(contained(FailureStatuses::ALL), all);
        let some = FailureStatuses::from_iter([599, 404, 500, 600, 500]);
        assert_eq!(contained(some), [500, 599]);
        assert!(contained(FailureStatuses::from_iter([])).is_empty());
    }
}
