//! Handling of a failed storage engine by the writer thread.
//!
//! The thread closes a failed engine and reopens it after a backoff. Until then it rejects claims, unless an execution
//! of the key is in flight. Completions wait, because they are outcomes of executed requests, and are recorded first
//! after the reopening; on a full disk they use the space of the deleted reserve file. Claims are admitted again when
//! that file exists again, at first one at a time ([`ClaimAdmission`]).

use std::collections::HashSet;
use std::io;
use std::sync::Weak;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::WriterHandle;
use super::claim_admission::ClaimAdmission;
use super::engine::{Engine, resync};
use super::health_tracker::FailureChange;
use super::writer::{BATCH_BYTES, ClaimEnd, EngineState, Op, Writer, send_reply};
use crate::failpoint::fails;
use crate::idempotency::{ExecutionOutcome, RecordId, StoreError};

/// Each further failure doubles the backoff.
const MIN_BACKOFF: Duration = Duration::from_millis(250);

/// When disk space becomes free, the store is reopened after this time at the latest.
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// Time without a failure after which the backoff starts at its minimum again.
const STABLE: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct ReopenBackoff {
    /// Zero if there was no failure.
    last: Duration,
    /// When the engine was reopened. `None` if it has failed since.
    opened: Option<Instant>,
    /// Whether the reopening is not logged yet.
    is_unreported: bool,
}

impl ReopenBackoff {
    /// Wait after a failure at `now`.
    fn next(&mut self, now: Instant) -> Duration {
        let opened = self.opened.take();
        if opened.is_some_and(|opened| now.saturating_duration_since(opened) >= STABLE) {
            self.last = Duration::ZERO;
        }
        self.last = (self.last * 2).clamp(MIN_BACKOFF, MAX_BACKOFF);
        self.last
    }
}

impl Writer {
    pub(super) fn close_failed_engine(&mut self, reason: StoreError) {
        let path = self.dir.path().display();
        match self.shared.health.operation_failed(&reason) {
            FailureChange::Started => tracing::error!(
                %reason,
                %path,
                "idempotency store failed, requests whose idempotency key is not in memory are rejected until the \
                 store is reopened"
            ),
            FailureChange::NewReason => {
                tracing::warn!(%reason, %path, "idempotency store failed again for another reason");
            }
            FailureChange::Repeated => tracing::debug!(%reason, "idempotency store failed again"),
        }
        self.set_needs_resync(true);
        self.shared.lookup.set(None);
        self.reserve.release();
        let reason = StoreError::known(reason);
        self.ledger.admission = ClaimAdmission::None(reason.clone());
        self.set_failed(reason);
    }

    /// The backoff starts after the drop of the engine, which can take seconds.
    fn set_failed(&mut self, reason: StoreError) {
        self.state = EngineState::Failed(reason, Instant::now());
        let wait = self.backoff.next(Instant::now());
        self.schedule_reopen(wait);
    }

    fn schedule_reopen(&mut self, wait: Duration) {
        if let EngineState::Failed(_, again) = &mut self.state {
            *again = Instant::now() + wait;
        }
    }

    /// If a compaction still uses the closed engine, postpones the reopening by [`MIN_BACKOFF`].
    pub(super) fn reopen_if_due(&mut self, inbox: &Receiver<Op>) {
        let EngineState::Failed(_, again) = self.state else {
            return;
        };
        if Instant::now() < again {
            return;
        }
        if !self.maintenance.is_idle() {
            self.schedule_reopen(MIN_BACKOFF);
            return;
        }
        match self.reopen(inbox) {
            Ok(()) => {
                self.backoff.opened = Some(Instant::now());
                self.backoff.is_unreported = true;
                self.maintenance.make_due();
                self.maintain_if_due();
            }
            Err(reason) => {
                if self.shared.health.operation_failed(&reason) == FailureChange::Repeated {
                    tracing::debug!(%reason, "cannot reopen idempotency store, trying again");
                } else {
                    tracing::warn!(%reason, "cannot reopen idempotency store, trying again");
                }
                self.set_failed(StoreError::known(reason));
            }
        }
    }

