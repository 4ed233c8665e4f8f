//! Circuit breaker of one server. While it is open, the server receives no requests. When it is half-open, one request
//! is the probe that closes or reopens it.
//!
//! Each attempt first calls [`Breaker::admit`] and later reports its result with the [`BreakerPermit`] it received. A
//! permit belongs to the phase in which it was issued. A result that arrives in a later phase is ignored. Thus a late
//! success does not close the circuit, and a late failure does not extend the open time. There is one exception: a late
//! connection closes a circuit that connect failures opened, because it shows that the server accepts connections now.
//! A permit that is dropped without a result reports nothing. If the permit of a probe is dropped, the next attempt
//! becomes the probe.
//!
//! Both consecutive failures and the failure ratio can open a circuit. The ratio alone is not enough, because a server
//! with little traffic possibly never reaches `min_requests`. The module `rule` contains all conditions.
//!
//! While no attempt fails, no attempt takes a lock or writes a shared cache line. The price is a small error: a success
//! that is reported during a change of phase can count in the next phase, at most one per worker.

mod packed_state;
mod report;
mod rule;

#[cfg(test)]
mod model;
#[cfg(test)]
mod outlier_tests;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

pub(crate) use self::report::{
    BreakerSnapshot, BreakerState, OpenCause, PhaseChange, ServerFailure,
};

use self::packed_state::{AtomicState, PackedState, Phase};
pub(super) use self::rule::CONNECT_OPEN;
use self::rule::{BreakerRule, ResultCounts};
use super::settings::BreakerSettings;
use super::sliding_window::SlidingWindow;
use crate::clock::Moment;

/// Index at which `Breaker::results` counts successes. [`window_index`] returns the indexes for failures.
const SUCCEEDED: usize = 0;

/// Circuit breaker of one server, shared by all workers.
#[derive(Debug)]
#[repr(align(128))] // The alignment keeps the breaker off cache lines that other values often write.
pub(crate) struct Breaker {
    state: Arc<AtomicState>,
    window: Duration,
    results: Arc<SlidingWindow<3>>,
    rule: BreakerRule,
    /// How long a probe without a result blocks other requests. After this time, another request becomes the probe.
    probe_timeout: Duration,
    history: Arc<Mutex<History>>,
}

/// History of the phases. Each change of phase locks the history, so that only one change happens at a time. The end of
/// a probe without a result needs no lock.
#[derive(Debug, Default)]
struct History {
    since: Moment,
    openings: u64,
    /// Number of failed probes since the circuit was last closed, without those after which it opens briefly. The open
    /// time doubles with each.
    failed_probes: u32,
    why: Option<OpenCause>,
}

/// Permit for one attempt. The attempt hands it back with its result. A permit that is dropped reports no result.
#[derive(Debug)]
#[must_use = "the result of the attempt has to be reported"]
pub(crate) struct BreakerPermit {
    generation: u64,
    /// The state to reset if this probe ends without a result. `None` if the attempt is not a probe.
    probed: Option<Arc<AtomicState>>,
    /// Whether the attempt is a probe that succeeds as soon as a connection is established.
    connection_only: bool,
}

/// Error of an attempt that the breaker does not admit, because the circuit is open or a probe is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotAdmitted {
    /// How long until the breaker admits a probe. `None` while a probe is in flight or an operator keeps the circuit
    /// open.
    pub wait: Option<Duration>,
}

impl BreakerPermit {
    fn plain(packed: PackedState) -> Self {
        Self {
            generation: packed.generation(),
            probed: None,
            connection_only: false,
        }
    }

    /// Whether the attempt is the probe of a half-open circuit.
    pub(crate) fn is_probe(&self) -> bool {
        self.probed.is_some()
    }

    /// Whether the attempt is a probe that succeeds as soon as a new connection is established. This applies if connect
    /// failures opened the circuit. The circuit then closes before the response arrives. For a sole server, a refused
    /// connection is enough.
    pub(crate) fn probes_connection(&self) -> bool {
        self.connection_only
    }
}

