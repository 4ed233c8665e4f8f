//! Disk store of idempotency records. A record that the store has acknowledged survives a process crash and a power
//! failure.
//!
//! One writer thread owns the storage engine. It decides claims of idempotency keys one after the other, so a claim is
//! atomic. The thread combines all operations that arrived while it was busy into one batch. It syncs the batch once,
//! and only then replies to its operations (group commit). With 64 concurrent callers, about 30 claims and responses
//! share a sync.
//!
//! Memory holds the executions in flight, with the duplicate requests that wait for them. A moka cache holds the
//! responses that were stored or replayed most recently. If memory holds an execution or a response for an idempotency
//! key, a claim of this key does not involve the writer thread. All other records are read from disk.
//!
//! The engine is fjall. It was compared with redb on 2 cores. Each request stored one claim and one 450-byte response,
//! and each of the two was synced (`fdatasync` took 160 to 240 µs). The medians of 3 rounds with 64 callers were 23,300
//! requests per second for fjall and 10,100 for redb. With one caller, they were 2,500 and 1,300. The file size of redb
//! varies less than that of fjall. But redb returned wrong bytes from a damaged file, while fjall reported an error.
//!
//! fjall treats a damaged journal as a truncated one and silently drops all batches after the damage. Two checks at
//! start detect this loss. The number of acknowledged batches is stored in a separate file ([`totals`]) and compared
//! with the number in the engine. The table lists of fjall are verified before fjall reads them.
//!
//! When a write fails (for example on a full disk), the writer thread closes the engine and reopens it after a backoff
//! ([`engine_failure`]). While the engine is closed, a request with an idempotency key succeeds only if memory has a
//! response or an execution in flight for its key. All other requests with an idempotency key are rejected. Responses
//! of executions in flight wait until the engine is open again. If the disk is full, they are written to reserved
//! disk space ([`space_reserve`]). If a response waits longer than [`OPERATION_TIMEOUT`], its client receives the error
//! "outcome unknown". A later retry receives the response once it is stored.

mod admin_lookup;
mod batch;
pub(crate) mod bucket_snapshots;
mod claim_admission;
mod engine;
mod engine_failure;
mod health_tracker;
mod maintenance;
mod record;
mod space_reserve;
mod store_clock;
mod store_dir;
mod totals;
mod writer;

use std::collections::HashSet;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use moka::sync::Cache;
use parking_lot::{Mutex, RwLock};
use thiserror::Error;
use tokio::sync::oneshot;
use tokio::time::timeout;

use self::admin_lookup::Lookup;
use self::health_tracker::{FailureChange, HealthTracker};
use self::store_clock::{StoreClock, Timestamp, millis};
use self::store_dir::StoreDir;
use self::totals::StoreStats;
use self::writer::{ClaimEnd, Op, Writer};
use super::capacity::StoreCapacity;
use super::capacity_use::{Bound, CapacityUse, ForgottenKeys, UseSamples};
use super::health::Health;
use super::in_flight::InFlightTable;
use crate::clock::Clock;
use crate::idempotency::claim::{ClaimDecision, RecordView, StateView, decide_claim};
use crate::idempotency::{
    Claim, ClaimRequest, ClaimToken, ExecutionOutcome, Fingerprint, KeyHash, OnAbandon, Permit,
    RecordCounts, RecordId, RecordInfo, Records, ScopeHash, Secret, StoreError, StoredResponse,
};

pub(crate) use store_dir::StoreDirError;

/// Maximum size of the cache of recent responses, in bytes.
const CACHE_BYTES: u64 = 64 << 20;

/// Approximate memory of an idempotency key in bytes: its entry in the queues of ended records (48 bytes, up to 144 while
/// a queue grows), the key count of its client (up to 34), and the filters and indexes of fjall (about 10).
pub(crate) const BYTES_PER_KEY: u64 = 200;

/// Memory of the store besides its keys, in bytes: the caches of responses and of fjall, and up to 4 memtables for each
/// keyspace.
pub(crate) const FIXED_BYTES: u64 = CACHE_BYTES + (160 << 20);

/// Maximum duration of an operation of the writer thread. After this time the caller receives an error, and the disk is
/// reported as failed.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(10);

/// Initial value of the field `max_response` of [`DiskStoreState`], in bytes.
const MAX_RESPONSE: u64 = 1 << 20;

/// Approximate memory of an entry in the response cache besides its response, in bytes.
const CACHE_OVERHEAD: usize = 200;

