//! A store of idempotency records for tests, with a virtual clock.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::clock::{Clock, Moment};
use crate::idempotency::{
    Claim, ClaimRequest, ClientHash, ExecutionOutcome, Fingerprint, KeyHash, OnUnknown, Permit,
    RecordCounts, RecordId, RecordSettings, Records, ScopeHash, StoredResponse, Waiter,
};
use crate::store::disk::DiskRecords;
use crate::store::redis::Redis;
use crate::store::redis::settings::RedisSettings;
use crate::store::{RecordStore, StoreCapacity, memory::records::MemoryRecords};
use http::header::{CONTENT_TYPE, SET_COOKIE};
use http::{HeaderMap, HeaderValue, StatusCode};
use tempfile::TempDir;

use super::server::StoreServer;

/// TTL of idempotency records in these tests.
pub(crate) const TTL: Duration = Duration::from_hours(1);

/// Maximum number of idempotency keys of one client in [`RecordFixture::with_share`].
pub(crate) const SHARE: u16 = 5;

/// The store to test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreKind {
    Memory,
    Disk,
    Redis,
    Cluster,
}

impl StoreKind {
    /// Returns whether the records of this store survive a crash of the process.
    pub(crate) fn is_durable(self) -> bool {
        match self {
            Self::Memory => false,
            Self::Disk | Self::Redis | Self::Cluster => true,
        }
    }

    /// Returns whether several gateways can share the store.
    pub(crate) fn is_shared(self) -> bool {
        matches!(self, Self::Redis | Self::Cluster)
    }
}

/// A store of idempotency records with its clock and its server or directory.
pub(crate) struct RecordFixture {
    pub(crate) kind: StoreKind,
    capacity: StoreCapacity,
    pub(crate) clock: Clock,
    pub(crate) records: RecordStore,
    /// The directory of a store on disk. This field is dropped after the store.
    dir: TempDir,
    /// The server of a store in Redis, or `None` for the other stores.
    server: Option<Arc<StoreServer>>,
}

impl RecordFixture {
    pub(crate) fn new(kind: StoreKind) -> Self {
        Self::with_capacity(kind, StoreCapacity::default())
    }

    pub(crate) fn with_capacity(kind: StoreKind, capacity: StoreCapacity) -> Self {
        let clock = Clock::virtual_from(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000));
        let dir = TempDir::new().unwrap();
        let records = match kind {
            StoreKind::Memory => RecordStore::Memory(MemoryRecords::new(capacity, clock.clone())),
            StoreKind::Disk => on_disk(dir.path(), capacity, &clock),
            StoreKind::Redis | StoreKind::Cluster => {
                return Self::on(Arc::new(StoreServer::start(kind)));
            }
        };
        Self {
            kind,
            capacity,
            clock,
            records,
            dir,
            server: None,
        }
    }

    /// Creates a store in which a client can have at most [`SHARE`] idempotency keys. In Redis, `max_keys_per_client`
    /// is set. In the other stores, other clients already have 33 of 40 keys, which is more than 80 %. A client that
    /// has more than 4 keys (10 %) is then rejected, so it can reach 5 keys.
    pub(crate) async fn with_share(kind: StoreKind) -> Self {
        if kind.is_shared() {
            let server = Arc::new(StoreServer::start(kind));
            let settings = RedisSettings {
                max_keys_per_client: NonZeroU32::new(SHARE.into()),
                ..server.settings()
            };
            return Self::with_settings(server, settings);
        }
        let capacity = StoreCapacity {
            max_keys: 40,
            min_ttl: TTL * 100,
            ..StoreCapacity::default()
        };
        let fixture = Self::with_capacity(kind, capacity);
        for key in 0..33 {
            let mut other = claim_request(1000 + key);
            other.client = ClientHash(u64::from(1000 + key));
            other.settings.ttl = TTL * 100;
            fixture.run(other, &numbered_response(key)).await;
        }
        fixture
    }

    /// Creates a store on `server` with a new prefix of Redis keys.
    pub(crate) fn on(server: Arc<StoreServer>) -> Self {
        let settings = server.settings();
        Self::with_settings(server, settings)
    }

    fn with_settings(server: Arc<StoreServer>, settings: RedisSettings) -> Self {
        let clock = Clock::virtual_from(SystemTime::now());
        let redis = Redis::open(settings, true, clock.clone()).unwrap();
        Self {
            kind: server.kind(),
            capacity: StoreCapacity::default(),
            records: RecordStore::Redis(redis.records()),
            clock,
            dir: TempDir::new().unwrap(),
            server: Some(server),
        }
    }

    /// Advances the clock of the store, and the clock of its Redis server if it has one.
    pub(crate) fn advance(&self, time: Duration) {
        self.clock.advance(time);
        if let Some(server) = &self.server {
            // The server advances 2 ms further, because Redis expires a record in the millisecond after its expiry.
            server.advance(time + Duration::from_millis(2));
        }
    }

    /// Returns how far the clock of the store can be ahead of the virtual clock. The clock of a Redis server is ahead,
    /// because real time also passes on the server.
    pub(crate) fn slack(&self) -> Duration {
        if self.kind.is_shared() {
            Duration::from_secs(10)
        } else {
            Duration::ZERO
        }
    }

    /// Returns a duration that is slightly shorter than the TTL.
    pub(crate) fn almost_ttl(&self) -> Duration {
        TTL.saturating_sub(self.slack().max(Duration::from_millis(1)))
    }

    /// Waits until the outcomes of all dropped permits are in the store.
    pub(crate) async fn settle(&self) {
        if let RecordStore::Redis(records) = &self.records {
            records.settled().await;
        }
    }

    /// Returns the directory of a store on disk.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) async fn claim(&self, mut claim_request: ClaimRequest) -> Claim {
        claim_request.at = self.clock.now();
        self.records.claim(&claim_request).await.unwrap()
    }

    /// Simulates a crash of the process while the executions `in_flight` run, and a restart.
    pub(crate) fn crash(&mut self, in_flight: Vec<Permit>) {
        match &self.records {
            RecordStore::Memory(_) => {
                let records = MemoryRecords::new(self.capacity, self.clock.clone());
                self.records = RecordStore::Memory(records);
            }
            RecordStore::Disk(_) => {
                // A killed process leaves its files as they are at this moment. So the files are copied now, and the
                // store is opened on the copy.
                let copy = TempDir::new().unwrap();
                copy_all(self.dir(), copy.path());
                self.records = on_disk(copy.path(), self.capacity, &self.clock);
                self.dir = copy;
            }
            RecordStore::Redis(_) => panic!("`two_gateways` tests crashes with Redis"),
        }
        drop(in_flight);
    }

    /// Counts the records that have not expired.
    pub(crate) async fn counts(&self) -> RecordCounts {
        if let RecordStore::Disk(records) = &self.records {
            records.sweep().await;
        }
        self.records.count().await.unwrap()
    }

    /// Claims an idempotency key. Panics if the claim is not won.
    pub(crate) async fn win(&self, claim_request: ClaimRequest) -> Permit {
        match self.claim(claim_request).await {
            Claim::Won(permit) => permit,
            other => panic!("the claim is not won: {other:?}"),
        }
    }

    /// Claims an idempotency key whose execution is in flight, and returns the waiter. Panics on any other result.
    pub(crate) async fn wait(&self, claim_request: ClaimRequest) -> Waiter {
        match self.claim(claim_request).await {
            Claim::InFlight(waiting) => waiting,
            other => panic!("the key is not in flight: {other:?}"),
        }
    }

    /// Claims an idempotency key and completes its execution with `response`.
    pub(crate) async fn run(&self, claim_request: ClaimRequest, response: &Arc<StoredResponse>) {
        let mut permit = self.win(claim_request).await;
        permit.mark_sent();
        let outcome = ExecutionOutcome::Completed(Arc::clone(response));
        self.records.end(permit, outcome).await.unwrap();
    }

    /// Claims an idempotency key and ends its execution with an unknown outcome.
    pub(crate) async fn lose(&self, claim_request: ClaimRequest) {
        let mut permit = self.win(claim_request).await;
        permit.mark_sent();
        self.records
            .end(permit, ExecutionOutcome::Unknown)
            .await
            .unwrap();
    }
}

