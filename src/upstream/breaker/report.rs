//! What a breaker tells: what changed, and how it stands.

use std::time::Duration;

use crate::clock::Moment;

/// What a report, or a person, changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The server is left alone.
    Opened {
        /// This long; [`Duration::MAX`] where a person ends it.
        for_: Duration,
        /// What was the matter.
        why: Cause,
    },
    /// It is asked again.
    Closed,
}

/// Why a breaker opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// So many failures in a row.
    InARow,
    /// So large a part of the window's requests failed.
    Ratio,
    /// The probe failed.
    FailedProbe,
    /// Somebody wanted it so.
    ByHand,
}

/// Whether a server is asked, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
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
pub struct Snapshot {
    /// Its state.
    pub state: State,
    /// When it came into it.
    pub since: Moment,
    /// Failures in a row since it was closed; none in any other state.
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
    pub fn name(self) -> &'static str {
        match self {
            Self::InARow => "consecutive failures",
            Self::Ratio => "failure ratio",
            Self::FailedProbe => "failed probe",
            Self::ByHand => "by hand",
        }
    }
}

impl State {
    /// The names of all there are.
    pub const NAMES: [&'static str; 3] = ["closed", "open", "half_open"];

    /// Its name, for metrics and people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open { .. } => "open",
            Self::HalfOpen => "half_open",
        }
    }
}
