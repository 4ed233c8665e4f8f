//! A second implementation of the breaker, slow and plain: it keeps lists of all events and evaluates them from
//! the start. [`agreement`](super::agreement) compares both.

use super::super::settings::OpensOn;
use super::super::sliding_window::SLOTS;
use super::*;

/// How long a probe without a result blocks other requests.
pub(super) const PROBE: Duration = Duration::from_millis(500);

/// A breaker that keeps all events.
pub(super) struct Model {
    pub(super) settings: BreakerSettings,
    pub(super) phase: ModelPhase,
    since: Moment,
    /// Results of the closed phase, with their moments. `None` is a success.
    results: Vec<(Moment, Option<Failure>)>,
    /// Steps at which the phase changed.
    changes: Vec<usize>,
    /// Causes of all openings since the circuit was closed.
    causes: Vec<Cause>,
    openings: u64,
    why: Option<Cause>,
    pub(super) recovered: Option<Moment>,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum ModelPhase {
    Closed,
    /// `None` while held.
    Open(Option<Moment>),
    /// When the probe began, if there is one.
    HalfOpen {
        probed: Option<Moment>,
    },
}

/// The model's ticket: the step at which it was issued.
#[derive(Clone, Copy)]
pub(super) struct Pass {
    step: usize,
    pub(super) probe: bool,
    pub(super) connection_only: bool,
}

impl Model {
    pub(super) fn new(settings: BreakerSettings) -> Self {
        Self {
            settings,
            phase: ModelPhase::Closed,
            since: Moment::default(),
            results: Vec::new(),
            changes: Vec::new(),
            causes: Vec::new(),
            openings: 0,
            why: None,
            recovered: None,
        }
    }

    /// Ends an open phase whose time is over.
    pub(super) fn pass_time(&mut self, now: Moment) {
        if let ModelPhase::Open(Some(until)) = self.phase
            && until <= now
        {
            self.phase = ModelPhase::HalfOpen { probed: None };
            self.since = until;
        }
    }

    /// Whether the server is shut off as an outlier.
    pub(super) fn is_outlier(&self) -> bool {
        let is_off = !matches!(self.phase, ModelPhase::Closed | ModelPhase::Open(None));
        is_off && self.causes.contains(&Cause::Outlier)
    }

    pub(super) fn admit(&mut self, step: usize, now: Moment) -> Result<Pass, Refused> {
        match self.phase {
            ModelPhase::Closed => Ok(Pass {
                step,
                probe: false,
                connection_only: false,
            }),
            ModelPhase::Open(until) => Err(Refused {
                wait: until.map(|until| until.since(now)),
            }),
            ModelPhase::HalfOpen {
                probed: Some(since),
            } if now.since(since) < PROBE => Err(Refused { wait: None }),
            ModelPhase::HalfOpen { .. } => {
                self.phase = ModelPhase::HalfOpen { probed: Some(now) };
                self.changes.push(step);
                Ok(Pass {
                    step,
                    probe: true,
                    connection_only: self.settings.opens_on == OpensOn::Outliers
                        && !self.is_outlier(),
                })
            }
        }
    }

    fn is_late(&self, pass: Pass) -> bool {
        self.changes.iter().any(|change| *change > pass.step)
    }

    pub(super) fn succeeded(&mut self, pass: Pass, step: usize, now: Moment) -> Option<Change> {
        if self.is_late(pass) {
            return None;
        }
        if pass.probe {
            self.shut(step, now);
            return Some(Change::Closed);
        }
        self.results.push((now, None));
        None
    }

