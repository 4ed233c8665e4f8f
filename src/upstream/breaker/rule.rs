//! Conditions that open a circuit, and how long it stays open.
//!
//! If the configuration has a `[breaker]` section, all failures of a server can open its circuit. If it has no such
//! section, connect failures can open the circuit, but response failures can open it only if the other servers are
//! healthy. The reason is that a client can cause response failures. Such failures must not open the circuit of the
//! only server, nor of several servers at once.
//!
//! Without the section, connect failures open a circuit for less than 1 s, because a probe costs little and a server
//! that returns is to be used soon. Of a sole server only connect timeouts open it: a request whose connection is
//! refused fails at once anyway, and each request may find that the server has returned.
//!
//! A server is an outlier if it fails while the other servers are healthy. A server fails if its failures reach
//! `failure_ratio`, or if its last `min_requests` results are response failures. The second condition detects a server
//! that starts to fail under load, where earlier successes outweigh the failures for half of the window. If a client
//! makes two of five requests fail, 20 consecutive results (the default of `min_requests`) are failures with a
//! probability of 0.4^20, about 1e-8.
//!
//! Another server is healthy if its failures are below half of `failure_ratio` and its last result is not a failure. If
//! the second condition were missing, servers that start to fail at the same time would look healthy to each other. At
//! least one other server must have `min_requests` results. Servers without results are ignored. A few successes thus
//! do not prove that a server is healthy, but a few failures keep the circuits of the other servers closed.
//!
//! An outlier counts as failing until its circuit closes. Therefore at most one server of an upstream is an outlier. If
//! all servers fail alike, none is an outlier.

use std::time::Duration;

use super::super::settings::{BreakerSettings, OpensOn};
use super::report::{OpenCause, ServerFailure};

/// Maximum random variation of the open time, as a fraction: ±10 %. The open time varies, because servers that failed
/// together would otherwise get their probes at the same time.
const JITTER: f64 = 0.1;

/// Maximum open time: 100 years. A longer configured time is shortened to it, so that the clock cannot overflow.
const LONGEST_OPEN: Duration = Duration::from_hours(24 * 365 * 100);

/// Without a `[breaker]` section, how long a circuit is open after a connect failure, and how long a probe of the
/// connection blocks other requests. With [`JITTER`], both are less than 1 s.
pub(in crate::upstream) const CONNECT_OPEN: Duration = Duration::from_millis(900);

/// Conditions that open a circuit, and how long it stays open.
#[derive(Debug)]
pub(super) struct BreakerRule {
    opens_on: OpensOn,
    consecutive_failures: u32,
    ratio: f64,
    min_requests: u64,
    pub(super) open: Duration,
    open_max: Duration,
}

/// Numbers of successes and failures of one server in the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResultCounts {
    pub(super) succeeded: u64,
    /// Failures for which [`BreakerRule::is_compared`] is false.
    pub(super) uncompared: u64,
    /// Failures for which [`BreakerRule::is_compared`] is true.
    pub(super) compared: u64,
}

/// Consecutive failures of the same kind, without a success or a failure of the other kind in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FailureStreak {
    pub(super) length: u32,
    /// These failures open the circuit only if the other servers are healthy.
    pub(super) is_compared: bool,
}

impl FailureStreak {
    pub(super) fn after(self, is_compared: bool) -> Self {
        let continued = if self.is_compared == is_compared {
            self.length
        } else {
            0
        };
        Self {
            length: continued.saturating_add(1),
            is_compared,
        }
    }
}

impl ResultCounts {
    pub(super) fn all_failures(self) -> u64 {
        self.uncompared + self.compared
    }

    fn all(self) -> u64 {
        self.succeeded + self.all_failures()
    }
}

impl BreakerRule {
    pub(super) fn new(settings: &BreakerSettings) -> Self {
        Self {
            opens_on: settings.opens_on,
            consecutive_failures: settings.consecutive_failures.get(),
            ratio: settings.failure_ratio,
            min_requests: settings.min_requests.get().into(),
            open: settings.open,
            open_max: settings.open_max.min(LONGEST_OPEN),
        }
    }

    /// Whether the configuration has no `[breaker]` section.
    pub(super) fn is_default(&self) -> bool {
        matches!(self.opens_on, OpensOn::ConnectTimeouts | OpensOn::Outliers)
    }

    /// Whether this failure opens the circuit only if the other servers are healthy, and thus never that of a sole
    /// server.
    pub(super) fn is_compared(&self, failure: ServerFailure) -> bool {
        match self.opens_on {
            OpensOn::ConnectTimeouts => failure != ServerFailure::ConnectTimeout,
            OpensOn::Outliers => failure == ServerFailure::Response,
            OpensOn::Nothing | OpensOn::AllFailures => false,
        }
    }

    /// Returns why the circuit has to open after a failure. `None` if it stays closed. `streak` and `counts` include
    /// this failure. `are_others_healthy` is called only if the result depends on the other servers.
    pub(super) fn cause_to_open(
        &self,
        streak: FailureStreak,
        counts: ResultCounts,
        are_others_healthy: impl FnOnce() -> bool,
    ) -> Option<OpenCause> {
        if self.opens_on == OpensOn::Nothing {
            return None;
        }
        if !streak.is_compared && streak.length >= self.consecutive_failures {
            return Some(OpenCause::ConsecutiveFailures);
        }
        if !self.has_enough_results(counts) {
            return None;
        }
        if reaches(counts.uncompared, counts.all(), self.ratio) {
            return Some(OpenCause::FailureRatio);
        }
        let fails = reaches(counts.all_failures(), counts.all(), self.ratio)
            || streak.is_compared && u64::from(streak.length) >= self.min_requests;
        (fails && are_others_healthy()).then_some(OpenCause::Outlier)
    }

    /// Whether the window has enough results (`min_requests`) to evaluate the failure ratio.
    fn has_enough_results(&self, counts: ResultCounts) -> bool {
        counts.all() >= self.min_requests
    }

    /// Whether a server is healthy. `None` if it has fewer than `min_requests` results and these do not show that it
    /// fails.
    pub(super) fn is_healthy(&self, streak: FailureStreak, counts: ResultCounts) -> Option<bool> {
        let fails = counts.all() > 0
            && (streak.length > 0
                || reaches(counts.all_failures(), counts.all(), self.ratio / 2.0));
        (fails || self.has_enough_results(counts)).then_some(!fails)
    }

    /// Whether a circuit opens for less than 1 s after this failure, however many probes fail.
    pub(super) fn opens_briefly(&self, failure: ServerFailure) -> bool {
        self.is_default() && failure != ServerFailure::Response
    }

    /// Returns how long the circuit stays open after `failure` and this many failed probes. The time doubles with each
    /// failed probe, up to `open_max`, and then varies by ±10 %.
    pub(super) fn open_time(
        &self,
        failure: ServerFailure,
        failed_probes: u32,
        random: &mut fastrand::Rng,
    ) -> Duration {
        let open_time = if self.opens_briefly(failure) {
            CONNECT_OPEN
        } else {
            let doubled = self.open.saturating_mul(1 << failed_probes.min(31));
            doubled.min(self.open_max)
        };
        open_time.mul_f64(1.0 - JITTER + 2.0 * JITTER * random.f64())
    }
}

/// Whether `part / all` is at least `ratio`. Also true if `part` and `all` are 0.
#[expect(
    clippy::cast_precision_loss,
    reason = "counts of a window are far below 2^52"
)]
fn reaches(part: u64, all: u64, ratio: f64) -> bool {
    part as f64 >= ratio * all as f64
}
