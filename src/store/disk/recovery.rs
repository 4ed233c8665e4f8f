//! What the writer does when the engine fails, and until it works again.
//!
//! A failed engine is closed, and reopened after a backoff. Requests whose key is not in memory are rejected
//! meanwhile.
//! Completions wait: their requests were executed, so their responses are recorded first when the engine
//! works again, if need be in the space of the reserve. Claims are admitted when there is a reserve again, and
//! then one at first ([`Admission`]).

use std::collections::HashSet;
use std::io;
use std::sync::Weak;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::Handle;
use super::admission::Admission;
use super::condition::News;
use super::engine::{Engine, resync};
use super::writer::{BATCH_BYTES, End, EngineState, Op, Writer, tell};
use crate::failpoint::fails;
use crate::idempotency::{ExecutionOutcome, RecordId, StoreError};

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
    /// Whether the engine was reopened and this has not been logged.
    is_unreported: bool,
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
        let path = self.home.path().display();
        match self.common.condition.fail(&reason) {
            News::Failure => tracing::error!(
                %reason,
                %path,
                "idempotency store failed, rejecting requests whose key is not in memory until it works again"
            ),
            News::Reason => tracing::warn!(%reason, %path, "idempotency store failed again"),
            News::Nothing => tracing::debug!(%reason, "idempotency store failed again"),
        }
        self.set_suspect(true);
        self.common.lookup.set(None);
        self.reserve.release();
        let reason = StoreError::known(reason);
        self.admission = Admission::None(reason.clone());
        self.fail(reason);
    }

    /// Closes the engine, which can take long, and then sets the time of the next attempt.
    fn fail(&mut self, reason: StoreError) {
        self.state = EngineState::Failed(reason, Instant::now());
        let wait = self.backoff.next(Instant::now());
        self.retry_after(wait);
    }

    /// Sets the time of the next attempt to reopen a failed engine.
    fn retry_after(&mut self, wait: Duration) {
        if let EngineState::Failed(_, again) = &mut self.state {
            *again = Instant::now() + wait;
        }
    }

    /// Reopens a failed engine when its backoff has passed and no compaction uses the old one.
    pub(super) fn reopen_if_due(&mut self, inbox: &Receiver<Op>) {
        let EngineState::Failed(_, again) = self.state else {
            return;
        };
        if Instant::now() < again {
            return;
        }
        if !self.upkeep.is_idle() {
            self.retry_after(SHORTEST);
            return;
        }
        match self.reopen(inbox) {
            Ok(()) => {
                self.backoff.opened = Some(Instant::now());
                self.backoff.is_unreported = true;
                self.upkeep.make_due();
                self.look_after_if_due();
            }
            Err(reason) => {
                if self.common.condition.fail(&reason) == News::Nothing {
                    tracing::debug!(%reason, "idempotency store not reopened");
                } else {
                    tracing::warn!(%reason, "idempotency store not reopened");
                }
                self.fail(StoreError::known(reason));
            }
        }
    }

    /// Opens the engine again and settles claims, after all operations that were sent meanwhile were rejected or
    /// put aside.
    fn reopen(&mut self, inbox: &Receiver<Op>) -> Result<(), StoreError> {
        if fails!("store-reopen") {
            return Err(StoreError::new(Errno::IO));
        }
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
        // Opening can take longer than a client waits for its completion. A completion that is still in the inbox
        // then belongs to no execution in flight, and its claim would be recorded as unknown.
        while let Some(op) = self.next_pending(inbox) {
            self.refuse(op);
        }
        let settled = self.settle_claims(engine);
        if settled.is_err() {
            self.set_suspect(true);
        }
        settled
    }

    /// Makes a last attempt to record the completions that wait for a failed engine, before the process ends.
    pub(super) fn record_waiting_completions(
        &mut self,
        inbox: &Receiver<Op>,
        owner: &Weak<Handle>,
    ) {
        if self.waiting_completions.is_empty() {
            return;
        }
        if self.upkeep.is_idle()
            && let Err(reason) = self.reopen(inbox)
        {
            tracing::warn!(%reason, "idempotency store not reopened at shutdown");
        }
        while let EngineState::Open(_) = self.state
            && let Some(completion) = self.waiting_completions.pop_front()
        {
            self.take_up(Op::End(completion), inbox, owner);
        }
        if !self.waiting_completions.is_empty() {
            tracing::error!(
                responses = self.waiting_completions.len(),
                "responses not stored at shutdown, their keys are unknown after a restart"
            );
        }
    }

    /// Admits claims again, if the engine is open, all completions are recorded, and there is space for more.
    pub(super) fn readmit(&mut self) {
        let EngineState::Open(_) = self.state else {
            return;
        };
        if !self.waiting_completions.is_empty() {
            // The space is needed for them.
            self.upkeep.make_due();
            return;
        }
        match self.hold_reserve() {
            Ok(()) => {
                if let Admission::None(_) = self.admission {
                    self.admission = Admission::after_reopening(self.last_claim);
                    self.common.condition.recover();
                    if std::mem::take(&mut self.backoff.is_unreported) {
                        tracing::info!("idempotency store reopened");
                    } else {
                        tracing::info!("disk space available, admitting requests with new keys");
                    }
                }
            }
            Err(error) => {
                let reason =
                    StoreError::known(format_args!("no disk space for further responses: {error}"));
                let path = self.home.path().display();
                match self.common.condition.fail(&reason) {
                    News::Failure => tracing::error!(
                        %reason,
                        %path,
                        "idempotency store failed, rejecting requests with new keys until it works again"
                    ),
                    News::Reason => {
                        tracing::warn!(%reason, %path, "idempotency store failed again");
                    }
                    News::Nothing => {}
                }
                self.admission = Admission::None(reason);
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
        let written = self.acknowledged.set_suspect(suspect);
        self.log_acknowledged(written);
    }

    /// Returns the keys of executions whose completion waits for the engine.
    pub(super) fn waiting_ids(&self) -> HashSet<RecordId> {
        let waiting = self.waiting_completions.iter();
        waiting
            .map(|completion| completion.token.request.id)
            .collect()
    }

    /// Does what can be done of an operation without an engine.
    pub(super) fn refuse(&mut self, op: Op) {
        let EngineState::Failed(reason, _) = &self.state else {
            return;
        };
        let reason = reason.clone();
        match op {
            Op::Claim(request, ack) => {
                let claim = self.common.in_flight.meet(&request).ok_or(reason);
                drop(ack.send(claim));
            }
            Op::End(end) if end.outcome.is_executed() => self.waiting_completions.push_back(end),
            Op::End(End {
                token,
                outcome,
                ack,
            }) => {
                if let ExecutionOutcome::Released(_) = outcome {
                    self.doomed.insert(token.request.id);
                    self.common.in_flight.end(&token, outcome);
                } else {
                    let now = self.common.timeline.clock.now();
                    self.common.in_flight.lose(&token, now);
                }
                tell(ack, Ok(()));
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

    use super::super::Common;
    use super::super::record::Record;
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

    type Waiting<T> = oneshot::Receiver<Result<T, StoreError>>;

    /// A writer that takes one turn at a time.
    struct Store {
        writer: Writer,
        inbox: Receiver<Op>,
        handle: Arc<Handle>,
        dir: TempDir,
    }

    impl Store {
        fn open(dir: TempDir) -> Self {
            let capacity = StoreCapacity::default();
            let common = Arc::new(Common::new(capacity, Clock::real()));
            let home = StoreDir::take(dir.path()).unwrap();
            let (ops, inbox) = mpsc::channel();
            let handle = Arc::new(Handle {
                ops: Some(ops),
                common: Arc::clone(&common),
                secret: home.secret(),
                path: dir.path().to_owned(),
                writer: Mutex::new(None),
            });
            let writer = Writer::open(home, capacity, common).unwrap();
            Self {
                writer,
                inbox,
                handle,
                dir,
            }
        }

        /// Closes the store and opens it again in the way in which it checks all counts.
        fn reopen_in_doubt(self) -> Self {
            let Self {
                writer,
                handle,
                dir,
                ..
            } = self;
            let records = writer.home.records();
            handle.common.lookup.set(None);
            drop(writer);
            File::create(records.with_extension("doubt")).unwrap();
            Self::open(dir)
        }

        fn turn(&mut self) {
            let owner = Arc::downgrade(&self.handle);
            assert!(self.writer.turn(&self.inbox, &owner));
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
            self.turn();
            match claim.try_recv().unwrap().unwrap() {
                Claim::Won(permit) => permit.into_token(),
                other => panic!("{other:?}"),
            }
        }

        /// Sends a completion to the writer, which does not take it yet.
        fn send_completion(&self, token: ClaimToken) -> Waiting<()> {
            let (ack, completed) = oneshot::channel();
            self.handle.send(Op::End(End {
                token,
                outcome: ExecutionOutcome::Tombstone,
                ack: Some(ack),
            }));
            completed
        }

        /// The client of a completion no longer waits for it.
        fn time_out(&self, token: &ClaimToken) {
            let common = &self.handle.common;
            common.in_flight.lose(token, common.timeline.clock.now());
        }

        /// Sends the release of a claim to the writer, which does not take it yet.
        fn send_release(&self, token: ClaimToken) {
            self.handle
                .abandoned(token, ExecutionOutcome::Released(None));
        }

        fn fail(&mut self) {
            self.writer.give_up(StoreError::new("for a test"));
        }

        /// Lets the time until the next attempt to reopen pass.
        fn make_reopening_due(&mut self) {
            let EngineState::Failed(_, again) = &mut self.writer.state else {
                panic!("the store has not failed");
            };
            *again = Instant::now();
        }

        fn record(&self) -> Option<Record> {
            let EngineState::Open(engine) = &self.writer.state else {
                panic!("the store has failed");
            };
            Some(engine.record(ID).unwrap()?.0)
        }

        /// The numbers of keys, unknown records and tombstones.
        fn counts(&self) -> (u64, u64, u64) {
            let tally = self.writer.tally;
            (tally.keys, tally.unknown, tally.tombstones)
        }
    }

    #[test]
    fn a_completion_that_times_out_while_the_store_is_reopened_is_recorded_once() {
        let mut store = Store::open(TempDir::new().unwrap());
        let token = store.claim();
        store.fail();
        let mut completed = store.send_completion(token);
        store.time_out(&token);
        store.make_reopening_due();
        store.turn();
        assert!(completed.try_recv().unwrap().is_ok());
        assert_eq!(store.counts(), (1, 0, 1));
        assert_eq!(store.handle.common.in_flight.len(), 0);
        let store = store.reopen_in_doubt();
        assert_eq!(store.record().unwrap().state, RecordState::Tombstone);
        assert_eq!(store.counts(), (1, 0, 1));
    }

    #[test]
    fn a_completion_replaces_the_unknown_record_of_its_execution() {
        let mut store = Store::open(TempDir::new().unwrap());
        let token = store.claim();
        store.time_out(&token);
        store.fail();
        store.make_reopening_due();
        store.turn();
        assert_eq!(store.record().unwrap().state, RecordState::Unknown);
        let mut completed = store.send_completion(token);
        store.turn();
        assert!(completed.try_recv().unwrap().is_ok());
        assert_eq!(store.counts(), (1, 0, 1));
        let store = store.reopen_in_doubt();
        assert_eq!(store.record().unwrap().state, RecordState::Tombstone);
    }

    #[test]
    fn a_completion_that_waited_through_a_failure_is_acknowledged_only_when_it_is_on_disk() {
        let mut store = Store::open(TempDir::new().unwrap());
        let token = store.claim();
        store.time_out(&token);
        store.fail();
        store.make_reopening_due();
        store.turn();
        assert_eq!(store.record().unwrap().state, RecordState::Unknown);
        store.fail();
        let mut completed = store.send_completion(token);
        store.turn();
        store.make_reopening_due();
        store.turn();
        assert!(completed.try_recv().unwrap().is_ok());
        assert_eq!(store.record().unwrap().state, RecordState::Tombstone);
        assert_eq!(store.counts(), (1, 0, 1));
    }

    #[test]
    fn a_completion_that_is_on_disk_already_is_acknowledged_and_counted_once() {
        let mut store = Store::open(TempDir::new().unwrap());
        let token = store.claim();
        let mut first = store.send_completion(token);
        store.turn();
        assert!(first.try_recv().unwrap().is_ok());
        // As if the sync had failed and the batch had reached the disk.
        store.fail();
        let mut again = store.send_completion(token);
        store.turn();
        store.make_reopening_due();
        store.turn();
        assert!(again.try_recv().unwrap().is_ok());
        assert_eq!(store.counts(), (1, 0, 1));
        store.reopen_in_doubt();
    }

    #[test]
    fn the_keys_of_clients_are_counted_again_when_the_store_is_reopened() {
        let mut store = Store::open(TempDir::new().unwrap());
        let token = store.claim();
        let client = token.request.client;
        let held = |store: &Store| store.writer.clients.held(client);
        assert_eq!(held(&store), 1);
        // Counts that a failed batch has left behind.
        store.writer.clients.add(client);
        store.fail();
        store.make_reopening_due();
        store.turn();
        assert_eq!(held(&store), 1, "a claim in flight counts");
        let mut completed = store.send_completion(token);
        store.turn();
        assert!(completed.try_recv().unwrap().is_ok());
        assert_eq!(held(&store), 1);
        store.writer.clients.remove(client);
        store.fail();
        store.make_reopening_due();
        store.turn();
        assert_eq!(held(&store), 1, "a record counts");
    }

    #[test]
    fn a_release_while_the_store_fails_is_not_counted_when_it_is_reopened() {
        let mut store = Store::open(TempDir::new().unwrap());
        let token = store.claim();
        store.fail();
        store.send_release(token);
        store.turn();
        store.make_reopening_due();
        store.turn();
        assert_eq!(store.counts(), (0, 0, 0));
        assert_eq!(store.writer.clients.held(token.request.client), 0);
    }

    #[test]
    fn a_completion_without_a_claim_or_record_is_an_error() {
        let mut store = Store::open(TempDir::new().unwrap());
        let token = store.claim();
        store.send_release(token);
        store.turn();
        let mut completed = store.send_completion(token);
        store.turn();
        assert!(completed.try_recv().unwrap().is_err());
        assert_eq!(store.counts(), (0, 0, 0));
        assert_eq!(store.writer.clients.held(token.request.client), 0);
        assert!(store.record().is_none());
    }

    #[test]
    fn a_completion_that_waits_for_a_failed_store_is_recorded_at_shutdown() {
        let mut store = Store::open(TempDir::new().unwrap());
        let token = store.claim();
        store.fail();
        let mut completed = store.send_completion(token);
        let Store {
            writer,
            inbox,
            handle,
            dir,
        } = store;
        let owner = Arc::downgrade(&handle);
        drop(handle);
        writer.work(&inbox, &owner);
        assert!(completed.try_recv().unwrap().is_ok());
        let store = Store::open(dir);
        assert_eq!(store.record().unwrap().state, RecordState::Tombstone);
    }

    #[test]
    fn the_time_to_the_next_reopening_begins_when_the_engine_is_closed() {
        let mut store = Store::open(TempDir::new().unwrap());
        store.fail();
        let closed = Instant::now();
        let EngineState::Failed(_, again) = store.writer.state else {
            panic!("the store has not failed");
        };
        assert!(again + Duration::from_millis(10) >= closed + SHORTEST);
    }

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
