//! The writer thread: the only thread that changes the store.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::batch::Batch;
use super::claim_admission::ClaimAdmission;
use super::engine::{Engine, resync};
use super::engine_failure::ReopenBackoff;
use super::maintenance::Maintenance;
use super::space_reserve::Reserve;
use super::store_dir::StoreDir;
use super::totals::{AcknowledgedBatches, StoreTotals};
use super::{DiskOpenError, DiskStoreState, WriterHandle};
use crate::idempotency::{Claim, ClaimRequest, ClaimToken, ExecutionOutcome, RecordId, StoreError};
use crate::store::capacity::{ClientCounts, StoreCapacity};

/// Upper bound of the operations in a batch.
const BATCH_OPS: usize = 1_024;

/// Size of the responses in a batch, in bytes, from which it accepts no further operation.
pub(super) const BATCH_BYTES: usize = 8 << 20;

/// Channel for the result of an operation.
pub(super) type Ack<T> = oneshot::Sender<Result<T, StoreError>>;

/// An operation of the writer.
pub(super) enum Op {
    /// Claim a key.
    Claim(ClaimRequest, Ack<Claim>),
    /// End a claim.
    End(ClaimEnd),
    /// Remove a record whose outcome is unknown.
    Free(RecordId, Ack<bool>),
    /// Drop expired records.
    #[cfg(test)]
    Sweep(Ack<()>),
}

/// The end of a claim with the outcome of its execution.
pub(super) struct ClaimEnd {
    pub(super) token: ClaimToken,
    pub(super) outcome: ExecutionOutcome,
    /// Receives the result when the end is durable. `None` if the permit was dropped.
    pub(super) ack: Option<Ack<()>>,
}

/// State of the writer thread.
pub(super) struct Writer {
    pub(super) dir: StoreDir,
    pub(super) capacity: StoreCapacity,
    pub(super) shared: Arc<DiskStoreState>,
    pub(super) state: EngineState,
    pub(super) totals: StoreTotals,
    /// Number of keys of each client, counted again whenever the engine is opened.
    pub(super) clients: ClientCounts,
    pub(super) acknowledged: AcknowledgedBatches,
    /// Whether the last write to `acknowledged` failed.
    acknowledged_fails: bool,
    pub(super) maintenance: Maintenance,
    /// Claims that may be on disk although no execution holds them. They are removed when the engine is reopened.
    pub(super) orphaned_claims: HashSet<RecordId>,
    /// Completions that wait for a failed engine. They have no timeout, because their requests were executed. Their
    /// number is bounded by the executions in flight at the time of the failure.
    pub(super) waiting_completions: VecDeque<ClaimEnd>,
    /// Whether a write failed since the files of the engine were last resynced.
    pub(super) needs_resync: bool,
    pub(super) reserve: Reserve,
    pub(super) admission: ClaimAdmission,
    pub(super) backoff: ReopenBackoff,
    /// Number of the last granted claim.
    pub(super) last_claim: u64,
    /// Operation that has to wait for the current batch or for the removal of expired records.
    postponed: Option<Op>,
}

/// The open engine, or the reason why it is closed.
pub(super) enum EngineState {
    Open(Engine),
    /// The engine failed for this reason. The next attempt to reopen it is at this time.
    Failed(StoreError, Instant),
}

impl Writer {
    /// Opens the engine. Executions that were in flight when it was last used are recorded as unknown.
    pub(super) fn open(
        dir: StoreDir,
        capacity: StoreCapacity,
        shared: Arc<DiskStoreState>,
    ) -> Result<Self, DiskOpenError> {
        let unusable = |reason: StoreError| DiskOpenError::Records {
            path: dir.path().display().to_string(),
            reason: reason.to_string(),
        };
        let (acknowledged, count) = AcknowledgedBatches::open(dir.path())
            .map_err(|error| unusable(StoreError::new(error)))?;
        let needs_resync = acknowledged.needs_resync().unwrap_or(true);
        if needs_resync && count > 0 {
            resync(&dir.records()).map_err(|error| unusable(StoreError::new(error)))?;
        }
        // On a full disk, the engine needs the space of the old reserve to open.
        let mut reserve = Reserve::new(dir.path());
        reserve.release();
        let engine = Engine::open(&dir.records(), count > 0).map_err(unusable)?;
        let totals = engine.totals().map_err(unusable)?;
        if totals.batches < count {
            let lost = count - totals.batches;
            return Err(unusable(StoreError::new(format_args!(
                "the last {lost} of {count} acknowledged batches are missing, so used keys could execute again"
            ))));
        }
        if let Some(clocks) = &totals.clocks {
            shared.store_clock.resume(clocks);
        }
        let mut writer = Self {
            dir,
            capacity,
            shared,
            state: EngineState::Failed(StoreError::new("not open yet"), Instant::now()),
            totals,
            clients: ClientCounts::default(),
            acknowledged,
            acknowledged_fails: false,
            maintenance: Maintenance::default(),
            orphaned_claims: HashSet::new(),
            waiting_completions: VecDeque::new(),
            needs_resync: false,
            reserve,
            admission: ClaimAdmission::All,
            backoff: ReopenBackoff::default(),
            last_claim: 0,
            postponed: None,
        };
        if let Err(reason) = writer.resolve_claims(engine) {
            // The failed batch can be in the page cache and not on disk, so the next process has to resync the files.
            writer.set_needs_resync(true);
            let path = writer.dir.path().display().to_string();
            let reason = reason.to_string();
            return Err(DiskOpenError::Records { path, reason });
        }
        writer.set_needs_resync(false);
        writer.update_admission();
        Ok(writer)
    }

