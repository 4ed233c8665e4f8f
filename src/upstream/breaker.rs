//! Circuit breaker of one server. While it is open, the server receives no requests. When it is half-open, one request
//! is the probe that closes or reopens it.
//!
//! A [`BreakerPermit`] belongs to the phase in which it was issued, and a result that arrives in a later phase is ignored.
//! There is one exception: a late connection closes a circuit that connect failures opened, because it shows that the
//! server accepts connections now. A permit that is dropped without a result reports nothing.
//!
//! One lock holds the state of a circuit. With counters per worker and a packed atomic word, phase, failures and window
//! can only be read separately, and an attempt saves 8 of 137 instructions (callgrind).

mod circuit;
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

pub(crate) use self::report::{
    BreakerSnapshot, BreakerState, OpenCause, PhaseChange, ServerFailure,
};

use self::circuit::{COMPARED, Phase, SUCCEEDED, SharedCircuit, UNCOMPARED};
pub(super) use self::rule::CONNECT_OPEN;
use self::rule::{BreakerRule, FailureStreak, ResultCounts};
use super::settings::BreakerSettings;
use crate::clock::Moment;

/// Circuit breaker of one server, shared by all workers.
#[derive(Debug)]
pub(crate) struct Breaker {
    shared: Arc<SharedCircuit>,
    rule: BreakerRule,
    /// How long a probe without a result blocks other requests.
    probe_timeout: Duration,
}

/// Permit for one attempt. A permit that is dropped reports no result.
#[derive(Debug)]
#[must_use = "the result of the attempt has to be reported"]
pub(crate) struct BreakerPermit {
    generation: u64,
    /// The circuit to reset if this probe ends without a result. `None` if the attempt is not a probe.
    probed: Option<Arc<SharedCircuit>>,
    connection_only: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotAdmitted {
    /// Until the breaker admits a probe. `None` while a probe is in flight or an operator keeps the circuit open.
    pub wait: Option<Duration>,
}

impl BreakerPermit {
    pub(crate) fn is_probe(&self) -> bool {
        self.probed.is_some()
    }

    /// Whether the attempt is a probe that succeeds as soon as a new connection is established, because connect failures
    /// opened the circuit. For a sole server, a refused connection is enough.
    pub(crate) fn probes_connection(&self) -> bool {
        self.connection_only
    }
}

impl Drop for BreakerPermit {
    fn drop(&mut self) {
        let Some(probed) = &self.probed else {
            return;
        };
        let mut circuit = probed.circuit.lock();
        // A reported result has changed the generation.
        if circuit.generation == self.generation {
            circuit.phase = Phase::HalfOpen;
        }
    }
}

impl Breaker {
    /// A probe without a result, for example because its client is slow, blocks other requests for at most
    /// `probe_timeout`.
    pub(crate) fn new(settings: &BreakerSettings, probe_timeout: Duration) -> Self {
        Self {
            shared: Arc::new(SharedCircuit::new(settings.window)),
            rule: BreakerRule::new(settings),
            probe_timeout,
        }
    }

    /// Returns the breaker under new settings. Both share their circuit, because attempts that are in flight report to
    /// the old one. Only the results of a window of another length start again.
    pub(crate) fn renewed(&self, settings: &BreakerSettings, probe_timeout: Duration) -> Self {
        (self.shared.circuit.lock().results).set_length(settings.window);
        Self {
            shared: Arc::clone(&self.shared),
            ..Self::new(settings, probe_timeout)
        }
    }

