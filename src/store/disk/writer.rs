//! The one thread that writes.

use std::collections::HashSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::batch::Batch;
use super::engine::Engine;
use super::home::Home;
use super::tally::{Acknowledged, Tally};
use super::upkeep::Upkeep;
use super::{Common, Handle, OpenError, Room};
use crate::idempotency::{
    Answer, Bid, Claim, Ending, Finding, Kept, KeyHash, Permit, RecordId, StoreError, Ticket,
};

/// Operations that share a sync at most.
const BATCH_OPS: usize = 1_024;

/// Bytes of answers that share a sync at most.
const BATCH_BYTES: usize = 8 << 20;

/// How long the writer waits before it tries again to open an engine that failed.
const REOPEN_AFTER: Duration = Duration::from_secs(1);

/// Where the answer to an operation goes.
pub(super) type Ack<T> = oneshot::Sender<Result<T, StoreError>>;

/// What the writer is asked to do.
pub(super) enum Op {
    /// Answer a bid.
    Claim(Bid, Ack<Claim>),
    /// End a claim with what is left of its execution.
    Complete(Permit, Kept, Ack<()>),
    /// End a claim as if it had never been, and tell those who wait this.
    Release(Ticket, Option<Arc<Answer>>, Option<Ack<()>>),
    /// End a claim whose outcome nobody knows.
    Lose(Ticket, Option<Ack<()>>),
    /// Find what there is under a key, so much of it at most.
    Find(KeyHash, usize, Ack<Vec<Finding>>),
    /// Free a key whose outcome is unknown.
    Free(RecordId, Ack<bool>),
    /// Drop what has expired.
    Sweep(Ack<()>),
}

/// The one thread that writes, and all it knows.
pub(super) struct Writer {
    pub(super) home: Home,
    pub(super) room: Room,
    pub(super) common: Arc<Common>,
    pub(super) state: EngineState,
    pub(super) tally: Tally,
    pub(super) acknowledged: Acknowledged,
    pub(super) upkeep: Upkeep,
    /// Claims of which nobody was told, though they may be on disk: to be removed.
    pub(super) doomed: HashSet<RecordId>,
    pub(super) tokens: u64,
    /// Came too early for the batch it would have been in.
    postponed: Option<Op>,
}

/// Whether there is an engine to write with.
pub(super) enum EngineState {
    Open(Engine),
    /// It failed: why, and when to try again.
    Failed(StoreError, Instant),
}

impl Writer {
    /// Opens the engine, and settles what was underway when it was last used.
    pub(super) fn open(home: Home, room: Room, common: Arc<Common>) -> Result<Self, OpenError> {
        let unusable = |reason: StoreError| OpenError::Records {
            path: home.path().display().to_string(),
            reason: reason.to_string(),
        };
        let (acknowledged, count) =
            Acknowledged::open(home.path()).map_err(|error| unusable(StoreError::new(error)))?;
        let engine = Engine::open(&home.records(), count > 0).map_err(unusable)?;
        let tally = engine.tally().map_err(unusable)?;
        if tally.batches < count {
            let lost = count - tally.batches;
            return Err(unusable(StoreError::new(format_args!(
                "the last {lost} of {count} acknowledged batches are missing, so keys that were used would be \
                 taken for new ones"
            ))));
        }
        common.timeline.go_on_from(tally.stamp, tally.wall);
        let mut writer = Self {
            home,
            room,
            common,
            state: EngineState::Failed(StoreError::new("not open yet"), Instant::now()),
            tally,
            acknowledged,
            upkeep: Upkeep::default(),
            doomed: HashSet::new(),
            tokens: 0,
            postponed: None,
        };
        if let Err(reason) = writer.settle_claims(engine) {
            let path = writer.home.path().display().to_string();
            let reason = reason.to_string();
            return Err(OpenError::Records { path, reason });
        }
        Ok(writer)
    }

    /// Works until nobody can ask for anything any more.
    pub(super) fn work(mut self, inbox: &Receiver<Op>, owner: &Weak<Handle>) {
        loop {
            let first = match self.postponed.take() {
                Some(op) => Some(op),
                None => match inbox.recv_timeout(self.upkeep.pause()) {
                    Ok(op) => Some(op),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => return,
                },
            };
            self.reopen_if_due();
            match first {
                Some(op) => self.take_up(op, inbox, owner),
                None => self.look_after(),
            }
        }
    }