    /// Before the claims are resolved, all operations in the inbox are executed without the engine.
    fn reopen(&mut self, inbox: &Receiver<Op>) -> Result<(), StoreError> {
        if fails!("store-reopen") {
            return Err(StoreError::new(Errno::IO));
        }
        let path = self.dir.records();
        if self.needs_resync {
            resync(&path).map_err(StoreError::new)?;
            self.set_needs_resync(false);
        }
        let engine = Engine::open(&path, self.ledger.totals.batches > 0)?;
        let totals = engine.totals()?;
        if totals.batches < self.ledger.totals.batches {
            return Err(StoreError::new(
                "the reopened storage engine has lost acknowledged batches; restore the store directory from a backup",
            ));
        }
        self.ledger.totals = totals;
        // Opening the engine can take longer than the timeout of a completion. After it, the execution is no longer in
        // flight, and `resolve_claims` would record its outcome as unknown.
        while let Some(op) = self.next_pending(inbox) {
            self.execute_without_engine(op);
        }
        let resolved = self.resolve_claims(engine);
        if resolved.is_err() {
            self.set_needs_resync(true);
        }
        resolved
    }

    /// A last attempt at shutdown. Completions that cannot be recorded are logged.
    pub(super) fn record_waiting_completions(
        &mut self,
        inbox: &Receiver<Op>,
        owner: &Weak<WriterHandle>,
    ) {
        if self.waiting_completions.is_empty() {
            return;
        }
        if self.maintenance.is_idle()
            && let Err(reason) = self.reopen(inbox)
        {
            tracing::warn!(%reason, "cannot reopen idempotency store at shutdown to store the waiting responses");
        }
        while let EngineState::Open(_) = self.state
            && let Some(completion) = self.waiting_completions.pop_front()
        {
            self.execute_batch(Op::End(completion), inbox, owner);
        }
        if !self.waiting_completions.is_empty() {
            tracing::error!(
                responses = self.waiting_completions.len(),
                "cannot store responses at shutdown because the idempotency store has failed, retries of their \
                 requests receive \"outcome unknown\" after the restart"
            );
        }
    }

    /// Claims need all waiting completions recorded, and a reserve file. Does nothing while the engine is closed.
    pub(super) fn update_admission(&mut self) {
        let EngineState::Open(_) = self.state else {
            return;
        };
        if !self.waiting_completions.is_empty() {
            // The waiting completions need the disk space of the reserve file.
            self.maintenance.make_due();
            return;
        }
        match self.hold_reserve() {
            Ok(()) => {
                if let ClaimAdmission::None(_) = self.ledger.admission {
                    self.ledger.admission = ClaimAdmission::after_reopening(self.ledger.last_claim);
                    self.shared.health.store_recovered();
                    if std::mem::take(&mut self.backoff.is_unreported) {
                        tracing::info!("idempotency store reopened");
                    } else {
                        tracing::info!(
                            "disk space is free again, idempotency store admits requests with new idempotency keys"
                        );
                    }
                }
            }
            Err(error) => {
                let reason = StoreError::known(format_args!(
                    "cannot reserve disk space for further responses: {error}"
                ));
                let path = self.dir.path().display();
                match self.shared.health.operation_failed(&reason) {
                    FailureChange::Started => tracing::error!(
                        %reason,
                        %path,
                        "idempotency store failed, rejecting requests with new idempotency keys until disk space is \
                         free"
                    ),
                    FailureChange::NewReason => {
                        tracing::warn!(%reason, %path, "idempotency store failed again for another reason");
                    }
                    FailureChange::Repeated => {}
                }
                self.ledger.admission = ClaimAdmission::None(reason);
            }
        }
    }

    /// For a batch and the largest response. Fails if the disk then has no free space for another batch.
    pub(super) fn hold_reserve(&mut self) -> io::Result<()> {
        let batch = BATCH_BYTES as u64;
        self.reserve.hold(batch + self.shared.max_response(), batch)
    }

    /// The flag is stored on disk for the next process.
    pub(super) fn set_needs_resync(&mut self, needs_resync: bool) {
        self.needs_resync = needs_resync;
        let written = self.acknowledged.set_needs_resync(needs_resync);
        self.log_acknowledged(written);
    }

