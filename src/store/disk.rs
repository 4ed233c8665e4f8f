//! Records on disk: what was acknowledged survives a crash and a power cut.
//!
//! One writer thread owns the engine. It makes every decision about a key that memory cannot make, one after the other,
//! so a claim is atomic. It puts all operations that arrived while it was busy into one batch, syncs once, and only then
//! replies (group commit): with 64 callers about 30 claims and responses share a sync.
//!
//! In memory are the executions in flight with their waiters, and the responses that were replayed most recently, in a
//! moka cache that reduces the work of the writer. Everything else is read from disk when it is needed.
//!
//! The engine is fjall. Measured on 2 cores, 64 callers, one claim and one 450-byte response a request,
//! each synced (`fdatasync` 160 to 240 µs, medians of 3 rounds): fjall 23,300 requests a second, redb
//! 10,100; one caller 2,500 to 1,300. redb keeps a steadier file size, but gave back wrong bytes from a
//! damaged file where fjall reported an error. fjall, however, takes a damaged journal for a
//! truncated one, and silently drops what follows the damage. So the number of acknowledged batches is stored beside it
//! ([`tally`]) and compared at start, and the lists of its tables are checked before it reads them.
//!
//! When a write fails (a full disk), the engine is closed and reopened with a backoff until it works
//! ([`recovery`]). Until then a request with a key is served only if the key is in memory: it has a recent
//! response or an execution in flight. All other requests with a key are rejected. Responses of executions in
//! flight wait for the engine, for which some disk space is held back ([`reserve`]). After [`PATIENCE`] their
//! clients receive an unknown outcome, and a retry receives the response once it is stored.

mod admission;
mod batch;
pub(crate) mod buckets;
mod condition;
mod engine;
mod lookup;
mod record;
mod recovery;
mod reserve;
mod store_dir;
mod tally;
mod timeline;
mod upkeep;
mod writer;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use moka::sync::Cache;
use parking_lot::Mutex;
use thiserror::Error;
use tokio::sync::oneshot;
use tokio::time::timeout;

use self::condition::{Condition, News};
use self::lookup::Lookup;
use self::store_dir::StoreDir;
use self::tally::StoreStats;
use self::timeline::{Stamp, Timeline, millis};
use self::writer::{End, Op, Writer};
use super::capacity::StoreCapacity;
use super::health::Health;
use super::in_flight::InFlightTable;
use crate::clock::Clock;
use crate::idempotency::claim::{ClaimDecision, RecordView, decide_claim};
use crate::idempotency::{
    Claim, ClaimRequest, ClaimToken, ExecutionOutcome, Fingerprint, KeyHash, OnAbandon, Permit,
    RecordCounts, RecordId, RecordInfo, RecordState, Records, ScopeHash, Secret, StoreError,
    StoredResponse,
};

pub(crate) use store_dir::StoreDirError;

/// Most bytes of responses that are also kept in memory.
const CACHE_BYTES: u64 = 64 << 20;

/// How long an operation may take. A disk that takes longer counts as failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// The default of `max_response`, in bytes.
const MAX_RESPONSE: u64 = 1 << 20;

/// What a response takes in the cache besides its own weight, about.
const CACHE_OVERHEAD: usize = 200;

/// All records of a gateway, on disk. Cheap to clone; the last one dropped closes the store.
#[derive(Clone)]
pub struct DiskRecords(Arc<Handle>);