    /// Takes up `first` and what has come behind it, all in one batch.
    fn take_up(&mut self, first: Op, inbox: &Receiver<Op>, owner: &Weak<Handle>) {
        if let Op::Sweep(ack) = first {
            self.sweep_all();
            drop(ack.send(Ok(())));
            return;
        }
        let Self {
            state,
            common,
            tally,
            tokens,
            postponed,
            ..
        } = self;
        let EngineState::Open(engine) = state else {
            self.refuse(first);
            return;
        };
        let swept = self.upkeep.swept();
        let mut batch = Batch::new(engine, common, *tally, self.room, swept, tokens, owner);
        let mut next = Some(first);
        let mut ops = 0;
        let mut wants_sweep = false;
        while let Some(op) = next {
            if batch.has_touched(&op) {
                *postponed = Some(op);
                break;
            }
            if let Some(unmet) = batch.take(op) {
                *postponed = Some(unmet);
                wants_sweep = true;
                break;
            }
            ops += 1;
            let has_room = ops < BATCH_OPS && batch.bytes() < BATCH_BYTES;
            next = has_room.then(|| inbox.try_recv().ok()).flatten();
        }
        let written = batch.commit();
        match written.outcome {
            Ok(tally) => {
                self.acknowledge(tally);
                written.after.done(&self.common);
            }
            Err(reason) => {
                self.doomed
                    .extend(written.after.failed(&self.common, &reason));
                self.give_up(reason);
            }
        }
        if wants_sweep {
            // Some of it, and then the claim is tried again: nobody else waits for all of it.
            self.look_after();
        }
        self.look_after_if_due();
    }

    /// Takes over the tally of a batch that is on disk.
    pub(super) fn acknowledge(&mut self, tally: Tally) {
        if tally.batches != self.tally.batches
            && let Err(error) = self.acknowledged.write(tally.batches)
        {
            // Only what would tell of a later loss; what was written is safe.
            tracing::warn!(%error, "cannot write the number of acknowledged batches");
        }
        self.tally = tally;
        self.common.standing.publish(&tally);
    }

    /// The engine failed, and nothing more is written with it.
    pub(super) fn give_up(&mut self, reason: StoreError) {
        tracing::error!(
            %reason,
            path = %self.home.path().display(),
            "the idempotency store cannot be written: requests with keys are refused until it can be again"
        );
        let again = Instant::now() + REOPEN_AFTER;
        self.state = EngineState::Failed(reason, again);
    }

    fn reopen_if_due(&mut self) {
        let EngineState::Failed(_, again) = self.state else {
            return;
        };
        if Instant::now() < again || !self.upkeep.is_idle() {
            return;
        }
        let used = self.tally.batches > 0;
        let opened = Engine::open(&self.home.records(), used).and_then(|engine| {
            let tally = engine.tally()?;
            if tally.batches < self.tally.batches {
                return Err(StoreError::new("what was acknowledged is not all there"));
            }
            self.tally = tally;
            self.settle_claims(engine)
        });
        match opened {
            Ok(()) => {
                self.common.flights.clear_lost();
                tracing::info!("the idempotency store can be written again");
            }
            Err(reason) => {
                self.state = EngineState::Failed(reason, Instant::now() + REOPEN_AFTER);
            }
        }
    }

    /// Does what can be done of an operation without an engine.
    fn refuse(&mut self, op: Op) {
        let EngineState::Failed(reason, _) = &self.state else {
            return;
        };
        let reason = reason.clone();
        let now = self.common.timeline.clock.now();
        match op {
            Op::Claim(bid, ack) => {
                let claim = self.common.flights.meet(&bid).ok_or(reason);
                drop(ack.send(claim));
            }
            Op::Complete(permit, _, ack) => {
                self.common.flights.lose(&permit.redeem(), now);
                drop(ack.send(Err(reason)));
            }
            Op::Lose(ticket, ack) => {
                self.common.flights.lose(&ticket, now);
                tell(ack, Ok(()));
            }
            Op::Release(ticket, answer, ack) => {
                self.doomed.insert(ticket.bid.id);
                let ending = Ending::Released(answer);
                self.common.flights.land(&ticket, ending);
                tell(ack, Ok(()));
            }
            Op::Find(_, _, ack) => drop(ack.send(Err(reason))),
            Op::Free(_, ack) => drop(ack.send(Err(reason))),
            Op::Sweep(ack) => drop(ack.send(Err(reason))),
        }
    }
}

/// Tells whoever waits, if anybody does.
pub(super) fn tell<T>(ack: Option<Ack<T>>, outcome: Result<T, StoreError>) {
    if let Some(ack) = ack {
        // Whoever asked may have gone; what was done is done.
        drop(ack.send(outcome));
    }
}