    pub(super) fn waiting_ids(&self) -> HashSet<RecordId> {
        let waiting = self.waiting_completions.iter();
        waiting
            .map(|completion| completion.token.request.id)
            .collect()
    }

    /// Completions are queued. Releases and unknown outcomes are recorded in memory. Claims are decided if an execution
    /// of the key is in flight. All other operations fail.
    pub(super) fn execute_without_engine(&mut self, op: Op) {
        let EngineState::Failed(reason, _) = &self.state else {
            return;
        };
        let reason = reason.clone();
        match op {
            Op::Claim(request, ack) => {
                let claim = self.shared.in_flight.check(&request).ok_or(reason);
                drop(ack.send(claim));
            }
            Op::End(end) if end.outcome.is_executed() => self.waiting_completions.push_back(end),
            Op::End(ClaimEnd {
                token,
                outcome,
                ack,
            }) => {
                if let ExecutionOutcome::Released(_) = outcome {
                    self.orphaned_claims.insert(token.request.id);
                    self.shared.in_flight.end(&token, outcome);
                } else {
                    let now = self.shared.store_clock.clock.now();
                    self.shared.in_flight.lose(&token, now);
                }
                send_reply(ack, Ok(()));
            }
            Op::Free(_, ack) => drop(ack.send(Err(reason))),
            #[cfg(test)]
            Op::Sweep(ack) => drop(ack.send(Err(reason))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::num::NonZeroU32;
    use std::sync::{Arc, mpsc};

    use parking_lot::Mutex;
    use tempfile::TempDir;
    use tokio::sync::oneshot;

    use super::super::DiskStoreState;
    use super::super::record::DiskRecord;
    use super::super::store_dir::StoreDir;
    use super::*;
    use crate::clock::{Clock, Moment};
    use crate::idempotency::{
        Claim, ClaimRequest, ClaimToken, ClientHash, Fingerprint, KeyHash, OnAbandon as _,
        OnUnknown, RecordSettings, RecordState, ScopeHash,
    };
    use crate::store::StoreCapacity;

    const ID: RecordId = RecordId {
        key: KeyHash([1; 16]),
        scope: ScopeHash([1; 16]),
    };

    type ReplyReceiver<T> = oneshot::Receiver<Result<T, StoreError>>;

    /// A store whose writer executes operations only when the test calls `run_once`.
    struct ManualStore {
        writer: Writer,
        inbox: Receiver<Op>,
        handle: Arc<WriterHandle>,
        temp: TempDir,
    }

    impl ManualStore {
        fn open(temp: TempDir) -> Self {
            let capacity = StoreCapacity::default();
            let shared = Arc::new(DiskStoreState::new(capacity, Clock::real()));
            let dir = StoreDir::open(temp.path()).unwrap();
            let (ops, inbox) = mpsc::channel();
            let handle = Arc::new(WriterHandle {
                ops: parking_lot::RwLock::new(Some(ops)),
                shared: Arc::clone(&shared),
                secret: dir.secret(),
                path: temp.path().to_owned(),
                writer: Mutex::new(None),
            });
            let writer = Writer::open(dir, capacity, shared).unwrap();
            Self {
                writer,
                inbox,
                handle,
                temp,
            }
        }

        /// Closes the store, creates the marker file (extension `doubt`), and opens the store again. Because of this
        /// file, the engine counts the records and claims when it opens, and compares the counts with the stored
        /// totals.
        fn reopen_with_count_check(self) -> Self {
            let Self {
                writer,
                handle,
                temp,
                ..
            } = self;
            let records = writer.dir.records();
            handle.shared.lookup.set(None);
            drop(writer);
            File::create(records.with_extension("doubt")).unwrap();
            Self::open(temp)
        }

        fn run_once(&mut self) {
            let owner = Arc::downgrade(&self.handle);
            assert!(self.writer.run_once(&self.inbox, &owner));
        }

        fn claim(&mut self) -> ClaimToken {
            let request = ClaimRequest {
                at: Moment::default(),
                id: ID,
                client: ClientHash(1),
                fingerprint: Fingerprint {
                    request: [1; 16],
                    credentials: [1; 16],
                },
                settings: RecordSettings {
                    ttl: Duration::from_hours(1),
                    on_unknown: OnUnknown::Hold,
                    max_keys_per_scope: NonZeroU32::MAX,
                },
            };
            let (ack, mut claim) = oneshot::channel();
            self.handle.send(Op::Claim(request, ack));
            self.run_once();
            match claim.try_recv().unwrap().unwrap() {
                Claim::Won(permit) => permit.into_token(),
                other => panic!("{other:?}"),
            }
        }

        /// Sends a completion to the inbox of the writer.
        fn send_completion(&self, token: ClaimToken) -> ReplyReceiver<()> {
            let (ack, completed) = oneshot::channel();
            self.handle.send(Op::End(ClaimEnd {
                token,
                outcome: ExecutionOutcome::Tombstone,
                ack: Some(ack),
            }));
            completed
        }

        /// Simulates that the timeout of a completion passes.
        fn time_out(&self, token: &ClaimToken) {
            let shared = &self.handle.shared;
            shared.in_flight.lose(token, shared.store_clock.clock.now());
        }

        /// Sends the release of a claim to the inbox of the writer.
        fn send_release(&self, token: ClaimToken) {
            self.handle
                .abandoned(token, ExecutionOutcome::Released(None));
        }

        fn fail(&mut self) {
            self.writer
                .close_failed_engine(StoreError::new("failure of a test"));
        }

        /// Ends the backoff, so that the next `run_once` reopens the store.
        fn make_reopening_due(&mut self) {
            let EngineState::Failed(_, again) = &mut self.writer.state else {
                panic!("the store has not failed");
            };
            *again = Instant::now();
        }

        fn record(&self) -> Option<DiskRecord> {
            let EngineState::Open(engine) = &self.writer.state else {
                panic!("the store has failed");
            };
            Some(engine.record(ID).unwrap()?.0)
        }

        /// Returns the numbers of idempotency keys, records with an unknown outcome, and tombstones.
        fn counts(&self) -> (u64, u64, u64) {
            let totals = self.writer.ledger.totals;
            (totals.keys, totals.unknown, totals.tombstones)
        }
    }

    #[test]
    fn a_completion_that_times_out_while_the_store_is_reopened_is_recorded_once() {
        let mut store = ManualStore::open(TempDir::new().unwrap());
        let token = store.claim();
        store.fail();
        let mut completed = store.send_completion(token);
        store.time_out(&token);
        store.make_reopening_due();
        store.run_once();
        assert!(completed.try_recv().unwrap().is_ok());
        assert_eq!(store.counts(), (1, 0, 1));
        assert_eq!(store.handle.shared.in_flight.len(), 0);
        let store = store.reopen_with_count_check();
        assert_eq!(store.record().unwrap().state, RecordState::Tombstone);
        assert_eq!(store.counts(), (1, 0, 1));
    }

    #[test]
    fn a_completion_replaces_the_unknown_record_of_its_execution() {
        let mut store = ManualStore::open(TempDir::new().unwrap());
        let token = store.claim();
        store.time_out(&token);
        store.fail();
        store.make_reopening_due();
        store.run_once();
        assert_eq!(store.record().unwrap().state, RecordState::Unknown);
        let mut completed = store.send_completion(token);
        store.run_once();
        assert!(completed.try_recv().unwrap().is_ok());
        assert_eq!(store.counts(), (1, 0, 1));
        let store = store.reopen_with_count_check();
        assert_eq!(store.record().unwrap().state, RecordState::Tombstone);
    }

    #[test]
    fn a_completion_that_waits_during_a_failure_is_acknowledged_when_it_is_on_disk() {
        let mut store = ManualStore::open(TempDir::new().unwrap());
        let token = store.claim();
        store.time_out(&token);
        store.fail();
        store.make_reopening_due();
        store.run_once();
        assert_eq!(store.record().unwrap().state, RecordState::Unknown);
        store.fail();
        let mut completed = store.send_completion(token);
        store.run_once();
        store.make_reopening_due();
        store.run_once();
        assert!(completed.try_recv().unwrap().is_ok());
        assert_eq!(store.record().unwrap().state, RecordState::Tombstone);
        assert_eq!(store.counts(), (1, 0, 1));
    }

    #[test]
    fn a_completion_that_is_already_on_disk_is_acknowledged_and_counted_once() {
        let mut store = ManualStore::open(TempDir::new().unwrap());
        let token = store.claim();
        let mut first = store.send_completion(token);
        store.run_once();
        assert!(first.try_recv().unwrap().is_ok());
        // Simulates a batch whose sync failed although the batch reached the disk.
        store.fail();
        let mut again = store.send_completion(token);
        store.run_once();
        store.make_reopening_due();
        store.run_once();
        assert!(again.try_recv().unwrap().is_ok());
        assert_eq!(store.counts(), (1, 0, 1));
        store.reopen_with_count_check();
    }

    #[test]
    fn the_keys_of_clients_are_counted_again_when_the_store_is_reopened() {
        let mut store = ManualStore::open(TempDir::new().unwrap());
        let token = store.claim();
        let client = token.request.client;
        let held = |store: &ManualStore| store.writer.ledger.clients.held(client);
        assert_eq!(held(&store), 1);
        // Simulates the wrong number of idempotency keys that a failed batch leaves behind.
        store.writer.ledger.clients.add(client);
        store.fail();
        store.make_reopening_due();
        store.run_once();
        assert_eq!(held(&store), 1, "a claim in flight counts");
        let mut completed = store.send_completion(token);
        store.run_once();
        assert!(completed.try_recv().unwrap().is_ok());
        assert_eq!(held(&store), 1);
        store.writer.ledger.clients.remove(client);
        store.fail();
        store.make_reopening_due();
        store.run_once();
        assert_eq!(held(&store), 1, "a record counts");
    }

    #[test]
    fn a_claim_released_during_a_failure_is_removed_when_the_store_is_reopened() {
        let mut store = ManualStore::open(TempDir::new().unwrap());
        let token = store.claim();
        store.fail();
        store.send_release(token);
        store.run_once();
        store.make_reopening_due();
        store.run_once();
        assert_eq!(store.counts(), (0, 0, 0));
        assert_eq!(store.writer.ledger.clients.held(token.request.client), 0);
    }

    #[test]
    fn a_completion_without_a_stored_claim_or_record_is_rejected() {
        let mut store = ManualStore::open(TempDir::new().unwrap());
        let token = store.claim();
        store.send_release(token);
        store.run_once();
        let mut completed = store.send_completion(token);
        store.run_once();
        assert!(completed.try_recv().unwrap().is_err());
        assert_eq!(store.counts(), (0, 0, 0));
        assert_eq!(store.writer.ledger.clients.held(token.request.client), 0);
        assert!(store.record().is_none());
    }

    #[test]
    fn a_completion_that_waits_for_a_failed_store_is_recorded_at_shutdown() {
        let mut store = ManualStore::open(TempDir::new().unwrap());
        let token = store.claim();
        store.fail();
        let mut completed = store.send_completion(token);
        let ManualStore {
            writer,
            inbox,
            handle,
            temp,
        } = store;
        let owner = Arc::downgrade(&handle);
        drop(handle);
        writer.run(&inbox, &owner);
        assert!(completed.try_recv().unwrap().is_ok());
        let store = ManualStore::open(temp);
        assert_eq!(store.record().unwrap().state, RecordState::Tombstone);
    }

    #[test]
    fn the_backoff_starts_when_the_engine_is_closed() {
        let mut store = ManualStore::open(TempDir::new().unwrap());
        store.fail();
        let closed = Instant::now();
        let EngineState::Failed(_, again) = store.writer.state else {
            panic!("the store has not failed");
        };
        assert!(again + Duration::from_millis(10) >= closed + MIN_BACKOFF);
    }

    #[test]
    fn the_backoff_doubles_up_to_its_maximum_and_is_reset_after_30_s_without_a_failure() {
        let now = Instant::now();
        let mut backoff = ReopenBackoff::default();
        let waits: Vec<_> = (0..5).map(|_| backoff.next(now).as_millis()).collect();
        assert_eq!(waits, [250, 500, 1_000, 2_000, 2_000]);
        backoff.opened = Some(now);
        assert_eq!(backoff.next(now + STABLE / 2), MAX_BACKOFF);
        backoff.opened = Some(now);
        assert_eq!(backoff.next(now + STABLE), MIN_BACKOFF);
    }
}