impl Drop for BreakerPermit {
    fn drop(&mut self) {
        // `release_probe` has no effect after a reported result, because the report has changed the generation.
        if let Some(state) = &self.probed {
            state.release_probe(self.generation);
        }
    }
}

impl Breaker {
    /// Creates a closed breaker for this many workers. A probe without a result, for example because its client is
    /// slow, blocks other requests for at most `probe_timeout`.
    pub(crate) fn new(settings: &BreakerSettings, probe_timeout: Duration, workers: usize) -> Self {
        Self {
            state: Arc::new(AtomicState::closed()),
            window: settings.window,
            results: Arc::new(SlidingWindow::new(settings.window, workers)),
            rule: BreakerRule::new(settings),
            probe_timeout,
            history: Arc::default(),
        }
    }

    /// Returns the breaker under new settings. Both share their state, because attempts that are in flight report to
    /// the old one. Only the results of a window of another length start again.
    pub(crate) fn renewed(
        &self,
        settings: &BreakerSettings,
        probe_timeout: Duration,
        workers: usize,
    ) -> Self {
        let new = Self::new(settings, probe_timeout, workers);
        Self {
            state: Arc::clone(&self.state),
            results: if self.window == settings.window {
                Arc::clone(&self.results)
            } else {
                new.results
            },
            history: Arc::clone(&self.history),
            ..new
        }
    }

    /// Admits every attempt while the circuit is closed. After the open time of an open circuit, admits one attempt as
    /// the probe.
    pub(crate) fn admit(&self, now: Moment) -> Result<BreakerPermit, NotAdmitted> {
        let packed = self.state.read();
        if packed.phase() == Phase::Closed {
            return Ok(BreakerPermit::plain(packed));
        }
        self.not_admitted(now)
            .map_or_else(|| self.begin_probe(now), Err)
    }

    /// Returns how long until the breaker admits a probe. `None` in three cases: the breaker admits an attempt now, a
    /// probe is in flight, or an operator keeps the circuit open.
    pub(crate) fn wait(&self, now: Moment) -> Option<Duration> {
        self.not_admitted(now)?.wait
    }

    /// Whether [`admit`](Self::admit) would admit an attempt at `now`. Another worker can change this before `admit` is
    /// called.
    pub(crate) fn may_admit(&self, now: Moment) -> bool {
        self.not_admitted(now).is_none()
    }

    #[cfg(test)]
    pub(crate) fn is_closed(&self) -> bool {
        self.state.is_closed()
    }

    /// Whether the circuit opened because the server was an outlier: it failed while the other servers were healthy.
    pub(crate) fn is_outlier(&self) -> bool {
        self.state.is_outlier()
    }

    /// Returns when the circuit last closed after it had been open. `None` if this has never happened.
    pub(crate) fn recovered_at(&self) -> Option<Moment> {
        self.state.recovered()
    }

    /// Reports a response that is not a failure. Returns the change of phase if this result closed the circuit.
    pub(crate) fn succeeded(
        &self,
        permit: BreakerPermit,
        worker: usize,
        now: Moment,
    ) -> Option<PhaseChange> {
        if permit.is_probe() {
            return self.recover(permit, now);
        }
        if self.end_streak(permit.generation) {
            self.results.add(worker, SUCCEEDED, now);
        }
        None
    }

