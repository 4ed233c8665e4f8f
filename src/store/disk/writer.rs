//! The one thread that writes.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::admission::Admission;
use super::batch::Batch;
use super::engine::{Engine, resync};
use super::recovery::Backoff;
use super::reserve::Reserve;
use super::store_dir::StoreDir;
use super::tally::{Acknowledged, Tally};
use super::upkeep::Upkeep;
use super::{Common, Handle, OpenError};
use crate::idempotency::{Claim, ClaimRequest, ClaimToken, ExecutionOutcome, RecordId, StoreError};
use crate::store::capacity::{ClientCounts, StoreCapacity};

/// Operations that share a sync at most.
const BATCH_OPS: usize = 1_024;

/// Bytes of responses that share a sync at most.
pub(super) const BATCH_BYTES: usize = 8 << 20;

/// Where the response to an operation goes.
pub(super) type Ack<T> = oneshot::Sender<Result<T, StoreError>>;

/// What the writer is asked to do.
pub(super) enum Op {
    /// Claim a key.
    Claim(ClaimRequest, Ack<Claim>),
    /// End a claim.
    End(End),
    /// Free a key whose outcome is unknown.
    Free(RecordId, Ack<bool>),
    /// Drop expired records.
    #[cfg(test)]
    Sweep(Ack<()>),
}

/// The end of an execution.
pub(super) struct End {
    pub(super) token: ClaimToken,
    pub(super) outcome: ExecutionOutcome,
    /// Receives the result when it is durable. `None` if the permit was dropped.
    pub(super) ack: Option<Ack<()>>,
}

/// The one thread that writes, and all it knows.
pub(super) struct Writer {
    pub(super) home: StoreDir,
    pub(super) capacity: StoreCapacity,
    pub(super) common: Arc<Common>,
    pub(super) state: EngineState,
    pub(super) tally: Tally,
    /// Keys of each client, counted anew whenever the engine is opened.
    pub(super) clients: ClientCounts,
    pub(super) acknowledged: Acknowledged,
    /// Whether the last write to `acknowledged` failed.
    acknowledged_fails: bool,
    pub(super) upkeep: Upkeep,
    /// Claims that may be on disk and that no execution holds: removed when the engine is reopened.
    pub(super) doomed: HashSet<RecordId>,
    /// Completions that could not be written yet. Their executions are over, so they are recorded as soon as
    /// the engine works, however long that takes. There are no more than executions at the time of a failure.
    pub(super) waiting_completions: VecDeque<End>,
    /// Whether a write failed since the files of the engine were last resynced.
    pub(super) is_suspect: bool,
    pub(super) reserve: Reserve,
    pub(super) admission: Admission,
    pub(super) backoff: Backoff,
    pub(super) last_claim: u64,
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
    /// Opens the engine, and records executions that were in flight when it was last used as unknown.
    pub(super) fn open(
        home: StoreDir,
        capacity: StoreCapacity,
        common: Arc<Common>,
    ) -> Result<Self, OpenError> {
        let unusable = |reason: StoreError| OpenError::Records {
            path: home.path().display().to_string(),
            reason: reason.to_string(),
        };
        let (acknowledged, count) =
            Acknowledged::open(home.path()).map_err(|error| unusable(StoreError::new(error)))?;
        let is_suspect = acknowledged.is_suspect().unwrap_or(true);
        if is_suspect && count > 0 {
            resync(&home.records()).map_err(|error| unusable(StoreError::new(error)))?;
        }
        // The engine may need the space of the last process's reserve to open on a full disk.
        let mut reserve = Reserve::new(home.path());
        reserve.release();
        let engine = Engine::open(&home.records(), count > 0).map_err(unusable)?;
        let tally = engine.tally().map_err(unusable)?;
        if tally.batches < count {
            let lost = count - tally.batches;
            return Err(unusable(StoreError::new(format_args!(
                "the last {lost} of {count} acknowledged batches are missing, so keys that were used would be \
                 taken for new ones"
            ))));
        }
        if let Some(clocks) = &tally.clocks {
            common.timeline.resume(clocks);
        }
        let mut writer = Self {
            home,
            capacity,
            common,
            state: EngineState::Failed(StoreError::new("not open yet"), Instant::now()),
            tally,
            clients: ClientCounts::default(),
            acknowledged,
            acknowledged_fails: false,
            upkeep: Upkeep::default(),
            doomed: HashSet::new(),
            waiting_completions: VecDeque::new(),
            is_suspect: false,
            reserve,
            admission: Admission::All,
            backoff: Backoff::default(),
            last_claim: 0,
            postponed: None,
        };
        if let Err(reason) = writer.settle_claims(engine) {
            // The batch can be in the page cache and not on disk, so the next process has to resync the files.
            writer.set_suspect(true);
            let path = writer.home.path().display().to_string();
            let reason = reason.to_string();
            return Err(OpenError::Records { path, reason });
        }
        writer.set_suspect(false);
        writer.readmit();
        Ok(writer)
    }

