//! What opens a circuit, and for how long.
//!
//! Without a `[breaker]` section, connect failures count by themselves, and response failures only in comparison:
//! a client can cause responses, so they must not shut off the only server, nor several at once. A server is an
//! outlier if its failures reach `failure_ratio`, or its last `min_requests` results are response failures, while
//! the other servers are healthy. The row finds a server that turns bad under load: its earlier successes
//! outweigh the failures for half of the window. A client that makes two of five requests fail causes a row
//! of 20 with a probability of 1e-8.
//!
//! Another server is healthy if its failures stay below half of `failure_ratio` and its last result is not a failure.
//! Without the second condition, servers that turn bad at the same time would look healthy to each other. At
//! least one other server needs `min_requests` results, and servers without results do not count: a few
//! successes do not prove that a server is healthy, but a few failures are reason enough not to shut off another
//! one. A server that is shut off as an outlier counts as failing until its circuit closes. So at most one server
//! of an upstream is shut off because of its responses, and none if all fail alike.

use std::num::NonZeroU32;
use std::time::Duration;

use super::super::settings::{BreakerSettings, OpensOn};
use super::packed_state::{LONGEST_ROW, Row};
use super::report::{Cause, Failure};

/// Open times vary by this part to either side, so that servers that failed together are not probed together.
const JITTER: f64 = 0.1;

/// Upper bound of an open time: the clock overflows beyond it.
const LONGEST_OPEN: Duration = Duration::from_hours(24 * 365 * 100);

/// What opens a circuit, and for how long.
#[derive(Debug)]
pub(super) struct Rule {
    opens_on: OpensOn,
    in_a_row: u32,
    ratio: f64,
    volume: u64,
    pub(super) open: Duration,
    open_max: Duration,
}

/// Results of attempts at one server within the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) succeeded: u64,
    pub(super) unreached: u64,
    pub(super) failed: u64,
}

impl Counts {
    /// Failures of both kinds.
    pub(super) fn failures(self) -> u64 {
        self.unreached + self.failed
    }

    fn all(self) -> u64 {
        self.succeeded + self.failures()
    }
}

impl Rule {
    pub(super) fn new(settings: &BreakerSettings) -> Self {
        let longest_row = NonZeroU32::new(LONGEST_ROW).expect("not zero");
        Self {
            opens_on: settings.opens_on,
            in_a_row: settings.consecutive_failures.min(longest_row).get(),
            ratio: settings.failure_ratio,
            volume: settings.min_requests.get().into(),
            open: settings.open,
            open_max: settings.open_max.min(LONGEST_OPEN),
        }
    }

    /// Whether response failures matter only in comparison with other servers.
    pub(super) fn compares_responses(&self) -> bool {
        self.opens_on == OpensOn::Outliers
    }

    /// Whether a failure counts only in comparison with other servers.
    pub(super) fn is_compared(&self, failure: Failure) -> bool {
        failure == Failure::Response && self.compares_responses()
    }

    /// Returns why the circuit opens after a failure, if it does. `row` ends with this failure, and
    /// `are_others_healthy` evaluates the other servers.
    pub(super) fn judge(
        &self,
        row: Row,
        counts: Counts,
        are_others_healthy: impl FnOnce() -> bool,
    ) -> Option<Cause> {
        let counted = match self.opens_on {
            OpensOn::Nothing => return None,
            OpensOn::Outliers => counts.unreached,
            OpensOn::AllFailures => counts.failures(),
        };
        if !row.is_compared && row.length >= self.in_a_row {
            return Some(Cause::InARow);
        }
        if !self.is_evidence(counts) {
            return None;
        }
        if reaches(counted, counts.all(), self.ratio) {
            return Some(Cause::Ratio);
        }
        let fails = reaches(counts.failures(), counts.all(), self.ratio)
            || row.is_compared && u64::from(row.length) >= self.volume;
        (fails && are_others_healthy()).then_some(Cause::Outlier)
    }

    /// Whether there are enough results for a ratio.
    fn is_evidence(&self, counts: Counts) -> bool {
        counts.all() >= self.volume
    }

    /// Whether a server is healthy; `None` if it has too few results, and they do not show that it fails.
    pub(super) fn is_healthy(&self, row: Row, counts: Counts) -> Option<bool> {
        let fails = counts.all() > 0
            && (row.length > 0 || reaches(counts.failures(), counts.all(), self.ratio / 2.0));
        (fails || self.is_evidence(counts)).then_some(!fails)
    }

    /// Returns the open time after this many failed probes.
    pub(super) fn open_time(&self, failed_probes: u32, random: &mut fastrand::Rng) -> Duration {
        let doubled = self.open.saturating_mul(1 << failed_probes.min(31));
        let spread = 1.0 - JITTER + 2.0 * JITTER * random.f64();
        doubled.min(self.open_max).mul_f64(spread)
    }
}

/// Whether `part` of `all` is at least `ratio`.
#[expect(
    clippy::cast_precision_loss,
    reason = "counts of a window are far below 2^52"
)]
fn reaches(part: u64, all: u64, ratio: f64) -> bool {
    part as f64 >= ratio * all as f64
}