    /// Reports a failure of the server. `others` are the breakers of the other servers of the upstream. Returns the
    /// change of phase if this result opened or closed the circuit.
    pub(crate) fn failed<'a>(
        &self,
        permit: BreakerPermit,
        failure: ServerFailure,
        (worker, now): (usize, Moment),
        random: &mut fastrand::Rng,
        others: impl Iterator<Item = &'a Self>,
    ) -> Option<PhaseChange> {
        let is_compared = self.rule.is_compared(failure);
        let why = if permit.is_probe() {
            if permit.connection_only && is_compared {
                return self.recover(permit, now);
            }
            OpenCause::FailedProbe
        } else {
            let streak = self.state.extend_streak(permit.generation, is_compared)?;
            self.results.add(worker, window_index(is_compared), now);
            let are_others_healthy = || Self::are_healthy(others, now);
            self.rule
                .cause_to_open(streak, self.counts(now), are_others_healthy)?
        };
        self.open(permit, (failure, why), now, random)
    }

    /// Opens the circuit until an operator closes it. Returns `None` if an operator had already opened it.
    pub(crate) fn hold_open(&self, now: Moment) -> Option<PhaseChange> {
        let mut history = self.history.lock();
        if self.state.read().phase() == Phase::Open && self.state.until().is_none() {
            return None;
        }
        history.opened(OpenCause::Operator, now);
        self.state.set_outlier(false);
        self.state.open_until(None);
        Some(PhaseChange::Opened {
            open_time: Duration::MAX,
            why: OpenCause::Operator,
        })
    }

    /// Closes the circuit on behalf of an operator, and resets the numbers of successes and failures to 0. Returns
    /// `None` if the circuit was already closed.
    pub(crate) fn close(&self, now: Moment) -> Option<PhaseChange> {
        let mut history = self.history.lock();
        if self.state.read().phase() == Phase::Closed {
            self.results.reset();
            self.state.enter(Phase::Closed);
            return None;
        }
        Some(self.close_circuit(&mut history, now))
    }

    /// Closes the circuit if the server is an outlier. The load balancer calls this if no other server is available.
    pub(crate) fn close_outlier(&self, now: Moment) -> Option<PhaseChange> {
        let mut history = self.history.lock();
        let is_outlier = self.state.is_outlier();
        is_outlier.then(|| self.close_circuit(&mut history, now))
    }

    /// Returns the current state, and the numbers of successes and failures in the window.
    pub(crate) fn snapshot(&self, now: Moment) -> BreakerSnapshot {
        let history = self.history.lock();
        let packed = self.state.read();
        let until = self.state.until();
        let (state, since) = match (packed.phase(), until) {
            (Phase::Closed, _) => (BreakerState::Closed, history.since),
            (Phase::Open, Some(until)) if until <= now => (BreakerState::HalfOpen, until),
            (Phase::Open, until) => {
                let state = BreakerState::Open {
                    remaining: until.map(|until| until.since(now)),
                    held: until.is_none(),
                };
                (state, history.since)
            }
            (Phase::HalfOpen | Phase::Probing, _) => (BreakerState::HalfOpen, history.since),
        };
        let counts = self.counts(now);
        BreakerSnapshot {
            state,
            since,
            consecutive_failures: packed.streak().length,
            openings: history.openings,
            why: history.why,
            succeeded: counts.succeeded,
            failed: counts.all_failures(),
        }
    }

    fn counts(&self, now: Moment) -> ResultCounts {
        let [succeeded, uncompared, compared] = self.results.sum(now);
        ResultCounts {
            succeeded,
            uncompared,
            compared,
        }
    }

    /// Whether at least one of the servers is known to be healthy, and none is known to fail. Only then can a failing
    /// server be an outlier.
    fn are_healthy<'a>(others: impl Iterator<Item = &'a Self>, now: Moment) -> bool {
        let mut known = others.filter_map(|other| other.is_healthy(now)).peekable();
        known.peek().is_some() && known.all(|is_healthy| is_healthy)
    }

    /// Whether the server is healthy, for the decision whether another server is an outlier. An outlier is not healthy.
    /// `None` if the server has too few results, or if it is not an outlier and its circuit is open or half-open.
    fn is_healthy(&self, now: Moment) -> Option<bool> {
        let packed = self.state.read();
        if packed.phase() != Phase::Closed {
            return self.is_outlier().then_some(false);
        }
        self.rule.is_healthy(packed.streak(), self.counts(now))
    }

    /// Resets the number of consecutive failures to 0. Returns `false` if the phase has changed since `generation`.
    fn end_streak(&self, generation: u64) -> bool {
        let packed = self.state.read();
        let is_current = packed.generation() == generation;
        if is_current && packed.streak().length != 0 {
            self.state.end_streak(generation);
        }
        is_current
    }

    /// Returns why the breaker does not admit an attempt, or `None` if it does. The phase and the end of the open time
    /// are read separately. If the phase changes in between, the end of the open time can be that of a later open
    /// phase. The result is then correct for this later phase.
    fn not_admitted(&self, now: Moment) -> Option<NotAdmitted> {
        match self.state.read().phase() {
            Phase::Open => match self.state.until() {
                Some(until) if until <= now => None,
                until => Some(NotAdmitted {
                    wait: until.map(|until| until.since(now)),
                }),
            },
            Phase::Probing if self.state.until().is_some_and(|until| until <= now) => None,
            Phase::Probing => Some(NotAdmitted { wait: None }),
            Phase::Closed | Phase::HalfOpen => None,
        }
    }

    /// Begins a probe. Fails if another request has begun one since the caller read the phase.
    fn begin_probe(&self, now: Moment) -> Result<BreakerPermit, NotAdmitted> {
        let mut history = self.history.lock();
        if let Some(not_admitted) = self.not_admitted(now) {
            return Err(not_admitted);
        }
        let packed = self.state.read();
        if packed.phase() == Phase::Closed {
            return Ok(BreakerPermit::plain(packed));
        }
        if let (Phase::Open, Some(until)) = (packed.phase(), self.state.until()) {
            history.since = until;
        }
        let connection_only = self.rule.is_default() && !self.is_outlier();
        let probe_timeout = if connection_only {
            self.probe_timeout.min(CONNECT_OPEN)
        } else {
            self.probe_timeout
        };
        Ok(BreakerPermit {
            generation: self.state.probe_until(now.after(probe_timeout)),
            probed: Some(Arc::clone(&self.state)),
            connection_only,
        })
    }

    /// Opens the circuit. Returns `None` and changes nothing if the phase has changed since the permit was issued.
    fn open(
        &self,
        permit: BreakerPermit,
        (failure, why): (ServerFailure, OpenCause),
        now: Moment,
        random: &mut fastrand::Rng,
    ) -> Option<PhaseChange> {
        let mut history = self.history.lock();
        if self.state.read().generation() != permit.generation {
            return None;
        }
        history.opened(why, now);
        if why == OpenCause::FailedProbe && !self.rule.opens_briefly(failure) {
            history.failed_probes += 1;
        }
        if why == OpenCause::Outlier {
            self.state.set_outlier(true);
        }
        let open_time = self.rule.open_time(failure, history.failed_probes, random);
        self.state.open_until(Some(now.after(open_time)));
        drop(permit);
        Some(PhaseChange::Opened { open_time, why })
    }

    /// Closes the circuit after a successful probe, unless the phase has changed since the probe began. A late success
    /// counts if both the probe and the circuit wait for a connection only.
    fn recover(&self, permit: BreakerPermit, now: Moment) -> Option<PhaseChange> {
        let mut history = self.history.lock();
        let packed = self.state.read();
        let is_held = self.state.until().is_none();
        let recovers = packed.generation() == permit.generation
            || permit.connection_only
                && packed.phase() != Phase::Closed
                && !is_held
                && !self.is_outlier();
        let change = recovers.then(|| self.close_circuit(&mut history, now));
        drop(permit);
        change
    }

    fn close_circuit(&self, history: &mut History, now: Moment) -> PhaseChange {
        history.since = now;
        history.failed_probes = 0;
        // The results are reset before the phase changes. A reset after the change would discard successes of the new
        // phase.
        self.results.reset();
        self.state.set_outlier(false);
        self.state.recover(now);
        PhaseChange::Closed
    }
}

impl History {
    fn opened(&mut self, why: OpenCause, now: Moment) {
        self.since = now;
        self.openings += 1;
        self.why = Some(why);
    }
}

/// Returns the index at which `Breaker::results` counts failures of this kind. Index 0 is [`SUCCEEDED`].
fn window_index(is_compared: bool) -> usize {
    1 + usize::from(is_compared)
}