    /// Executes operations until all handles are dropped, and closes the engine.
    pub(super) fn work(mut self, inbox: &Receiver<Op>, owner: &Weak<Handle>) {
        while self.turn(inbox, owner) {}
        self.record_waiting_completions(inbox, owner);
        self.close();
    }

    /// Executes one batch of operations, or upkeep if none arrives in time. Returns whether there are handles left
    /// that can send operations.
    pub(super) fn turn(&mut self, inbox: &Receiver<Op>, owner: &Weak<Handle>) -> bool {
        self.common.condition.respond();
        self.reopen_if_due(inbox);
        // The postponed operation goes first, because the batch can postpone another one.
        let first = self.postponed.take();
        let first = match first.or_else(|| self.next_completion()) {
            Some(op) => Some(op),
            None => match inbox.recv_timeout(self.pause()) {
                Ok(op) => Some(op),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return false,
            },
        };
        match first {
            Some(op) => self.take_up(op, inbox, owner),
            None => self.look_after(),
        }
        true
    }

    /// Takes a completion that waits for the engine, if the engine is open.
    fn next_completion(&mut self) -> Option<Op> {
        match self.state {
            EngineState::Open(_) => self.waiting_completions.pop_front().map(Op::End),
            EngineState::Failed(..) => None,
        }
    }

    /// Takes an operation that the writer has not looked at, without waiting for one.
    pub(super) fn next_pending(&mut self, inbox: &Receiver<Op>) -> Option<Op> {
        self.postponed.take().or_else(|| inbox.try_recv().ok())
    }

    /// Returns how long the writer may wait for an operation.
    pub(super) fn pause(&self) -> Duration {
        let pause = self.upkeep.pause();
        match &self.state {
            EngineState::Open(_) => pause,
            EngineState::Failed(_, again) => {
                pause.min(again.saturating_duration_since(Instant::now()))
            }
        }
    }

    /// Closes the engine and the access to it.
    fn close(&mut self) {
        self.common.lookup.set(None);
        if let EngineState::Open(engine) = &self.state
            && let Err(reason) = engine.sync()
        {
            tracing::error!(%reason, "idempotency store not synced at shutdown");
            self.set_suspect(true);
        }
    }

    /// Executes `first` and the operations that have arrived after it in one batch. Completions that wait go before
    /// the operations of the inbox.
    pub(super) fn take_up(&mut self, first: Op, inbox: &Receiver<Op>, owner: &Weak<Handle>) {
        #[cfg(test)]
        if let Op::Sweep(ack) = first {
            self.sweep_all();
            drop(ack.send(Ok(())));
            return;
        }
        let Self {
            state,
            common,
            tally,
            clients,
            last_claim,
            postponed,
            waiting_completions,
            admission,
            ..
        } = self;
        let EngineState::Open(engine) = state else {
            self.refuse(first);
            return;
        };
        let swept = self.upkeep.swept();
        let mut batch = Batch::new(
            engine,
            common,
            *tally,
            self.capacity,
            swept,
            last_claim,
            clients,
            admission,
            owner,
        );
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
            next = if has_room {
                let waiting = waiting_completions.pop_front().map(Op::End);
                waiting.or_else(|| inbox.try_recv().ok())
            } else {
                None
            };
        }
        let written = batch.commit();
        match written.outcome {
            Ok(tally) => {
                self.acknowledge(tally);
                written.after.done(&self.common, &mut self.admission);
            }
            Err(reason) => {
                // The failure is logged once, not for each request of the batch.
                let reported = StoreError::known(&reason);
                let unwritten = written.after.failed(&self.common, &reported);
                self.doomed.extend(unwritten.doomed);
                for completion in unwritten.completions.into_iter().rev() {
                    self.waiting_completions.push_front(completion);
                }
                self.give_up(reason);
            }
        }
        if wants_sweep {
            // One chunk is enough for the claim to be tried again.
            self.look_after();
        }
        self.look_after_if_due();
    }

    /// Takes over the tally of a batch that is on disk.
    pub(super) fn acknowledge(&mut self, tally: Tally) {
        if tally.batches != self.tally.batches {
            let written = self.acknowledged.write(tally.batches);
            self.log_acknowledged(written);
        }
        self.tally = tally;
        self.common.stats.publish(&tally);
    }

    /// Logs when writes to the file `acknowledged` begin to fail. The records are not affected, but a later loss of
    /// batches may go unnoticed.
    pub(super) fn log_acknowledged(&mut self, written: io::Result<()>) {
        let failed_before = std::mem::replace(&mut self.acknowledged_fails, written.is_err());
        if let Err(error) = written
            && !failed_before
        {
            let path = self.home.path().display();
            tracing::warn!(%error, %path, "number of acknowledged batches not written");
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
