use std::num::NonZeroU32;
use std::time::Duration;

use http::StatusCode;
use http::uri::PathAndQuery;

use crate::respond::Fallback;
use crate::retry;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RetrySettings {
    /// Its deadline applies to all attempts of a request together.
    pub policy: retry::RetryPolicy,
    /// In bytes. Requests with a larger body are not retried.
    pub max_body: usize,
    pub budget: BudgetSettings,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BudgetSettings {
    /// Of retries to requests in the window.
    pub ratio: f64,
    pub window: Duration,
    /// Retries per second that are allowed in addition to `ratio`.
    pub floor: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BreakerSettings {
    pub opens_on: OpensOn,
    pub consecutive_failures: NonZeroU32,
    pub failures: FailureStatuses,
    /// Above 0 and at most 1.
    pub failure_ratio: f64,
    pub window: Duration,
    /// Below this many requests, `failure_ratio` does not apply.
    pub min_requests: NonZeroU32,
    /// Until the first probe. Doubles after each failed probe, up to `open_max`.
    pub open: Duration,
    pub open_max: Duration,
    /// Replaces the problem document of the 503 response while the circuits of all servers are open.
    pub fallback: Option<Fallback>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OpensOn {
    /// `enabled = false`. An operator can still open the circuit.
    Nothing,
    /// The default for a sole server without a `[breaker]` section.
    ConnectTimeouts,
    /// Response failures open the circuit only if the other servers are healthy. The default for several servers
    /// without a `[breaker]` section.
    #[default]
    Outliers,
    /// The default with a `[breaker]` section.
    AllFailures,
}

/// Statuses from 500 to 599.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FailureStatuses(u128);

impl FailureStatuses {
    pub(crate) const ALL: Self = Self((1 << 100) - 1);

    pub(crate) fn contains(self, status: StatusCode) -> bool {
        self.0 & bit(status.as_u16()) != 0
    }

    /// In ascending order.
    pub(crate) fn iter(self) -> impl Iterator<Item = u16> {
        (500..600).filter(move |&status| self.0 & bit(status) != 0)
    }
}

impl FromIterator<u16> for FailureStatuses {
    /// Ignores statuses outside of 500 to 599.
    fn from_iter<I: IntoIterator<Item = u16>>(statuses: I) -> Self {
        Self(
            statuses
                .into_iter()
                .fold(0, |all, status| all | bit(status)),
        )
    }
}

#[cfg(test)]
impl Default for FailureStatuses {
    fn default() -> Self {
        Self::from_iter([502, 503, 504])
    }
}

fn bit(status: u16) -> u128 {
    match status {
        500..600 => 1 << (status - 500),
        _ => 0,
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HealthSettings {
    pub path: PathAndQuery,
    /// From the start of one check to the start of the next.
    pub interval: Duration,
    /// From the start of a check, which opens a connection, to the head of the response.
    pub timeout: Duration,
    /// From 0 to 1. Further unhealthy servers stay in use.
    pub max_ejected: f64,
}

/// In requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConcurrencySettings {
    pub min: NonZeroU32,
    pub max: NonZeroU32,
    pub initial: NonZeroU32,
}

impl RetrySettings {
    /// From the start of a request to the head of a response, over all attempts.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let has_retries = self.policy.attempts > NonZeroU32::MIN;
        self.policy.deadline.filter(|_| has_retries)
    }
}

#[cfg(test)]
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

#[cfg(test)]
impl Default for ConcurrencySettings {
    fn default() -> Self {
        Self {
            min: NonZeroU32::new(4).expect("not zero"),
            max: NonZeroU32::new(1_000).expect("not zero"),
            initial: NonZeroU32::new(20).expect("not zero"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TunnelSettings {
    /// `tunnel_timeout`.
    pub idle: Duration,
    /// `max_tunnels_per_client`, at least one.
    pub per_client: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_5xx_statuses_are_failures() {
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
