//! The writer thread, the only one that changes idempotency records on disk.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::batch::Batch;
use super::claim_admission::ClaimAdmission;
use super::engine::{EndedRecords, Engine, ExpiryKey, resync};
use super::engine_failure::ReopenBackoff;
use super::maintenance::{Maintenance, ResolvedClaims};
use super::space_reserve::Reserve;
use super::store_dir::StoreDir;
use super::totals::{AcknowledgedBatches, StoreTotals};
use super::{DiskOpenError, DiskStoreState, WriterHandle};
use crate::idempotency::{
    Claim, ClaimRequest, ClaimToken, ExecutionOutcome, RecordId, RecordState, StoreError,
};
use crate::store::capacity::{ClientCounts, StoreCapacity};

const BATCH_OPS: usize = 1_024;

/// From this size of its responses in bytes on, a batch accepts no further operation.
pub(super) const BATCH_BYTES: usize = 8 << 20;

pub(super) type Ack<T> = oneshot::Sender<Result<T, StoreError>>;

pub(super) enum Op {
    Claim(ClaimRequest, Ack<Claim>),
    End(ClaimEnd),
    /// The result is `false` if there is no record with an unknown outcome.
    Free(RecordId, Ack<bool>),
    #[cfg(test)]
    Sweep(Ack<()>),
}

/// The claim is replaced with a record of this outcome.
pub(super) struct ClaimEnd {
    pub(super) token: ClaimToken,
    pub(super) outcome: ExecutionOutcome,
    /// Receives the result when the outcome is durable. `None` if the permit was dropped.
    pub(super) ack: Option<Ack<()>>,
}

/// What the thread knows about the records on disk.
pub(super) struct Ledger {
    /// Of the last commit.
    pub(super) totals: StoreTotals,
    /// Filled again whenever the engine is opened.
    pub(super) clients: ClientCounts,
    /// Filled again whenever the engine is opened.
    pub(super) ended: EndedRecords,
    pub(super) admission: ClaimAdmission,
    /// Claims are numbered from 1.
    pub(super) last_claim: u64,
}

pub(super) struct Writer {
    pub(super) dir: StoreDir,
    pub(super) capacity: StoreCapacity,
    pub(super) shared: Arc<DiskStoreState>,
    pub(super) state: EngineState,
    pub(super) ledger: Ledger,
    pub(super) acknowledged: AcknowledgedBatches,
    /// Whether the last write to `acknowledged` failed.
    acknowledged_fails: bool,
    pub(super) maintenance: Maintenance,
    /// Claims that can be on disk without an execution. They are removed when the engine is reopened.
    pub(super) orphaned_claims: HashSet<RecordId>,
    /// Outcomes of executed requests that wait for a failed engine, without a timeout. At most as many as were in
    /// flight when it failed.
    pub(super) waiting_completions: VecDeque<ClaimEnd>,
    /// Whether a write failed since the files were last resynced.
    pub(super) needs_resync: bool,
    pub(super) reserve: Reserve,
    pub(super) backoff: ReopenBackoff,
    /// Has to wait for the commit of the batch or the removal of expired records.
    postponed: Option<Op>,
}

pub(super) enum EngineState {
    Open(Engine),
    /// With the time of the next attempt to reopen.
    Failed(StoreError, Instant),
}