    /// Admits every attempt while the circuit is closed. After the open time of an open circuit, admits one attempt as
    /// the probe.
    pub(crate) fn admit(&self, now: Moment) -> Result<BreakerPermit, NotAdmitted> {
        let mut circuit = self.shared.circuit.lock();
        if let Some(not_admitted) = circuit.not_admitted(now) {
            return Err(not_admitted);
        }
        if circuit.phase == Phase::Closed {
            return Ok(BreakerPermit {
                generation: circuit.generation,
                probed: None,
                connection_only: false,
            });
        }
        if let Phase::Open { until: Some(until) } = circuit.phase {
            circuit.since = until;
        }
        let connection_only = self.rule.is_default() && !circuit.is_outlier;
        let probe_timeout = if connection_only {
            self.probe_timeout.min(CONNECT_OPEN)
        } else {
            self.probe_timeout
        };
        let until = now.after(probe_timeout);
        self.shared.enter(&mut circuit, Phase::Probing { until });
        Ok(BreakerPermit {
            generation: circuit.generation,
            probed: Some(Arc::clone(&self.shared)),
            connection_only,
        })
    }

    /// Until the breaker admits a probe. `None` also if it admits an attempt now.
    pub(crate) fn wait(&self, now: Moment) -> Option<Duration> {
        self.shared.circuit.lock().not_admitted(now)?.wait
    }

    /// Another worker can change this before [`admit`](Self::admit) is called.
    pub(crate) fn may_admit(&self, now: Moment) -> bool {
        self.shared.is_closed() || self.shared.circuit.lock().not_admitted(now).is_none()
    }

    #[cfg(test)]
    pub(crate) fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }

    /// Whether the circuit opened because the server failed while the other servers were healthy.
    pub(crate) fn is_outlier(&self) -> bool {
        self.shared.circuit.lock().is_outlier
    }

    /// When the circuit last closed after it had been open.
    pub(crate) fn recovered_at(&self) -> Option<Moment> {
        self.shared.recovered_at()
    }

    /// Reports a response that is not a failure.
    pub(crate) fn succeeded(&self, permit: BreakerPermit, now: Moment) -> Option<PhaseChange> {
        if permit.is_probe() {
            return self.recover(permit, now);
        }
        let mut circuit = self.shared.circuit.lock();
        if circuit.generation == permit.generation {
            circuit.streak = FailureStreak::default();
            circuit.results.add(SUCCEEDED, now);
        }
        None
    }

