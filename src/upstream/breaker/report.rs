//! Types that a circuit breaker receives and returns: failures, changes of phase, snapshots.

use std::time::Duration;

use crate::clock::Moment;

/// A failure of a server, as reported to its circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerFailure {
    /// No connection was established, because it was refused, the server was unreachable, its name has no address, or
    /// the TLS handshake failed.
    Connect,
    /// No connection was established before `connect_timeout` or the deadline of the request.
    ConnectTimeout,
    /// A connection was established, but no valid response arrived in time, or the status of the response counts as a
    /// failure.
    Response,
}

/// A change of the phase of a circuit breaker, caused by the result of an attempt or by an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PhaseChange {
    /// The circuit opened.
    Opened {
        /// How long the circuit stays open before a probe is admitted. [`Duration::MAX`] if an operator opened the
        /// circuit.
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
    /// The number of consecutive failures reached `consecutive_failures`.
    ConsecutiveFailures,
    /// The ratio of failures in the window reached `failure_ratio`.
    FailureRatio,
    /// Only this server of the upstream failed: it reached `failure_ratio`, or `min_requests` consecutive response
    /// failures.
    Outlier,
    /// The probe of the half-open circuit failed.
    FailedProbe,
    /// An operator opened the circuit.
    Operator,
}

/// State of a circuit breaker, as shown in metrics and the admin API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakerState {
    /// The breaker admits all requests to the server.
    Closed,
    /// The breaker admits no requests to the server.
    Open {
        /// How long until a probe is admitted. `None` if an operator keeps the circuit open.
        remaining: Option<Duration>,
        /// Whether an operator keeps the circuit open.
        held: bool,
    },
    /// The breaker admits one request as the probe. The probe is possibly in flight already.
    HalfOpen,
}

/// State and counts of a circuit breaker at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BreakerSnapshot {
    /// State of the circuit.
    pub state: BreakerState,
    /// When the circuit entered its state.
    pub since: Moment,
    /// Number of consecutive failures of the same kind: those that open the circuit by themselves, or all others. 0
    /// unless the circuit is closed.
    pub consecutive_failures: u32,
    /// How often the circuit has opened since the gateway started, including failed probes and openings by an operator.
    pub openings: u64,
    /// Why the circuit last opened. `None` if it has never opened.
    pub why: Option<OpenCause>,
    /// Number of successes in the window. Only results of a closed circuit count.
    pub succeeded: u64,
    /// Number of failures in the window. Only results of a closed circuit count.
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
    /// All names that [`name`](Self::name) returns.
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
