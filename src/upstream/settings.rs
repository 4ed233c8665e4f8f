//! Settings of retries, circuit breakers, health checks and concurrency limits of an upstream.

use std::num::NonZeroU32;
use std::time::Duration;

use http::StatusCode;
use http::uri::PathAndQuery;

use crate::respond::Fallback;
use crate::retry;

/// Settings of retries, from the configuration section `[upstream.NAME.retry]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RetrySettings {
    /// Which failures are retried, how often and when. The deadline of the policy applies to all attempts of a request
    /// together.
    pub policy: retry::RetryPolicy,
    /// Maximum size of a request body that is copied for retries, in bytes. Requests with a larger body are not
    /// retried.
    pub max_body: usize,
    /// Retry budget of the upstream, which all requests share.
    pub budget: BudgetSettings,
}

/// Settings of the retry budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BudgetSettings {
    /// Maximum ratio of retries to requests in the window. `floor` allows further retries.
    pub ratio: f64,
    /// Length of the sliding window in which requests and retries are counted.
    pub window: Duration,
    /// Number of retries per second that are allowed in addition to the retries that `ratio` allows.
    pub floor: u32,
}

/// Settings of the circuit breaker of each server, from the configuration section `[upstream.NAME.breaker]`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BreakerSettings {
    /// Which failures of the server open its circuit.
    pub opens_on: OpensOn,
    /// The circuit opens after this many consecutive failures.
    pub consecutive_failures: NonZeroU32,
    /// Response statuses that count as failures of the server.
    pub failures: FailureStatuses,
    /// The circuit opens if this ratio of the requests in the window has failed. The ratio is above 0 and at most 1.
    pub failure_ratio: f64,
    /// Length of the sliding window in which the failure ratio is measured.
    pub window: Duration,
    /// `failure_ratio` applies only if the window has at least this many requests.
    pub min_requests: NonZeroU32,
    /// How long the circuit stays open before the first probe.
    pub open: Duration,
    /// Maximum time that the circuit stays open before a probe. The open time doubles after each failed probe, up to
    /// this maximum.
    pub open_max: Duration,
    /// Response body that replaces the problem document of the 503 response while the circuits of all servers are open.
    pub fallback: Option<Fallback>,
}

/// Which failures open a circuit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OpensOn {
    /// No failures open the circuit (`enabled = false`). An operator can still open it.
    Nothing,
    /// Only connect timeouts open the circuit. This is the default for a sole server if there is no `[breaker]` section.
    ConnectTimeouts,
    /// Connect failures open the circuit. Response failures open it only if the other servers are healthy. This is the
    /// default for several servers if there is no `[breaker]` section.
    #[default]
    Outliers,
    /// All failures open the circuit. This is the default if there is a `[breaker]` section.
    AllFailures,
}

/// Set of statuses from 500 to 599 that count as failures of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FailureStatuses(u128);

impl FailureStatuses {
    /// All statuses from 500 to 599.
    pub(crate) const ALL: Self = Self((1 << 100) - 1);

    /// Whether a response with this status counts as a failure of the server.
    pub(crate) fn contains(self, status: StatusCode) -> bool {
        self.0 & bit(status.as_u16()) != 0
    }

    /// Returns the statuses in ascending order.
    pub(crate) fn iter(self) -> impl Iterator<Item = u16> {
        (500..600).filter(move |&status| self.0 & bit(status) != 0)
    }
}

impl FromIterator<u16> for FailureStatuses {
    /// Creates the set of these statuses. Statuses outside of 500 to 599 are ignored.
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

/// Returns the bit that stands for a status in [`FailureStatuses`]. Returns 0 for a status outside of 500 to 599.
fn bit(status: u16) -> u128 {
    match status {
        500..600 => 1 << (status - 500),
        _ => 0,
    }
}

/// Settings of active health checks, from the configuration key `health` of an upstream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HealthSettings {
    /// Path and query of the GET request that checks a server.
    pub path: PathAndQuery,
    /// Time from the start of one check of a server to the start of the next.
    pub interval: Duration,
    /// Maximum time from the start of a check, which opens a connection, to the head of the response. If the response
    /// arrives later, the check has failed.
    pub timeout: Duration,
    /// Health checks eject at most this fraction of the servers, from 0 to 1. Further unhealthy servers stay in use.
    pub max_ejected: f64,
}

/// Range of the adaptive concurrency limit, from the configuration section `[upstream.NAME.concurrency]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConcurrencySettings {
    /// Minimum of the concurrency limit, in requests in flight.
    pub min: NonZeroU32,
    /// Maximum of the concurrency limit, in requests in flight.
    pub max: NonZeroU32,
    /// Concurrency limit at the start of the gateway, in requests in flight.
    pub initial: NonZeroU32,
}

impl RetrySettings {
    /// Returns the maximum time from the start of a request to the head of a response, over all attempts. `None` if
    /// there is no retry deadline or if only one attempt is allowed.
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

/// Bounds on upgraded connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TunnelSettings {
    /// How long an upgraded connection can transfer no byte before the gateway closes it (`tunnel_timeout`).
    pub idle: Duration,
    /// Maximum number of upgraded connections of one client, at least one (`max_tunnels_per_client`).
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
