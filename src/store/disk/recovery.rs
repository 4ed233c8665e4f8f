//! What the writer does when the engine fails, and until it works again.
//!
//! A failed engine is closed, and reopened after a backoff. Requests with new keys are rejected meanwhile.
//! Completions wait: their requests were executed, so their responses are recorded first when the engine
//! works again, if need be in the space of the reserve. Claims are admitted when there is a reserve again, and
//! then one at first ([`Admission`]).

use std::collections::HashSet;
use std::io;
use std::time::{Duration, Instant};

use super::admission::Admission;
use super::engine::{Engine, resync};
use super::writer::{BATCH_BYTES, Completion, EngineState, Op, Writer, tell};
use crate::idempotency::{Ending, RecordId, StoreError};

/// The first wait before an engine that failed is opened again.
const SHORTEST: Duration = Duration::from_millis(250);

/// The longest wait. Space that has returned is used after this time at the latest.
const LONGEST: Duration = Duration::from_secs(2);

/// An engine that has worked for this long fails for a new reason.
const STABLE: Duration = Duration::from_secs(30);

/// The wait before an engine is opened again; it doubles with each failure.
#[derive(Default)]
pub(super) struct Backoff {
    last: Duration,
    /// When the engine was opened the last time.
    opened: Option<Instant>,
}

impl Backoff {
    /// The wait after another failure.
    fn next(&mut self, now: Instant) -> Duration {
        let opened = self.opened.take();
        if opened.is_some_and(|opened| now.saturating_duration_since(opened) >= STABLE) {
            self.last = Duration::ZERO;
        }
        self.last = (self.last * 2).clamp(SHORTEST, LONGEST);
        self.last
    }
}

impl Writer {
    /// Closes an engine that failed.
    pub(super) fn give_up(&mut self, reason: StoreError) {
        tracing::error!(
            %reason,
            path = %self.home.path().display(),
            "idempotency store failed, rejecting requests with new keys until it works again"
        );
        self.set_suspect(true);
        self.common.lookup.set(None);
        self.reserve.release();
        self.admission = Admission::None(reason.clone());
        self.fail(reason);
    }

    fn fail(&mut self, reason: StoreError) {
        let now = Instant::now();
        let again = now + self.backoff.next(now);
        self.state = EngineState::Failed(reason, again);
    }

    /// Opens an engine that failed, if its time has come.
    pub(super) fn reopen_if_due(&mut self) {
        let EngineState::Failed(_, again) = self.state else {
            return;
        };
        if Instant::now() < again || !self.upkeep.is_idle() {
            return;
        }
        match self.reopen() {
            Ok(()) => {
                self.backoff.opened = Some(Instant::now());
                self.common.flights.clear_lost(&self.held_ids());
                self.upkeep.make_due();
                self.look_after_if_due();
            }
            Err(reason) => {
                tracing::warn!(%reason, "idempotency store cannot be reopened");
                self.fail(reason);
            }
        }
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        let path = self.home.records();
        if self.is_suspect {
            resync(&path).map_err(StoreError::new)?;
            self.set_suspect(false);
        }
        let engine = Engine::open(&path, self.tally.batches > 0)?;
        let tally = engine.tally()?;
        if tally.batches < self.tally.batches {
            return Err(StoreError::new("acknowledged batches are missing"));
        }
        self.tally = tally;
        let settled = self.settle_claims(engine);
        if settled.is_err() {
            self.set_suspect(true);
        }
        settled
    }

    /// Admits claims again, if the engine is open, all completions are recorded, and there is space for more.
    pub(super) fn readmit(&mut self) {
        let EngineState::Open(_) = self.state else {
            return;
        };
        if !self.held.is_empty() {
            // The space is needed for them.
            self.upkeep.make_due();
            return;
        }
        match self.hold_reserve() {
            Ok(()) => {
                if let Admission::None(_) = self.admission {
                    self.admission = Admission::after_reopening(self.tokens);
                    tracing::info!("idempotency store reopened");
                }
            }
            Err(error) => {
                if self.admission.is_unlimited() {
                    tracing::error!(
                        %error,
                        "no disk space for further responses, rejecting requests with new keys"
                    );
                }
                self.admission = Admission::None(StoreError::known(format_args!(
                    "no disk space for further responses: {error}"
                )));
            }
        }
    }

    /// Holds disk space for a batch and the largest response, if there is space for another batch.
    pub(super) fn hold_reserve(&mut self) -> io::Result<()> {
        let batch = BATCH_BYTES as u64;
        self.reserve.hold(batch + self.common.max_response(), batch)
    }

    /// Notes whether the files of the engine have to be resynced before they are used, also for the next
    /// process.
    pub(super) fn set_suspect(&mut self, suspect: bool) {
        self.is_suspect = suspect;
        if let Err(error) = self.acknowledged.set_suspect(suspect) {
            tracing::warn!(%error, "cannot note whether the idempotency store failed");
        }
    }

    /// The keys of executions whose completion waits for the engine.
    pub(super) fn held_ids(&self) -> HashSet<RecordId> {
        let held = self.held.iter();
        held.map(|completion| completion.ticket.bid.id).collect()
    }

    /// Does what can be done of an operation without an engine.
    pub(super) fn refuse(&mut self, op: Op) {
        let EngineState::Failed(reason, _) = &self.state else {
            return;
        };
        let reason = reason.clone();
        match op {
            Op::Claim(bid, ack) => {
                let claim = self.common.flights.meet(&bid).ok_or(reason);
                drop(ack.send(claim));
            }
            Op::Complete(completion) => self.held.push_back(Completion {
                repeated: true,
                ..completion
            }),
            Op::Lose(ticket, ack) => {
                let now = self.common.timeline.clock.now();
                self.common.flights.lose(&ticket, now);
                tell(ack, Ok(()));
            }
            Op::Release(ticket, answer, ack) => {
                self.doomed.insert(ticket.bid.id);
                let ending = Ending::Released(answer);
                self.common.flights.land(&ticket, ending);
                tell(ack, Ok(()));
            }
            Op::Free(_, ack) => drop(ack.send(Err(reason))),
            Op::Sweep(ack) => drop(ack.send(Err(reason))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_before_a_reopening_doubles_until_the_engine_has_worked_for_a_while() {
        let now = Instant::now();
        let mut backoff = Backoff::default();
        let waits: Vec<_> = (0..5).map(|_| backoff.next(now).as_millis()).collect();
        assert_eq!(waits, [250, 500, 1_000, 2_000, 2_000]);
        backoff.opened = Some(now);
        assert_eq!(backoff.next(now + STABLE / 2), LONGEST);
        backoff.opened = Some(now);
        assert_eq!(backoff.next(now + STABLE), SHORTEST);
    }
}
