//! Circuit breaker of one server: closed, open, or half-open.
//!
//! Every attempt calls [`Breaker::admit`] first and reports its result with the [`Ticket`] it got. A ticket
//! holds the phase in which it was issued, so a result of an earlier phase has no effect: a late success closes
//! nothing, and a late failure does not extend the open time. A dropped ticket reports nothing and frees the
//! slot of the probe at once. Failures in a row count besides the ratio, because a server with little traffic
//! may never reach the volume that the ratio needs. What opens a circuit is in `rule`. While nothing fails, no
//! attempt takes a lock or writes a cache line that others read. The cost: a success reported while the phase
//! changes may be counted in the next phase, at most one per worker.

mod packed_state;
mod report;
mod rule;

#[cfg(test)]
mod model;
#[cfg(test)]
mod outliers;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

pub(crate) use self::report::{Cause, Change, Failure, Snapshot, State};

use self::packed_state::{AtomicState, PackedState, Phase};
use self::rule::{Counts, Rule};
use super::settings::BreakerSettings;
use super::sliding_window::SlidingWindow;
use crate::clock::Moment;

/// Index of successes in a breaker's tally. Those of failures are in [`index`].
const SUCCEEDED: usize = 0;

/// One server's breaker, shared by all workers.
#[derive(Debug)]
#[repr(align(128))] // Neighbours may be written all the time.
pub(crate) struct Breaker {
    signal: Arc<AtomicState>,
    tally: SlidingWindow<3>,
    rule: Rule,
    /// How long a probe without a result blocks other requests.
    probe: Duration,
    history: Mutex<History>,
}

/// History of the phases. Locked for every change of phase.
#[derive(Debug, Default)]
struct History {
    since: Moment,
    openings: u64,
    /// Failed probes since the circuit was closed.
    failed_probes: u32,
    why: Option<Cause>,
}

/// Admission of one attempt, returned with its result. Dropped without a result, it reports nothing.
#[derive(Debug)]
#[must_use = "the result of the attempt has to be reported"]
pub(crate) struct Ticket {
    generation: u64,
    /// The signal that a probe returns its slot to.
    probe: Option<Arc<AtomicState>>,
    /// Whether a connection is all that the probe has to establish.
    connection_only: bool,
}

/// The breaker does not admit an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// Time until the breaker admits a probe. `None` while a probe is in flight or an operator holds the circuit
    /// open.
    pub wait: Option<Duration>,
}

impl Ticket {
    fn plain(word: PackedState) -> Self {
        Self {
            generation: word.generation(),
            probe: None,
            connection_only: false,
        }
    }

    /// Whether this attempt decides between closed and open.
    pub(crate) fn is_probe(&self) -> bool {
        self.probe.is_some()
    }

    /// Whether this attempt is a probe that succeeds with a new connection. Connect failures opened the circuit,
    /// so the response does not matter, and other requests do not have to wait for it.
    pub(crate) fn probes_connection(&self) -> bool {
        self.connection_only
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // After a report the generation is another one, and this has no effect.
        if let Some(signal) = &self.probe {
            signal.vacate(self.generation);
        }
    }
}

impl Breaker {
    /// Creates a closed breaker for this many workers. A probe without a result blocks other requests for
    /// `probe` at most: its client may be slow.
    pub(crate) fn new(settings: &BreakerSettings, probe: Duration, workers: usize) -> Self {
        Self {
            signal: Arc::new(AtomicState::closed()),
            tally: SlidingWindow::new(settings.window, workers),
            rule: Rule::new(settings),
            probe,
            history: Mutex::default(),
        }
    }

    /// Admits an attempt. The first one after the open time is the probe.
    pub(crate) fn admit(&self, now: Moment) -> Result<Ticket, Refused> {
        let word = self.signal.read();
        if word.phase() == Phase::Closed {
            return Ok(Ticket::plain(word));
        }
        self.refusal(now).map_or_else(|| self.probe(now), Err)
    }

    /// Returns the time until the breaker admits an attempt, if known; see [`Refused`].
    pub(crate) fn wait(&self, now: Moment) -> Option<Duration> {
        self.refusal(now)?.wait
    }