/// The disk store of idempotency records. Clones share the store. The store is closed when the last clone is dropped.
#[derive(Clone)]
pub struct DiskRecords(Arc<WriterHandle>);

/// Error of [`DiskRecords::open`]. Messages about the store directory and its idempotency records end with a remedy.
#[derive(Debug, Error)]
pub enum DiskOpenError {
    /// The store directory cannot be used.
    #[error(transparent)]
    Directory(#[from] StoreDirError),
    /// The idempotency records in the store directory are damaged or cannot be read.
    #[error(
        "the idempotency records in {path} cannot be used: {reason}; restore the directory from a backup, or move \
         it away to start with an empty store: requests that were executed before can then be executed again"
    )]
    Records {
        /// Path of the store directory.
        path: String,
        /// Error of the storage engine or of an integrity check.
        reason: String,
    },
    /// The operating system cannot start another thread.
    #[error(
        "cannot start a thread of the disk store; check the limits on processes and memory (`ulimit -u`, cgroup)"
    )]
    Thread(#[source] std::io::Error),
}

/// Handle that sends operations to the writer thread. Dropping the handle stops the thread.
struct WriterHandle {
    /// Channel to the writer thread; `None` after the store was closed.
    ops: RwLock<Option<mpsc::Sender<Op>>>,
    shared: Arc<DiskStoreState>,
    secret: Secret,
    path: PathBuf,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// State that the writer thread shares with the callers of [`DiskRecords`].
struct DiskStoreState {
    in_flight: InFlightTable,
    lookup: Lookup,
    health: HealthTracker,
    /// Size of the largest response that the gateway stores, in bytes. Determines the size of the reserved disk space.
    max_response: AtomicU64,
    /// Responses that were stored or replayed most recently.
    recent: Cache<RecordId, RecentResponse>,
    store_clock: StoreClock,
    stats: StoreStats,
    max_keys: u64,
    use_samples: UseSamples,
    forgotten: ForgottenKeys,
}

/// A completed idempotency record in the response cache.
#[derive(Clone)]
struct RecentResponse {
    fingerprint: Fingerprint,
    expires: Timestamp,
    response: Arc<StoredResponse>,
}

impl DiskRecords {
    /// Opens the store in the directory `path` and creates the directory if it does not exist. If the last process was
    /// killed, the executions that were in flight at that time become records with an unknown outcome.
    pub fn open(path: &Path, capacity: StoreCapacity, clock: Clock) -> Result<Self, DiskOpenError> {
        let dir = StoreDir::open(path)?;
        let secret = dir.secret();
        let shared = Arc::new(DiskStoreState::new(capacity, clock));
        let (ops, inbox) = mpsc::channel();
        let writer = Writer::open(dir, capacity, Arc::clone(&shared))?;
        let handle = Arc::new(WriterHandle {
            ops: RwLock::new(Some(ops)),
            shared,
            secret,
            path: path.to_owned(),
            writer: Mutex::new(None),
        });
        let owner = Arc::downgrade(&handle);
        let thread = thread::Builder::new()
            .name("tidegate-store".into())
            .spawn(move || writer.run(&inbox, &owner))
            .map_err(DiskOpenError::Thread)?;
        *handle.writer.lock() = Some(thread);
        Ok(Self(handle))
    }

    /// Returns the secret key of the hashes under which idempotency records are stored. The secret is created with the
    /// store directory and never changes.
    pub fn secret(&self) -> Secret {
        self.0.secret
    }

    /// Sets the size of the largest response that the gateway stores, in bytes. The store admits claims only while it
    /// has reserved disk space for a response of this size.
    pub fn set_max_response(&self, bytes: u64) {
        self.0.shared.max_response.store(bytes, Ordering::Relaxed);
    }

    /// Returns the health of the idempotency record store. Buckets of rate limits are not covered, because they are in
    /// memory and do not depend on the disk.
    pub fn health(&self) -> Health {
        self.0.shared.health.health()
    }

    /// Returns the use of `max_keys`.
    pub(crate) fn capacity_use(&self) -> CapacityUse {
        self.0.shared.capacity_use()
    }

    /// Closes the store for all clones: stores the operations that were submitted before, and unlocks the directory.
    /// Later operations fail. Blocks until the store is closed.
    pub fn close(&self) {
        self.0.close();
    }