/// Why a store cannot be opened. Every message ends with a way out.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Its directory cannot be used.
    #[error(transparent)]
    Directory(#[from] StoreDirError),
    /// There are records in it that cannot be used.
    #[error(
        "the records in {path} cannot be used: {reason}; restore the directory from a backup, or move it away \
         to start without its keys"
    )]
    Records {
        /// The directory.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// Its thread cannot be started.
    #[error("cannot start a thread for the store")]
    Thread(#[source] std::io::Error),
}

/// The way to the writer, for as long as somebody wants to write.
struct Handle {
    ops: Option<mpsc::Sender<Op>>,
    common: Arc<Common>,
    secret: Secret,
    path: PathBuf,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// State that the writer shares with its callers.
struct Common {
    in_flight: InFlightTable,
    lookup: Lookup,
    condition: Condition,
    /// The largest response that is stored, in bytes.
    max_response: AtomicU64,
    /// Responses asked for most recently.
    recent: Cache<RecordId, Recent>,
    timeline: Timeline,
    stats: StoreStats,
}

/// A completed record in memory.
#[derive(Clone)]
struct Recent {
    fingerprint: Fingerprint,
    expires: Stamp,
    response: Arc<StoredResponse>,
}

impl DiskRecords {
    /// Opens the store in the directory `path`, which is made if there is none. What was underway when it
    /// was last used is unknown from now on.
    pub fn open(path: &Path, capacity: StoreCapacity, clock: Clock) -> Result<Self, OpenError> {
        let home = StoreDir::take(path)?;
        let secret = home.secret();
        let common = Arc::new(Common::new(capacity, clock));
        let (ops, inbox) = mpsc::channel();
        let writer = Writer::open(home, capacity, Arc::clone(&common))?;
        let handle = Arc::new(Handle {
            ops: Some(ops),
            common,
            secret,
            path: path.to_owned(),
            writer: Mutex::new(None),
        });
        let owner = Arc::downgrade(&handle);
        let thread = thread::Builder::new()
            .name("tidegate-store".into())
            .spawn(move || writer.work(&inbox, &owner))
            .map_err(OpenError::Thread)?;
        *handle.writer.lock() = Some(thread);
        Ok(Self(handle))
    }

    /// The secret that keys the names of its records, the same as long as the directory lives.
    pub fn secret(&self) -> Secret {
        self.0.secret
    }

    /// Sets the size of the largest response, in bytes: the store admits a request only while it holds disk
    /// space for one.
    pub fn set_max_response(&self, bytes: u64) {
        self.0.common.max_response.store(bytes, Ordering::Relaxed);
    }

    /// Returns the health of the records. Limits on disk do not fail, because they are decided in memory.
    pub fn health(&self) -> Health {
        self.0.common.condition.health()
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Drops expired records now.
    #[cfg(test)]
    pub(crate) async fn sweep(&self) {
        // If the writer is gone there is nothing to sweep.
        let _ = self.0.ask(Op::Sweep).await;
    }
}

impl Common {
    fn new(capacity: StoreCapacity, clock: Clock) -> Self {
        let recent = Cache::builder()
            .max_capacity(CACHE_BYTES.min(capacity.max_bytes))
            .weigher(|_, recent: &Recent| {
                u32::try_from(recent.response.weight() + CACHE_OVERHEAD).unwrap_or(u32::MAX)
            })
            .eviction_policy(moka::policy::EvictionPolicy::lru())
            .build();
        Self {
            in_flight: InFlightTable::default(),
            lookup: Lookup::default(),
            condition: Condition::default(),
            max_response: AtomicU64::new(MAX_RESPONSE),
            recent,
            timeline: Timeline::new(clock),
            stats: StoreStats::default(),
        }
    }

    fn max_response(&self) -> u64 {
        self.max_response.load(Ordering::Relaxed)
    }

    /// Returns up to `most` records of `key`, in `scope` or in all scopes if `None`. Reads from the disk.
    fn find(
        &self,
        key: KeyHash,
        scope: Option<ScopeHash>,
        most: usize,
    ) -> Result<Vec<RecordInfo>, StoreError> {
        let mut found = self.in_flight.find(key, scope, self.timeline.clock.now());
        found.truncate(most);
        let in_flight: HashSet<RecordId> = found.iter().map(|info| info.id).collect();
        let left = most - found.len();
        let stored = self.lookup.find(key, scope, left, self.timeline.now())?;
        found.extend(
            stored
                .into_iter()
                .filter(|info| !in_flight.contains(&info.id)),
        );
        Ok(found)
    }

    /// Returns the result of a claim that memory alone decides.
    fn meet(&self, request: &ClaimRequest) -> Option<Claim> {
        if let Some(claim) = self.in_flight.meet(request) {
            return Some(claim);
        }
        let recent = self.recent.get(&request.id)?;
        let record = RecordView::ended(RecordState::Completed, &recent.fingerprint, recent.expires);
        match decide_claim(Some(record), request, self.timeline.now()) {
            ClaimDecision::Available(_) => None,
            ClaimDecision::Replay => Some(Claim::Replay(recent.response)),
            meeting => Some(meeting.rejection()),
        }
    }
}

impl Handle {
    fn send(&self, op: Op) {
        if let Some(ops) = &self.ops {
            // A writer that has ended drops its operations, and their callers receive an error.
            drop(ops.send(op));
        }
    }

    /// Passes an operation to the writer and waits for its result, for [`PATIENCE`] at most. The writer still
    /// executes the operation after that time, except for a claim.
    async fn ask<T>(
        &self,
        op: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Op,
    ) -> Result<T, StoreError> {
        let (ack, reply) = oneshot::channel();
        self.send(op(ack));
        let Ok(reply) = timeout(PATIENCE, reply).await else {
            return Err(self.common.condition.stall());
        };
        reply.unwrap_or_else(|_| Err(self.writer_ended()))
    }

    /// Notes that the writer has panicked, and returns the error for the caller.
    fn writer_ended(&self) -> StoreError {
        let reason = StoreError::known("the thread of the store has ended");
        if self.common.condition.fail(&reason) == News::Failure {
            tracing::error!(
                %reason,
                path = %self.path.display(),
                "idempotency store failed, restart the gateway"
            );
        }
        reason
    }

    /// Reads from the disk on a thread that may block.
    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Common) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let common = Arc::clone(&self.common);
        let reading = tokio::task::spawn_blocking(move || read(&common));
        reading.await.map_err(StoreError::new)?
    }
}

impl Records for DiskRecords {
    async fn claim(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        if let Some(claim) = self.0.common.meet(request) {
            return Ok(claim);
        }
        self.0.common.condition.check()?;
        // A claim whose caller has gone is not made, or is released.
        self.0.ask(|ack| Op::Claim(*request, ack)).await
    }

    async fn end(&self, permit: Permit, outcome: ExecutionOutcome) -> Result<(), StoreError> {
        let token = permit.into_token();
        let is_executed = outcome.is_executed();
        let ending = self.0.ask(|ack| {
            let ack = Some(ack);
            Op::End(End {
                token,
                outcome,
                ack,
            })
        });
        let ended = ending.await;
        if ended.is_err() && is_executed {
            // The writer may still record it; the key is unknown until then.
            let common = &self.0.common;
            common.in_flight.lose(&token, common.timeline.clock.now());
        }
        ended
    }

    async fn find(
        &self,
        key: KeyHash,
        scope: Option<ScopeHash>,
        most: usize,
    ) -> Result<Vec<RecordInfo>, StoreError> {
        self.0
            .read(move |common| common.find(key, scope, most))
            .await
    }

    async fn response(&self, id: RecordId) -> Result<Option<Arc<StoredResponse>>, StoreError> {
        self.0
            .read(move |common| common.lookup.response(id, common.timeline.now()))
            .await
    }

    async fn free_unknown(&self, id: RecordId) -> Result<bool, StoreError> {
        self.0.ask(|ack| Op::Free(id, ack)).await
    }

    fn copies_replays(&self) -> bool {
        true
    }

    fn counts(&self) -> RecordCounts {
        let common = &self.0.common;
        common.stats.counts(common.in_flight.len())
    }
}

impl OnAbandon for Handle {
    fn abandoned(&self, token: ClaimToken, outcome: ExecutionOutcome) {
        self.send(Op::End(End {
            token,
            outcome,
            ack: None,
        }));
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        drop(self.ops.take());
        let writer = self.writer.lock().take();
        // The writer itself may be the last to hold a handle, for a moment; it does not wait for itself.
        if let Some(writer) = writer
            && writer.thread().id() != thread::current().id()
            && writer.join().is_err()
        {
            tracing::error!("the store's writer has crashed");
        }
    }
}

impl std::fmt::Debug for DiskRecords {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DiskRecords").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_store_of_an_older_format_is_rejected_before_the_engine_opens_anything() {
        let dir = TempDir::new().unwrap();
        let secret = "ab".repeat(32);
        let identity = format!(r#"{{ "format": 1, "engine": "fjall-3", "secret": "{secret}" }}"#);
        std::fs::write(dir.path().join("identity"), &identity).unwrap();
        let opened = DiskRecords::open(dir.path(), StoreCapacity::default(), Clock::real());
        let message = opened.err().unwrap().to_string();
        assert!(message.contains("has format 1"), "{message}");
        assert!(message.contains("until its keys have expired"), "{message}");
        assert!(message.contains("can then execute again"), "{message}");
        for file in ["records", "acknowledged", "reserve"] {
            assert!(!dir.path().join(file).exists(), "{file}");
        }
        let left = std::fs::read_to_string(dir.path().join("identity")).unwrap();
        assert_eq!(left, identity);
    }
}