    /// Returns why the circuit opens, if it does.
    pub(super) fn failed(
        &mut self,
        pass: Pass,
        failure: Failure,
        now: Moment,
        others: &[&Self],
    ) -> Option<Cause> {
        if self.is_late(pass) {
            return None;
        }
        if pass.probe {
            return Some(Cause::FailedProbe);
        }
        self.results.push((now, Some(failure)));
        if self.settings.opens_on == OpensOn::Nothing {
            return None;
        }
        if self.counts_alone(failure) && self.in_a_row() >= self.settings.consecutive_failures.get()
        {
            return Some(Cause::InARow);
        }
        // The ratio of all settings here is a half.
        let (all, failures, counted) = self.counts(now);
        if all < u64::from(self.settings.min_requests.get()) {
            return None;
        }
        if 2 * counted >= all {
            return Some(Cause::Ratio);
        }
        let others: Vec<_> = others
            .iter()
            .filter_map(|other| other.verdict(now))
            .collect();
        let is_long =
            !self.counts_alone(failure) && self.in_a_row() >= self.settings.min_requests.get();
        let fails = is_long || 2 * failures >= all;
        let is_outlier = fails && !others.is_empty() && !others.contains(&false);
        is_outlier.then_some(Cause::Outlier)
    }

    /// Whether the server is healthy; `None` if that is not known.
    fn verdict(&self, now: Moment) -> Option<bool> {
        let (all, failures, _) = self.counts(now);
        match self.phase {
            ModelPhase::Closed if all > 0 && 4 * failures >= all => Some(false),
            ModelPhase::Closed if all > 0 && self.in_a_row() > 0 => Some(false),
            ModelPhase::Closed if all < u64::from(self.settings.min_requests.get()) => None,
            ModelPhase::Closed => Some(true),
            _ if self.is_outlier() => Some(false),
            _ => None,
        }
    }

    pub(super) fn abandoned(&mut self, pass: Pass) {
        if pass.probe && !self.is_late(pass) {
            self.phase = ModelPhase::HalfOpen { probed: None };
        }
    }

    pub(super) fn open(&mut self, until: Option<Moment>, why: Cause, step: usize, now: Moment) {
        self.phase = ModelPhase::Open(until);
        self.since = now;
        self.changes.push(step);
        self.causes.push(why);
        self.openings += 1;
        self.why = Some(why);
    }

    pub(super) fn shut(&mut self, step: usize, now: Moment) {
        if self.phase != ModelPhase::Closed {
            self.since = now;
            self.recovered = Some(now);
        }
        self.phase = ModelPhase::Closed;
        self.changes.push(step);
        self.results.clear();
        self.causes.clear();
    }

    /// Returns the open time without jitter.
    pub(super) fn open_time(&self) -> Duration {
        let failed = self.causes.iter().filter(|why| **why == Cause::FailedProbe);
        let doubled = failed.fold(self.settings.open, |time, _| time * 2);
        doubled.min(self.settings.open_max)
    }

    /// Whether a failure counts by itself, without comparison.
    fn counts_alone(&self, failure: Failure) -> bool {
        failure == Failure::Connect || self.settings.opens_on != OpensOn::Outliers
    }

    /// Returns the number of the last results that are failures of one kind.
    fn in_a_row(&self) -> u32 {
        let kind = |(_, result): &(_, Option<Failure>)| result.map(|f| self.counts_alone(f));
        let last = self.results.last().and_then(kind);
        let results = self.results.iter().rev();
        let row = results.take_while(|result| last.is_some() && kind(result) == last);
        u32::try_from(row.count()).unwrap()
    }

    /// Results in the window, the failures among them, and those of them that count by themselves.
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

    pub(super) fn snapshot(&self, now: Moment) -> Snapshot {
        let (all, failures, _) = self.counts(now);
        Snapshot {
            state: match self.phase {
                ModelPhase::Closed => State::Closed,
                ModelPhase::Open(until) => State::Open {
                    remaining: until.map(|until| until.since(now)),
                    held: until.is_none(),
                },
                ModelPhase::HalfOpen { .. } => State::HalfOpen,
            },
            since: self.since,
            in_a_row: match self.phase {
                ModelPhase::Closed => self.in_a_row(),
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