    /// Returns the path of the store directory.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Drops all expired records.
    #[cfg(test)]
    pub(crate) async fn sweep(&self) {
        // An error is ignored: it means that the store has failed, and the tests notice this when they check the
        // records.
        let _ = self.0.submit(Op::Sweep).await;
    }
}

impl DiskStoreState {
    fn new(capacity: StoreCapacity, clock: Clock) -> Self {
        let recent = Cache::builder()
            .max_capacity(CACHE_BYTES.min(capacity.max_bytes))
            .weigher(|_, recent: &RecentResponse| {
                u32::try_from(recent.response.weight() + CACHE_OVERHEAD).unwrap_or(u32::MAX)
            })
            .eviction_policy(moka::policy::EvictionPolicy::lru())
            .build();
        Self {
            in_flight: InFlightTable::default(),
            lookup: Lookup::default(),
            health: HealthTracker::default(),
            max_response: AtomicU64::new(MAX_RESPONSE),
            recent,
            store_clock: StoreClock::new(clock),
            stats: StoreStats::default(),
            max_keys: capacity.max_keys as u64,
            use_samples: UseSamples::new(Bound::MaxKeys),
            forgotten: ForgottenKeys::default(),
        }
    }

    fn capacity_use(&self) -> CapacityUse {
        let now = Duration::from_millis(self.store_clock.now().0);
        self.use_samples.add(now, self.stats.keys(), self.max_keys)
    }

    fn max_response(&self) -> u64 {
        self.max_response.load(Ordering::Relaxed)
    }

    /// Returns up to `most` records of the idempotency key `key`. If `scope` is `None`, returns the records of all
    /// scopes. Blocks while it reads from disk.
    fn find(
        &self,
        key: KeyHash,
        scope: Option<ScopeHash>,
        most: usize,
    ) -> Result<Vec<RecordInfo>, StoreError> {
        let mut found = self
            .in_flight
            .find(key, scope, self.store_clock.clock.now());
        found.truncate(most);
        let in_flight: HashSet<RecordId> = found.iter().map(|info| info.id).collect();
        let left = most - found.len();
        let stored = self.lookup.find(key, scope, left, self.store_clock.now())?;
        found.extend(
            stored
                .into_iter()
                .filter(|info| !in_flight.contains(&info.id)),
        );
        Ok(found)
    }

    /// Returns the result of a claim if the in-flight table or the response cache is sufficient to decide it. `None`
    /// means that the writer thread has to decide the claim.
    fn claim_from_memory(&self, request: &ClaimRequest) -> Option<Claim> {
        if let Some(claim) = self.in_flight.check(request) {
            return Some(claim);
        }
        let recent = self.recent.get(&request.id)?;
        let record = RecordView {
            state: StateView::<Infallible, _>::Completed(recent.response),
            fingerprint: recent.fingerprint,
            expires: Some(recent.expires),
        };
        match decide_claim(record, request, self.store_clock.now()) {
            ClaimDecision::Available => None,
            ClaimDecision::Replay(response) => Some(Claim::Replay(response)),
            ClaimDecision::Rejected(rejection) => Some(Claim::Rejected(rejection)),
        }
    }
}

impl WriterHandle {
    fn send(&self, op: Op) {
        if let Some(ops) = &*self.ops.read() {
            // A send error is ignored: it means that the writer thread has stopped. The operation is dropped with its
            // reply channel, so its caller receives an error.
            drop(ops.send(op));
        }
    }

    /// Sends an operation to the writer thread and waits up to [`OPERATION_TIMEOUT`] for the result. After a timeout,
    /// the thread still executes the operation, except for a claim, which it skips.
    async fn submit<T>(
        &self,
        op: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Op,
    ) -> Result<T, StoreError> {
        let (ack, reply) = oneshot::channel();
        self.send(op(ack));
        let Ok(reply) = timeout(OPERATION_TIMEOUT, reply).await else {
            return Err(self.shared.health.writer_stalled());
        };
        reply.unwrap_or_else(|_| Err(self.writer_ended()))
    }

    /// Returns the error for an operation without a reply. If the store was not closed, the writer thread has panicked,
    /// and the store is marked as failed.
    fn writer_ended(&self) -> StoreError {
        if self.ops.read().is_none() {
            return StoreError::known("the disk store is closed");
        }
        let reason = StoreError::known("the writer thread of the disk store has panicked");
        if self.shared.health.operation_failed(&reason) == FailureChange::Started {
            tracing::error!(
                %reason,
                path = %self.path.display(),
                "idempotency store failed, rejecting requests whose idempotency key is not in memory, restart the \
                 gateway"
            );
        }
        reason
    }

