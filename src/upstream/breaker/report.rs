//! Types that a breaker receives and returns: failures, changes of phase, snapshots.

use std::time::Duration;

use crate::clock::Moment;

/// A failure of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerFailure {
    /// No connection was established: refused, unreachable, or `connect_timeout` expired.
    Connect,
    /// A connection was established, but no valid response arrived in time, or its status counts as a failure.
    Response,
}

/// A change of phase, caused by a reported result or an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PhaseChange {
    /// The circuit opened.
    Opened {
        /// The open time. [`Duration::MAX`] if an operator opened the circuit.
        open_time: Duration,
        /// Why the circuit opened.
        why: OpenCause,
    },
    /// The circuit closed.
    Closed,
}

/// Why a circuit opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenCause {
    /// `consecutive_failures` was reached.
    ConsecutiveFailures,
    /// `failure_ratio` was reached.
    FailureRatio,
    /// Only this server reached `failure_ratio`, or `min_requests` consecutive response failures.
    Outlier,
    /// The probe failed.
    FailedProbe,
    /// An operator opened the circuit.
    Operator,
}

/// State of a circuit, for metrics and the admin API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakerState {
    /// The breaker admits all requests.
    Closed,
    /// The breaker admits no requests.
    Open {
        /// Time until a probe is admitted. `None` if an operator holds the circuit open.
        remaining: Option<Duration>,
        /// Whether an operator holds the circuit open.
        held: bool,
    },
    /// The breaker admits one probe, which may be in flight.
    HalfOpen,
}

/// State and counts of a breaker at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BreakerSnapshot {
    /// State of the circuit.
    pub state: BreakerState,
    /// When the circuit entered this state.
    pub since: Moment,
    /// Number of consecutive failures of one kind. 0 unless the circuit is closed.
    pub consecutive_failures: u32,
    /// Number of openings since the start, including those by failed probes and by an operator.
    pub openings: u64,
    /// Cause of the last opening.
    pub why: Option<OpenCause>,
    /// Successes in the window, counted while the circuit is closed.
    pub succeeded: u64,
    /// Failures in the window, counted while the circuit is closed.
    pub failed: u64,
}

impl OpenCause {
    /// Returns the name of the cause in logs and the admin API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ConsecutiveFailures => "consecutive failures",
            Self::FailureRatio => "failure ratio",
            Self::Outlier => "outlier",
            Self::FailedProbe => "failed probe",
            Self::Operator => "operator",
        }
    }
}

impl BreakerState {
    /// Names of all states.
    pub(crate) const NAMES: [&'static str; 3] = ["closed", "open", "half_open"];

    /// Returns the name of the state in metrics and the admin API.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open { .. } => "open",
            Self::HalfOpen => "half_open",
        }
    }
}