impl Writer {
    /// Outcomes of executions that were in flight when the last process ended become unknown.
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
        // The engine needs the space to open on a full disk.
        let mut reserve = Reserve::new(dir.path());
        reserve.release();
        let engine = Engine::open(&dir.records(), count > 0).map_err(unusable)?;
        let totals = engine.totals().map_err(unusable)?;
        if totals.batches < count {
            let lost = count - totals.batches;
            return Err(unusable(StoreError::new(format_args!(
                "the last {lost} of {count} acknowledged batches are missing, so requests that were executed before \
                 could be executed again"
            ))));
        }
        if let Some(clocks) = &totals.clocks {
            shared.store_clock.resume(clocks);
        }
        let none = HashSet::new();
        let resolved = ResolvedClaims::write(&engine, &shared, totals, &none, &none);
        let resolved = resolved.map_err(|reason| {
            // The failed batch can be in the page cache but not on disk.
            if let Err(error) = acknowledged.set_needs_resync(true) {
                warn_not_acknowledged(&error, &dir);
            }
            unusable(reason)
        })?;
        let mut writer = Self {
            dir,
            capacity,
            shared,
            state: EngineState::Open(engine),
            ledger: Ledger {
                totals,
                clients: ClientCounts::default(),
                ended: EndedRecords::default(),
                admission: ClaimAdmission::All,
                last_claim: 0,
            },
            acknowledged,
            acknowledged_fails: false,
            maintenance: Maintenance::default(),
            orphaned_claims: HashSet::new(),
            waiting_completions: VecDeque::new(),
            needs_resync: false,
            reserve,
            backoff: ReopenBackoff::default(),
            postponed: None,
        };
        writer.adopt(resolved);
        writer.set_needs_resync(false);
        writer.update_admission();
        Ok(writer)
    }

    /// Until all handles of the store are dropped.
    pub(super) fn run(mut self, inbox: &Receiver<Op>, owner: &Weak<WriterHandle>) {
        while self.run_once(inbox, owner) {}
        self.record_waiting_completions(inbox, owner);
        self.close();
    }

    /// One batch, or maintenance if no operation arrives within the pause. Returns `false` when all handles are
    /// dropped.
    pub(super) fn run_once(&mut self, inbox: &Receiver<Op>, owner: &Weak<WriterHandle>) -> bool {
        self.shared.health.writer_responded();
        self.reopen_if_due(inbox);
        // The batch can postpone another operation, and `postponed` has space for only one.
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

    /// If the engine is open again.
    fn next_completion(&mut self) -> Option<Op> {
        match self.state {
            EngineState::Open(_) => self.waiting_completions.pop_front().map(Op::End),
            EngineState::Failed(..) => None,
        }
    }

    /// The postponed operation, or one from the inbox.
    pub(super) fn next_pending(&mut self, inbox: &Receiver<Op>) -> Option<Op> {
        self.postponed.take().or_else(|| inbox.try_recv().ok())
    }

    /// How long to wait for an operation.
    pub(super) fn pause(&self) -> Duration {
        let pause = self.maintenance.pause();
        match &self.state {
            EngineState::Open(_) => pause,
            EngineState::Failed(_, again) => {
                pause.min(again.saturating_duration_since(Instant::now()))
            }
        }
    }

    fn close(&mut self) {
        self.shared.lookup.set(None);
        if let EngineState::Open(engine) = &self.state
            && let Err(reason) = engine.sync()
        {
            tracing::error!(
                %reason,
                path = %self.dir.path().display(),
                "sync of the idempotency store failed at shutdown, the next start rewrites its files"
            );
            self.set_needs_resync(true);
        }
    }

    /// Completions that waited for a failed engine come before the inbox.
    pub(super) fn execute_batch(
        &mut self,
        first: Op,
        inbox: &Receiver<Op>,
        owner: &Weak<WriterHandle>,
    ) {
        let Self {
            state,
            shared,
            ledger,
            postponed,
            waiting_completions,
            ..
        } = self;
        let EngineState::Open(engine) = state else {
            self.execute_without_engine(first);
            return;
        };
        let mut batch = Batch::new(engine, shared, owner, self.capacity, ledger);
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
                for (since, ttl, can_forget, key) in written.stored {
                    self.ledger.ended.push(since, ttl, can_forget, key);
                }
                self.maintenance.count_dropped(written.forgotten_bytes);
                self.acknowledge(totals);
                written
                    .replies
                    .send(&self.shared, &mut self.ledger.admission);
            }
            Err(reason) => {
                // The requests of the batch do not log the error again.
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
            // The store is full. Maintenance drops expired records, and then the claim is tried again.
            self.maintain();
        }
        self.maintain_if_due();
    }

    /// If the batch was synced, writes the number of batches to `acknowledged`.
    pub(super) fn acknowledge(&mut self, totals: StoreTotals) {
        if totals.batches != self.ledger.totals.batches {
            let written = self.acknowledged.write(totals.batches);
            self.log_acknowledged(written);
        }
        self.ledger.totals = totals;
        let longest_ttl = self.ledger.ended.longest_ttl();
        let state = &self.state;
        let is_current = |key: &ExpiryKey| match state {
            EngineState::Open(engine) => (engine.expiry(*key))
                .is_ok_and(|entry| entry.is_some_and(|it| it.state == RecordState::Unknown)),
            EngineState::Failed(..) => true,
        };
        let oldest_unknown = (totals.unknown > 0)
            .then(|| self.ledger.ended.oldest_unknown(is_current))
            .flatten();
        self.shared
            .stats
            .publish(&totals, longest_ttl, oldest_unknown);
    }

    /// Only the first of consecutive failures. A loss of batches can then go undetected at the next start.
    pub(super) fn log_acknowledged(&mut self, written: io::Result<()>) {
        let failed_before = std::mem::replace(&mut self.acknowledged_fails, written.is_err());
        if let Err(error) = written
            && !failed_before
        {
            warn_not_acknowledged(&error, &self.dir);
        }
    }
}

fn warn_not_acknowledged(error: &io::Error, dir: &StoreDir) {
    tracing::warn!(
        %error,
        path = %dir.path().display(),
        "cannot write file `acknowledged` of the idempotency store, a loss of records can go undetected at the next \
         start"
    );
}

pub(super) fn send_reply<T>(ack: Option<Ack<T>>, outcome: Result<T, StoreError>) {
    if let Some(ack) = ack {
        // The caller no longer waits; the operation stays executed.
        drop(ack.send(outcome));
    }
}