    /// Executes operations until all handles are dropped, and then closes the engine.
    pub(super) fn run(mut self, inbox: &Receiver<Op>, owner: &Weak<WriterHandle>) {
        while self.run_once(inbox, owner) {}
        self.record_waiting_completions(inbox, owner);
        self.close();
    }

    /// Executes one batch of operations, or maintenance if none arrives in time. Returns `false` when all handles are
    /// dropped.
    pub(super) fn run_once(&mut self, inbox: &Receiver<Op>, owner: &Weak<WriterHandle>) -> bool {
        self.shared.health.writer_responded();
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
            Some(op) => self.execute_batch(op, inbox, owner),
            None => self.maintain(),
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

    /// Takes the postponed operation or one from the inbox, without waiting.
    pub(super) fn next_pending(&mut self, inbox: &Receiver<Op>) -> Option<Op> {
        self.postponed.take().or_else(|| inbox.try_recv().ok())
    }

    /// Returns how long the writer may wait for an operation.
    pub(super) fn pause(&self) -> Duration {
        let pause = self.maintenance.pause();
        match &self.state {
            EngineState::Open(_) => pause,
            EngineState::Failed(_, again) => {
                pause.min(again.saturating_duration_since(Instant::now()))
            }
        }
    }

    /// Syncs the engine and stops lookups.
    fn close(&mut self) {
        self.shared.lookup.set(None);
        if let EngineState::Open(engine) = &self.state
            && let Err(reason) = engine.sync()
        {
            tracing::error!(%reason, "idempotency store not synced at shutdown");
            self.set_needs_resync(true);
        }
    }

    /// Executes `first` and further pending operations in one batch. Waiting completions come before the operations in
    /// the inbox.
    pub(super) fn execute_batch(
        &mut self,
        first: Op,
        inbox: &Receiver<Op>,
        owner: &Weak<WriterHandle>,
    ) {
        #[cfg(test)]
        if let Op::Sweep(ack) = first {
            self.sweep_all();
            drop(ack.send(Ok(())));
            return;
        }
        let Self {
            state,
            shared,
            totals,
            clients,
            last_claim,
            postponed,
            waiting_completions,
            admission,
            ..
        } = self;
        let EngineState::Open(engine) = state else {
            self.execute_without_engine(first);
            return;
        };
        let swept = self.maintenance.swept();
        let mut batch = Batch::new(
            engine,
            shared,
            *totals,
            self.capacity,
            swept,
            last_claim,
            clients,
            admission,
            owner,
        );
        let mut next = Some(first);
        let mut ops = 0;
        let mut needs_sweep = false;
        while let Some(op) = next {
            if batch.conflicts_with(&op) {
                *postponed = Some(op);
                break;
            }
            if let Some(claim) = batch.add(op) {
                *postponed = Some(claim);
                needs_sweep = true;
                break;
            }
            ops += 1;
            let is_full = ops >= BATCH_OPS || batch.bytes() >= BATCH_BYTES;
            next = if is_full {
                None
            } else {
                let waiting = waiting_completions.pop_front().map(Op::End);
                waiting.or_else(|| inbox.try_recv().ok())
            };
        }
        let written = batch.commit();
        match written.outcome {
            Ok(totals) => {
                self.acknowledge(totals);
                written.replies.send(&self.shared, &mut self.admission);
            }
            Err(reason) => {
                // `known` marks the error as logged, so that it is not logged again for each request of the batch.
                let logged = StoreError::known(&reason);
                let unwritten = written.replies.fail(&self.shared, &logged);
                self.orphaned_claims.extend(unwritten.orphaned_claims);
                for completion in unwritten.completions.into_iter().rev() {
                    self.waiting_completions.push_front(completion);
                }
                self.close_failed_engine(reason);
            }
        }
        if needs_sweep {
            // Drops a chunk of expired records, which is enough to retry the postponed claim.
            self.maintain();
        }
        self.maintain_if_due();
    }

    /// Adopts the totals of a committed batch, and writes the number of acknowledged batches.
    pub(super) fn acknowledge(&mut self, totals: StoreTotals) {
        if totals.batches != self.totals.batches {
            let written = self.acknowledged.write(totals.batches);
            self.log_acknowledged(written);
        }
        self.totals = totals;
        self.shared.stats.publish(&totals);
    }

    /// Logs the first of consecutive failed writes to the file `acknowledged`. Records are not affected, but a later
    /// loss of batches may not be detected.
    pub(super) fn log_acknowledged(&mut self, written: io::Result<()>) {
        let failed_before = std::mem::replace(&mut self.acknowledged_fails, written.is_err());
        if let Err(error) = written
            && !failed_before
        {
            let path = self.dir.path().display();
            tracing::warn!(%error, %path, "number of acknowledged batches not written");
        }
    }
}

/// Sends the result of an operation, unless its permit was dropped.
pub(super) fn send_reply<T>(ack: Option<Ack<T>>, outcome: Result<T, StoreError>) {
    if let Some(ack) = ack {
        // An error means that the caller no longer waits. The operation stays executed.
        drop(ack.send(outcome));
    }
}
