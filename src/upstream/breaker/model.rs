//! Reference implementation of the circuit breaker for tests. It is slow and simple: it stores all results and
//! evaluates all of them for each decision. `tests/model_comparison.rs` compares the circuit breaker with it.

use super::super::settings::OpensOn;
use super::super::sliding_window::SLOTS;
use super::*;

/// How long a probe without a result blocks other requests.
pub(super) const PROBE: Duration = Duration::from_millis(1_200);

/// A circuit breaker that stores all results of the closed phase.
pub(super) struct BreakerModel {
    pub(super) settings: BreakerSettings,
    pub(super) phase: ModelPhase,
    since: Moment,
    /// Results of the closed phase, each with its time. `None` stands for a success.
    results: Vec<(Moment, Option<ServerFailure>)>,
    /// Numbers of the test steps at which the phase changed.
    changes: Vec<usize>,
    /// Why the circuit opened, for each opening since it was last closed.
    causes: Vec<OpenCause>,
    /// Failures of probes since the circuit was last closed.
    failed_probes: Vec<ServerFailure>,
    openings: u64,
    why: Option<OpenCause>,
    pub(super) recovered: Option<Moment>,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum ModelPhase {
    Closed,
    /// The circuit is open until this time. `None` if an operator keeps the circuit open.
    Open(Option<Moment>),
    /// The circuit admits one probe. `blocked` is until when the probe in flight blocks others, if there is one.
    HalfOpen {
        blocked: Option<Moment>,
    },
}

/// Permit of the model. It contains the number of the test step that issued it.
#[derive(Clone, Copy)]
pub(super) struct ModelPermit {
    step: usize,
    pub(super) probe: bool,
    pub(super) connection_only: bool,
}

impl BreakerModel {
    pub(super) fn new(settings: BreakerSettings) -> Self {
        Self {
            settings,
            phase: ModelPhase::Closed,
            since: Moment::default(),
            results: Vec::new(),
            changes: Vec::new(),
            causes: Vec::new(),
            failed_probes: Vec::new(),
            openings: 0,
            why: None,
            recovered: None,
        }
    }

    /// Changes an open circuit to half-open if its open time is over at `now`.
    pub(super) fn advance_to(&mut self, now: Moment) {
        if let ModelPhase::Open(Some(until)) = self.phase
            && until <= now
        {
            self.phase = ModelPhase::HalfOpen { blocked: None };
            self.since = until;
        }
    }

    /// Whether the circuit opened because the server failed while the other servers were healthy.
    pub(super) fn is_outlier(&self) -> bool {
        let is_shut_off = !matches!(self.phase, ModelPhase::Closed | ModelPhase::Open(None));
        is_shut_off && self.causes.contains(&OpenCause::Outlier)
    }

    pub(super) fn admit(&mut self, step: usize, now: Moment) -> Result<ModelPermit, NotAdmitted> {
        match self.phase {
            ModelPhase::Closed => Ok(ModelPermit {
                step,
                probe: false,
                connection_only: false,
            }),
            ModelPhase::Open(until) => Err(NotAdmitted {
                wait: until.map(|until| until.since(now)),
            }),
            ModelPhase::HalfOpen {
                blocked: Some(until),
            } if now < until => Err(NotAdmitted { wait: None }),
            ModelPhase::HalfOpen { .. } => {
                let connection_only = self.is_default() && !self.is_outlier();
                let blocks = if connection_only { CONNECT_OPEN } else { PROBE };
                self.phase = ModelPhase::HalfOpen {
                    blocked: Some(now.after(blocks)),
                };
                self.changes.push(step);
                Ok(ModelPermit {
                    step,
                    probe: true,
                    connection_only,
                })
            }
        }
    }

    fn is_late(&self, permit: ModelPermit) -> bool {
        self.changes.iter().any(|change| *change > permit.step)
    }

    pub(super) fn succeeded(
        &mut self,
        permit: ModelPermit,
        step: usize,
        now: Moment,
    ) -> Option<PhaseChange> {
        let is_shut_off = !matches!(self.phase, ModelPhase::Closed | ModelPhase::Open(None));
        let shows_connection = permit.connection_only && is_shut_off && !self.is_outlier();
        if self.is_late(permit) && !shows_connection {
            return None;
        }
        if permit.probe {
            self.close_circuit(step, now);
            return Some(PhaseChange::Closed);
        }
        self.results.push((now, None));
        None
    }

    /// Records a failure and returns why the circuit has to open. `None` if the circuit stays closed.
    pub(super) fn failed(
        &mut self,
        permit: ModelPermit,
        failure: ServerFailure,
        now: Moment,
        others: &[&Self],
    ) -> Option<OpenCause> {
        if self.is_late(permit) {
            return None;
        }
        if permit.probe {
            self.failed_probes.push(failure);
            return Some(OpenCause::FailedProbe);
        }
        self.results.push((now, Some(failure)));
        if self.settings.opens_on == OpensOn::Nothing {
            return None;
        }
        if self.counts_alone(failure)
            && self.consecutive_failures() >= self.settings.consecutive_failures.get()
        {
            return Some(OpenCause::ConsecutiveFailures);
        }
        // The factor 2 below is 1 / `failure_ratio`, because `failure_ratio` is 0.5 in all settings of the test.
        let (all, failures, counted) = self.counts(now);
        if all < u64::from(self.settings.min_requests.get()) {
            return None;
        }
        if 2 * counted >= all {
            return Some(OpenCause::FailureRatio);
        }
        let others: Vec<_> = others
            .iter()
            .filter_map(|other| other.is_healthy(now))
            .collect();
        let is_long_streak = !self.counts_alone(failure)
            && self.consecutive_failures() >= self.settings.min_requests.get();
        let fails = is_long_streak || 2 * failures >= all;
        let is_outlier = fails && !others.is_empty() && !others.contains(&false);
        is_outlier.then_some(OpenCause::Outlier)
    }