    /// Whether [`admit`](Self::admit) would admit an attempt.
    pub(crate) fn may_admit(&self, now: Moment) -> bool {
        self.refusal(now).is_none()
    }

    #[cfg(test)]
    pub(crate) fn is_closed(&self) -> bool {
        self.signal.is_closed()
    }

    /// Whether the server is shut off because of its responses, in comparison with the others.
    pub(crate) fn is_outlier(&self) -> bool {
        self.signal.is_outlier()
    }

    /// Returns when the circuit last closed after it had been open.
    pub(crate) fn recovered_at(&self) -> Option<Moment> {
        self.signal.recovered()
    }

    /// Reports that the server responded, and not with a failure.
    pub(crate) fn succeeded(&self, ticket: Ticket, worker: usize, now: Moment) -> Option<Change> {
        if ticket.is_probe() {
            return self.recover(ticket, now);
        }
        if self.end_row(ticket.generation) {
            self.tally.add(worker, SUCCEEDED, now);
        }
        None
    }

    /// Reports a failure of the server. `others` are the breakers of the upstream's other servers.
    pub(crate) fn failed<'a>(
        &self,
        ticket: Ticket,
        failure: Failure,
        (worker, now): (usize, Moment),
        random: &mut fastrand::Rng,
        others: impl Iterator<Item = &'a Self>,
    ) -> Option<Change> {
        let why = if ticket.is_probe() {
            if ticket.connection_only && failure == Failure::Response {
                return self.recover(ticket, now);
            }
            Cause::FailedProbe
        } else {
            let is_compared = self.rule.is_compared(failure);
            let row = self.signal.lengthen_row(ticket.generation, is_compared)?;
            self.tally.add(worker, index(failure), now);
            let are_others_healthy = || Self::are_healthy(others, now);
            self.rule.judge(row, self.counts(now), are_others_healthy)?
        };
        self.open(ticket, why, now, random)
    }

    /// Opens the circuit until an operator closes it.
    pub(crate) fn hold_open(&self, now: Moment) -> Option<Change> {
        let mut history = self.history.lock();
        if self.signal.read().phase() == Phase::Open && self.signal.until().is_none() {
            return None;
        }
        history.opened(Cause::ByHand, now);
        self.signal.set_outlier(false);
        self.signal.open_until(None);
        Some(Change::Opened {
            for_: Duration::MAX,
            why: Cause::ByHand,
        })
    }

    /// Closes the circuit and discards all counts.
    pub(crate) fn close(&self, now: Moment) -> Option<Change> {
        let mut history = self.history.lock();
        if self.signal.read().phase() == Phase::Closed {
            self.tally.forget();
            self.signal.enter(Phase::Closed);
            return None;
        }
        Some(self.shut(&mut history, now))
    }

    /// Closes the circuit of an outlier, because no other server is left to compare it with.
    pub(crate) fn close_outlier(&self, now: Moment) -> Option<Change> {
        let mut history = self.history.lock();
        let is_outlier = self.signal.is_outlier();
        is_outlier.then(|| self.shut(&mut history, now))
    }

    /// Returns the current state and counts.
    pub(crate) fn snapshot(&self, now: Moment) -> Snapshot {
        let history = self.history.lock();
        let word = self.signal.read();
        let until = self.signal.until();
        let (state, since) = match (word.phase(), until) {
            (Phase::Closed, _) => (State::Closed, history.since),
            (Phase::Open, Some(until)) if until <= now => (State::HalfOpen, until),
            (Phase::Open, until) => {
                let state = State::Open {
                    remaining: until.map(|until| until.since(now)),
                    held: until.is_none(),
                };
                (state, history.since)
            }
            (Phase::HalfOpen | Phase::Probing, _) => (State::HalfOpen, history.since),
        };
        let counts = self.counts(now);
        Snapshot {
            state,
            since,
            in_a_row: word.row().length,
            openings: history.openings,
            why: history.why,
            succeeded: counts.succeeded,
            failed: counts.failures(),
        }
    }

    fn counts(&self, now: Moment) -> Counts {
        let [succeeded, unreached, failed] = self.tally.sum(now);
        Counts {
            succeeded,
            unreached,
            failed,
        }
    }

    /// Whether no server fails, and at least one is known to be healthy.
    fn are_healthy<'a>(others: impl Iterator<Item = &'a Self>, now: Moment) -> bool {
        let mut verdicts = others.filter_map(|other| other.is_healthy(now)).peekable();
        verdicts.peek().is_some() && verdicts.all(|is_healthy| is_healthy)
    }

    /// Whether the server is healthy, as evidence that another one is an outlier; `None` for no evidence.
    fn is_healthy(&self, now: Moment) -> Option<bool> {
        let word = self.signal.read();
        if word.phase() != Phase::Closed {
            return self.is_outlier().then_some(false);
        }
        self.rule.is_healthy(word.row(), self.counts(now))
    }

    /// Ends a row of failures. Returns whether the generation is the current one.
    fn end_row(&self, generation: u64) -> bool {
        let word = self.signal.read();
        let is_current = word.generation() == generation;
        if is_current && word.row().length != 0 {
            self.signal.end_row(generation);
        }
        is_current
    }

    /// Returns why the breaker does not admit an attempt, if it does not. If the phase changes between the two
    /// reads, the second value belongs to a later open phase, and is as valid.
    fn refusal(&self, now: Moment) -> Option<Refused> {
        match self.signal.read().phase() {
            Phase::Open => match self.signal.until() {
                Some(until) if until <= now => None,
                until => Some(Refused {
                    wait: until.map(|until| until.since(now)),
                }),
            },
            Phase::Probing if self.signal.until().is_some_and(|until| until <= now) => None,
            Phase::Probing => Some(Refused { wait: None }),
            Phase::Closed | Phase::HalfOpen => None,
        }
    }

    /// Takes the slot of the probe, unless another request has it.
    fn probe(&self, now: Moment) -> Result<Ticket, Refused> {
        let mut history = self.history.lock();
        if let Some(refused) = self.refusal(now) {
            return Err(refused);
        }
        let word = self.signal.read();
        if word.phase() == Phase::Closed {
            return Ok(Ticket::plain(word));
        }
        if let (Phase::Open, Some(until)) = (word.phase(), self.signal.until()) {
            history.since = until;
        }
        Ok(Ticket {
            generation: self.signal.probe_until(now.after(self.probe)),
            probe: Some(Arc::clone(&self.signal)),
            connection_only: self.rule.compares_responses() && !self.is_outlier(),
        })
    }

    /// Opens the circuit, unless the phase has changed since the ticket was issued.
    fn open(
        &self,
        ticket: Ticket,
        why: Cause,
        now: Moment,
        random: &mut fastrand::Rng,
    ) -> Option<Change> {
        let mut history = self.history.lock();
        if self.signal.read().generation() != ticket.generation {
            return None;
        }
        history.opened(why, now);
        if why == Cause::Outlier {
            self.signal.set_outlier(true);
        }
        let for_ = self.rule.open_time(history.failed_probes, random);
        self.signal.open_until(Some(now.after(for_)));
        drop(ticket);
        Some(Change::Opened { for_, why })
    }

    /// Closes the circuit after a successful probe.
    fn recover(&self, ticket: Ticket, now: Moment) -> Option<Change> {
        let mut history = self.history.lock();
        let current = self.signal.read().generation() == ticket.generation;
        let change = current.then(|| self.shut(&mut history, now));
        drop(ticket);
        change
    }

    fn shut(&self, history: &mut History, now: Moment) -> Change {
        history.since = now;
        history.failed_probes = 0;
        // Before the phase changes, or successes of the new phase would be discarded with the old ones.
        self.tally.forget();
        self.signal.set_outlier(false);
        self.signal.recover(now);
        Change::Closed
    }
}

impl History {
    fn opened(&mut self, why: Cause, now: Moment) {
        self.since = now;
        self.openings += 1;
        self.why = Some(why);
        if why == Cause::FailedProbe {
            self.failed_probes += 1;
        }
    }
}

/// Returns the index of a kind of failure in a breaker's tally.
fn index(failure: Failure) -> usize {
    match failure {
        Failure::Connect => 1,
        Failure::Response => 2,
    }
}
