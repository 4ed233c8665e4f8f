//! Input and output of a breaker: failures, changes of phase, snapshots.

use std::time::Duration;

use crate::clock::Moment;

/// A failure of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No connection: refused, unreachable, or `connect_timeout` expired.
    Connect,
    /// A connection, but no valid response in time, or a status that counts as a failure.
    Response,
}

/// A change of phase, by a report or by an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The circuit opened.
    Opened {
        /// The open time; [`Duration::MAX`] until an operator closes the circuit.
        for_: Duration,
        /// The cause.
        why: Cause,
    },
    /// The circuit closed.
    Closed,
}

/// Why a breaker opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// `consecutive_failures` was reached.
    InARow,
    /// `failure_ratio` was reached.
    Ratio,
    /// This server alone reached `failure_ratio`, or `min_requests` response failures in a row.
    Outlier,
    /// The probe failed.
    FailedProbe,
    /// An operator opened it.
    ByHand,
}

/// Whether a server is asked, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It is.
    Closed,
    /// It is not.
    Open {
        /// How long it will not be; `None` where a person ends it.
        remaining: Option<Duration>,
        /// Whether a person holds it open.
        held: bool,
    },
    /// One request is to find out, or is under way.
    HalfOpen,
}

/// A breaker as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Its state.
    pub state: State,
    /// When it came into it.
    pub since: Moment,
    /// Length of the row of failures of one kind; 0 unless the circuit is closed.
    pub in_a_row: u32,
    /// How often it was opened, by failed probes and by hand, too.
    pub openings: u64,
    /// Why it was, the last time.
    pub why: Option<Cause>,
    /// Successes in the window; what was learnt while it was not closed is in neither.
    pub succeeded: u64,
    /// Failures in the window.
    pub failed: u64,
}

impl Cause {
    /// Its name, for logs and metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::InARow => "consecutive failures",
            Self::Ratio => "failure ratio",
            Self::Outlier => "outlier",
            Self::FailedProbe => "failed probe",
            Self::ByHand => "by hand",
        }
    }
}

impl State {
    /// The names of all there are.
    pub(crate) const NAMES: [&'static str; 3] = ["closed", "open", "half_open"];

    /// Its name, for metrics and people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open { .. } => "open",
            Self::HalfOpen => "half_open",
        }
    }
}