    /// Whether the server is healthy. An outlier is not healthy. `None` if the server has too few results, or if it
    /// is not an outlier and its circuit is open or half-open.
    fn is_healthy(&self, now: Moment) -> Option<bool> {
        let (all, failures, _) = self.counts(now);
        match self.phase {
            ModelPhase::Closed if all > 0 && 4 * failures >= all => Some(false),
            ModelPhase::Closed if all > 0 && self.consecutive_failures() > 0 => Some(false),
            ModelPhase::Closed if all < u64::from(self.settings.min_requests.get()) => None,
            ModelPhase::Closed => Some(true),
            _ if self.is_outlier() => Some(false),
            _ => None,
        }
    }

    pub(super) fn abandoned(&mut self, permit: ModelPermit) {
        if permit.probe && !self.is_late(permit) {
            self.phase = ModelPhase::HalfOpen { blocked: None };
        }
    }

    pub(super) fn open(&mut self, until: Option<Moment>, why: OpenCause, step: usize, now: Moment) {
        self.phase = ModelPhase::Open(until);
        self.since = now;
        self.changes.push(step);
        self.causes.push(why);
        self.openings += 1;
        self.why = Some(why);
    }

    pub(super) fn close_circuit(&mut self, step: usize, now: Moment) {
        if self.phase != ModelPhase::Closed {
            self.since = now;
            self.recovered = Some(now);
        }
        self.phase = ModelPhase::Closed;
        self.changes.push(step);
        self.results.clear();
        self.causes.clear();
        self.failed_probes.clear();
    }

    fn is_default(&self) -> bool {
        [OpensOn::ConnectTimeouts, OpensOn::Outliers].contains(&self.settings.opens_on)
    }

    /// Returns how long the circuit stays open after this failure, without jitter.
    pub(super) fn open_time(&self, failure: ServerFailure) -> Duration {
        let is_brief = |failure| self.is_default() && failure != ServerFailure::Response;
        if is_brief(failure) {
            return CONNECT_OPEN;
        }
        let failed = self.failed_probes.iter().filter(|it| !is_brief(**it));
        let doubled = failed.fold(self.settings.open, |time, _| time * 2);
        doubled.min(self.settings.open_max)
    }

    /// Whether a failure can open the circuit without a comparison with the other servers.
    pub(super) fn counts_alone(&self, failure: ServerFailure) -> bool {
        match self.settings.opens_on {
            OpensOn::ConnectTimeouts => failure == ServerFailure::ConnectTimeout,
            OpensOn::Outliers => failure != ServerFailure::Response,
            OpensOn::Nothing | OpensOn::AllFailures => true,
        }
    }

    /// Returns the number of consecutive failures of the same kind at the end of `results`. There are two kinds:
    /// failures for which [`counts_alone`](Self::counts_alone) is true, and all other failures.
    fn consecutive_failures(&self) -> u32 {
        let kind = |(_, result): &(_, Option<ServerFailure>)| result.map(|f| self.counts_alone(f));
        let last = self.results.last().and_then(kind);
        let results = self.results.iter().rev();
        let streak = results.take_while(|result| last.is_some() && kind(result) == last);
        u32::try_from(streak.count()).unwrap()
    }

    /// Returns three numbers for the window: all results, all failures, and the failures for which
    /// [`counts_alone`](Self::counts_alone) is true.
    fn counts(&self, now: Moment) -> (u64, u64, u64) {
        let slot = |moment: Moment| moment.as_nanos() / (nanos(self.settings.window) / SLOTS);
        let within = |moment| slot(moment) + SLOTS > slot(now);
        let results = self.results.iter().filter(|(moment, _)| within(*moment));
        let failures = results.clone().filter_map(|(_, result)| *result);
        let counted = failures.clone().filter(|f| self.counts_alone(*f));
        (
            results.count() as u64,
            failures.count() as u64,
            counted.count() as u64,
        )
    }

    pub(super) fn snapshot(&self, now: Moment) -> BreakerSnapshot {
        let (all, failures, _) = self.counts(now);
        BreakerSnapshot {
            state: match self.phase {
                ModelPhase::Closed => BreakerState::Closed,
                ModelPhase::Open(until) => BreakerState::Open {
                    remaining: until.map(|until| until.since(now)),
                    held: until.is_none(),
                },
                ModelPhase::HalfOpen { .. } => BreakerState::HalfOpen,
            },
            since: self.since,
            consecutive_failures: match self.phase {
                ModelPhase::Closed => self.consecutive_failures(),
                _ => 0,
            },
            openings: self.openings,
            why: self.why,
            succeeded: all - failures,
            failed: failures,
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap()
}