    /// Reports a failure of the server. `others` are the breakers of the other servers of the upstream.
    pub(crate) fn failed<'a>(
        &self,
        permit: BreakerPermit,
        failure: ServerFailure,
        now: Moment,
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
            let (streak, counts) = self.record_failure(permit.generation, is_compared, now)?;
            // The circuit is not locked here: a server that looks at this one at the same time would wait for ever.
            let are_others_healthy = || Self::are_healthy(others, now);
            (self.rule).cause_to_open(streak, counts, are_others_healthy)?
        };
        self.open(permit, (failure, why), now, random)
    }

    fn record_failure(
        &self,
        generation: u64,
        is_compared: bool,
        now: Moment,
    ) -> Option<(FailureStreak, ResultCounts)> {
        let mut circuit = self.shared.circuit.lock();
        if circuit.generation != generation {
            return None;
        }
        circuit.streak = circuit.streak.after(is_compared);
        let kind = if is_compared { COMPARED } else { UNCOMPARED };
        circuit.results.add(kind, now);
        Some((circuit.streak, circuit.counts(now)))
    }

    /// Opens the circuit until an operator closes it. Returns `None` if an operator had already opened it.
    pub(crate) fn hold_open(&self, now: Moment) -> Option<PhaseChange> {
        let mut circuit = self.shared.circuit.lock();
        let held = Phase::Open { until: None };
        if circuit.phase == held {
            return None;
        }
        circuit.opened(OpenCause::Operator, now);
        circuit.is_outlier = false;
        self.shared.enter(&mut circuit, held);
        Some(PhaseChange::Opened {
            open_time: Duration::MAX,
            why: OpenCause::Operator,
        })
    }

    /// Closes the circuit on behalf of an operator, and resets the counts. Returns `None` if it was already closed.
    pub(crate) fn close(&self, now: Moment) -> Option<PhaseChange> {
        let mut circuit = self.shared.circuit.lock();
        if circuit.phase == Phase::Closed {
            circuit.results.reset();
            self.shared.enter(&mut circuit, Phase::Closed);
            return None;
        }
        Some(self.shared.close(&mut circuit, now))
    }

    /// Closes the circuit of an outlier, for the case that no other server is available.
    pub(crate) fn close_outlier(&self, now: Moment) -> Option<PhaseChange> {
        let mut circuit = self.shared.circuit.lock();
        let is_outlier = circuit.is_outlier;
        is_outlier.then(|| self.shared.close(&mut circuit, now))
    }

    pub(crate) fn snapshot(&self, now: Moment) -> BreakerSnapshot {
        let mut circuit = self.shared.circuit.lock();
        let (state, since) = match circuit.phase {
            Phase::Closed => (BreakerState::Closed, circuit.since),
            Phase::Open { until: Some(until) } if until <= now => (BreakerState::HalfOpen, until),
            Phase::Open { until } => {
                let state = BreakerState::Open {
                    remaining: until.map(|until| until.since(now)),
                    held: until.is_none(),
                };
                (state, circuit.since)
            }
            Phase::HalfOpen | Phase::Probing { .. } => (BreakerState::HalfOpen, circuit.since),
        };
        let counts = circuit.counts(now);
        BreakerSnapshot {
            state,
            since,
            consecutive_failures: circuit.streak.length,
            openings: circuit.openings,
            why: circuit.why,
            succeeded: counts.succeeded,
            failed: counts.all_failures(),
        }
    }

    /// Whether at least one of the servers is known to be healthy, and none is known to fail. Only then can a failing
    /// server be an outlier.
    fn are_healthy<'a>(others: impl Iterator<Item = &'a Self>, now: Moment) -> bool {
        let mut known = others.filter_map(|other| other.is_healthy(now)).peekable();
        known.peek().is_some() && known.all(|is_healthy| is_healthy)
    }

    /// `None` if the server has too few results, or if it is not an outlier and its circuit is open or half-open.
    fn is_healthy(&self, now: Moment) -> Option<bool> {
        let mut circuit = self.shared.circuit.lock();
        if circuit.phase != Phase::Closed {
            return circuit.is_outlier.then_some(false);
        }
        let counts = circuit.counts(now);
        self.rule.is_healthy(circuit.streak, counts)
    }

    /// Opens the circuit, unless the phase has changed since the permit was issued.
    fn open(
        &self,
        permit: BreakerPermit,
        (failure, why): (ServerFailure, OpenCause),
        now: Moment,
        random: &mut fastrand::Rng,
    ) -> Option<PhaseChange> {
        let mut circuit = self.shared.circuit.lock();
        if circuit.generation != permit.generation {
            return None;
        }
        circuit.opened(why, now);
        if why == OpenCause::FailedProbe && !self.rule.opens_briefly(failure) {
            circuit.failed_probes += 1;
        }
        circuit.is_outlier |= why == OpenCause::Outlier;
        let open_time = (self.rule).open_time(failure, circuit.failed_probes, random);
        let until = Some(now.after(open_time));
        self.shared.enter(&mut circuit, Phase::Open { until });
        drop(circuit);
        drop(permit);
        Some(PhaseChange::Opened { open_time, why })
    }

    /// Closes the circuit after a successful probe, unless the phase has changed since the probe began. A late success
    /// counts if both the probe and the circuit wait for a connection only.
    fn recover(&self, permit: BreakerPermit, now: Moment) -> Option<PhaseChange> {
        let mut circuit = self.shared.circuit.lock();
        let waits_for_connection = !circuit.is_outlier
            && !matches!(circuit.phase, Phase::Closed | Phase::Open { until: None });
        let recovers = circuit.generation == permit.generation
            || permit.connection_only && waits_for_connection;
        let change = recovers.then(|| self.shared.close(&mut circuit, now));
        drop(circuit);
        drop(permit);
        change
    }
}