    /// Runs `read`, which reads from disk, on a thread that is allowed to block.
    async fn read_blocking<T: Send + 'static>(
        &self,
        read: impl FnOnce(&DiskStoreState) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let shared = Arc::clone(&self.shared);
        let reading = tokio::task::spawn_blocking(move || read(&shared));
        reading.await.map_err(StoreError::new)?
    }
}

impl Records for DiskRecords {
    async fn claim(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        if let Some(claim) = self.0.shared.claim_from_memory(request) {
            return Ok(claim);
        }
        self.0.shared.health.check_writer()?;
        // If the caller stops waiting before the claim is decided, the writer thread skips the claim. If the caller
        // stops waiting after the decision, its permit is dropped, which releases the claim.
        self.0.submit(|ack| Op::Claim(*request, ack)).await
    }

    async fn end(&self, permit: Permit, outcome: ExecutionOutcome) -> Result<(), StoreError> {
        let token = permit.into_token();
        let is_executed = outcome.is_executed();
        let ending = self.0.submit(|ack| {
            let ack = Some(ack);
            Op::End(ClaimEnd {
                token,
                outcome,
                ack,
            })
        });
        let ended = ending.await;
        if ended.is_err() && is_executed {
            // The response could not be stored in time, so duplicate requests receive "outcome unknown" until the
            // writer thread records the response.
            let shared = &self.0.shared;
            shared
                .in_flight
                .lose(&token, shared.store_clock.clock.now());
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
            .read_blocking(move |shared| shared.find(key, scope, most))
            .await
    }

    async fn response(&self, id: RecordId) -> Result<Option<Arc<StoredResponse>>, StoreError> {
        self.0
            .read_blocking(move |shared| shared.lookup.response(id, shared.store_clock.now()))
            .await
    }

    async fn free_unknown(&self, id: RecordId) -> Result<bool, StoreError> {
        self.0.submit(|ack| Op::Free(id, ack)).await
    }

    fn claims_at_once(&self) -> bool {
        false
    }

    fn copies_replays(&self) -> bool {
        true
    }

    fn counts(&self) -> RecordCounts {
        let shared = &self.0.shared;
        let time = shared.store_clock.now();
        let now = Duration::from_millis(time.0);
        let longest_ttl = shared.stats.longest_ttl();
        let oldest_unknown = shared.stats.oldest_unknown();
        RecordCounts {
            oldest_unknown: oldest_unknown.map(|since| time.since(since)),
            forgotten: shared.forgotten.count(),
            effective_ttl: shared.forgotten.effective_ttl(now, longest_ttl),
            ..shared.stats.counts(shared.in_flight.len())
        }
    }
}

impl OnAbandon for WriterHandle {
    fn abandoned(&self, token: ClaimToken, outcome: ExecutionOutcome) {
        self.send(Op::End(ClaimEnd {
            token,
            outcome,
            ack: None,
        }));
    }
}

impl WriterHandle {
    /// Stops the writer thread after its last operation, and waits until it has closed the engine.
    fn close(&self) {
        drop(self.ops.write().take());
        let writer = self.writer.lock().take();
        // The writer thread itself can drop the last handle, because it upgrades a weak one. A thread cannot join
        // itself, so `join` is skipped in this case.
        if let Some(writer) = writer
            && writer.thread().id() != thread::current().id()
            && writer.join().is_err()
        {
            tracing::error!(
                path = %self.path.display(),
                "writer thread of the idempotency store panicked, restart the gateway"
            );
        }
    }
}

impl Drop for WriterHandle {
    fn drop(&mut self) {
        self.close();
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
    fn a_store_of_an_older_format_is_rejected_before_the_engine_creates_any_file() {
        let dir = TempDir::new().unwrap();
        let secret = "ab".repeat(32);
        let identity = format!(r#"{{ "format": 1, "engine": "fjall-3", "secret": "{secret}" }}"#);
        std::fs::write(dir.path().join("identity"), &identity).unwrap();
        let opened = DiskRecords::open(dir.path(), StoreCapacity::default(), Clock::real());
        let message = opened.err().unwrap().to_string();
        assert!(message.contains("has format 1"), "{message}");
        assert!(
            message.contains("until its idempotency keys have expired"),
            "{message}"
        );
        assert!(message.contains("can then be executed again"), "{message}");
        for file in ["records", "acknowledged", "reserve"] {
            assert!(!dir.path().join(file).exists(), "{file}");
        }
        let left = std::fs::read_to_string(dir.path().join("identity")).unwrap();
        assert_eq!(left, identity);
    }
}