fn on_disk(path: &Path, capacity: StoreCapacity, clock: &Clock) -> RecordStore {
    RecordStore::Disk(DiskRecords::open(path, capacity, clock.clone()).unwrap())
}

pub(crate) fn copy_all(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            std::fs::create_dir(&to).unwrap();
            copy_all(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

/// Returns the record id of an idempotency key in a scope.
pub(crate) fn id(key: u16, scope: u8) -> RecordId {
    let mut hash = [0; 16];
    hash[..2].copy_from_slice(&key.to_be_bytes());
    RecordId {
        key: KeyHash(hash),
        scope: ScopeHash([scope; 16]),
    }
}

/// Creates a claim of the idempotency key `key` in scope 1 by client 1.
pub(crate) fn claim_request(key: u16) -> ClaimRequest {
    ClaimRequest {
        at: Moment::default(),
        id: id(key, 1),
        client: ClientHash(1),
        fingerprint: Fingerprint {
            request: [7; 16],
            credentials: [7; 16],
        },
        settings: RecordSettings {
            ttl: TTL,
            on_unknown: OnUnknown::Hold,
            max_keys_per_scope: NonZeroU32::new(50_000).unwrap(),
        },
    }
}

/// Creates a response that differs for each number, with header fields that are difficult to encode.
pub(crate) fn numbered_response(number: u16) -> Arc<StoredResponse> {
    sized_response(number, 100)
}

/// Creates a response that differs for each number, with a body of `body` bytes.
pub(crate) fn sized_response(number: u16, body: usize) -> Arc<StoredResponse> {
    let mut headers = HeaderMap::new();
    headers.append(SET_COOKIE, HeaderValue::from_static("a=1; Path=/, b"));
    headers.append(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.append(SET_COOKIE, HeaderValue::from_static("c=3"));
    headers.append("x-odd", HeaderValue::from_bytes(b"\xe9\xff").unwrap());
    headers.append("x-number", HeaderValue::from(number));
    let status = StatusCode::from_u16(200 + number % 100).unwrap();
    let body = vec![number.to_be_bytes()[1]; body];
    Arc::new(StoredResponse::new(status, &headers, &body))
}
