//! A store on the bench, with a clock that moves when told.

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::clock::{Clock, Moment};
use crate::idempotency::{
    Claim, ClaimRequest, ClientHash, ExecutionOutcome, Fingerprint, KeyHash, OnUnknown, Permit,
    RecordCounts, RecordId, RecordSettings, Records, ScopeHash, StoredResponse, Waiter,
};
use crate::store::RecordStore;
use crate::store::disk::DiskRecords;
use crate::store::redis::Redis;
use crate::store::redis::settings::RedisSettings;
use crate::store::{StoreCapacity, memory::records::MemoryRecords};
use http::header::{CONTENT_TYPE, SET_COOKIE};
use http::{HeaderMap, HeaderValue, StatusCode};
use tempfile::TempDir;

use super::server::Server;

/// How long records are kept in these tests.
pub(crate) const TTL: Duration = Duration::from_hours(1);

/// Keys that a client may hold in [`Bench::with_share`].
pub(crate) const SHARE: u16 = 5;

/// Which store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Memory,
    Disk,
    Redis,
    Cluster,
}

impl Kind {
    /// Whether it remembers anything when the process has died.
    pub(crate) fn is_durable(self) -> bool {
        match self {
            Self::Memory => false,
            Self::Disk | Self::Redis | Self::Cluster => true,
        }
    }

    /// Whether several gateways can have it.
    pub(crate) fn is_shared(self) -> bool {
        matches!(self, Self::Redis | Self::Cluster)
    }
}

pub(crate) struct Bench {
    pub(crate) kind: Kind,
    room: StoreCapacity,
    pub(crate) clock: Clock,
    pub(crate) records: RecordStore,
    /// Where it is, if it is on disk. Dropped after the store.
    home: TempDir,
    /// Where it is, if it is in Redis.
    server: Option<Arc<Server>>,
}

impl Bench {
    pub(crate) fn new(kind: Kind) -> Self {
        Self::with_room(kind, StoreCapacity::default())
    }

    pub(crate) fn with_room(kind: Kind, room: StoreCapacity) -> Self {
        let clock = Clock::virtual_from(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000));
        let home = TempDir::new().unwrap();
        let records = match kind {
            Kind::Memory => RecordStore::Memory(MemoryRecords::new(room, clock.clone())),
            Kind::Disk => on_disk(home.path(), room, &clock),
            Kind::Redis | Kind::Cluster => return Self::on(Arc::new(Server::start(kind))),
        };
        Self {
            kind,
            room,
            clock,
            records,
            home,
            server: None,
        }
    }

    /// Returns a store in which a client may hold [`SHARE`] keys: other clients hold 33 of 40 keys, or
    /// `max_keys_per_client` is set.
    pub(crate) async fn with_share(kind: Kind) -> Self {
        if kind.is_shared() {
            let server = Arc::new(Server::start(kind));
            let settings = RedisSettings {
                max_keys_per_client: NonZeroU32::new(SHARE.into()),
                ..server.settings()
            };
            return Self::with_settings(server, settings);
        }
        let room = StoreCapacity {
            max_keys: 40,
            ..StoreCapacity::default()
        };
        let bench = Self::with_room(kind, room);
        for key in 0..33 {
            let mut other = claim_request(1000 + key);
            other.client = ClientHash(u64::from(1000 + key));
            other.settings.ttl = TTL * 100;
            bench.run(other, &answer(key)).await;
        }
        bench
    }

    /// Returns a store on `server` with a prefix of its own.
    pub(crate) fn on(server: Arc<Server>) -> Self {
        let settings = server.settings();
        Self::with_settings(server, settings)
    }

    fn with_settings(server: Arc<Server>, settings: RedisSettings) -> Self {
        let clock = Clock::virtual_from(SystemTime::now());
        let redis = Redis::open(settings, true, clock.clone()).unwrap();
        Self {
            kind: server.kind(),
            room: StoreCapacity::default(),
            records: RecordStore::Redis(redis.records()),
            clock,
            home: TempDir::new().unwrap(),
            server: Some(server),
        }
    }

    /// Advances the clock of the store, and of its server if it has one.
    pub(crate) fn advance(&self, time: Duration) {
        self.clock.advance(time);
        if let Some(server) = &self.server {
            // Redis expires a key only after the millisecond it names, and the test can be faster than that.
            server.advance(time + Duration::from_millis(2));
        }
    }

    /// How much more time may pass than was asked for: a server goes by real time besides.
    pub(crate) fn slack(&self) -> Duration {
        if self.kind.is_shared() {
            Duration::from_secs(10)
        } else {
            Duration::ZERO
        }
    }

    /// A moment before a record expires.
    pub(crate) fn just_before(&self) -> Duration {
        TTL.saturating_sub(self.slack().max(Duration::from_millis(1)))
    }

    /// Returns when what was dropped has had its effect.
    pub(crate) async fn settle(&self) {
        if let RecordStore::Redis(records) = &self.records {
            records.settled().await;
        }
    }

    /// Where it is, if it is on disk.
    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    pub(crate) async fn claim(&self, mut claim_request: ClaimRequest) -> Claim {
        claim_request.at = self.clock.now();
        self.records.claim(&claim_request).await.unwrap()
    }

    /// The process dies, with these executions underway, and is started again.
    pub(crate) fn crash(&mut self, underway: Vec<Permit>) {
        match &self.records {
            RecordStore::Memory(_) => {
                let records = MemoryRecords::new(self.room, self.clock.clone());
                self.records = RecordStore::Memory(records);
            }
            RecordStore::Disk(_) => {
                // What is in the files at this moment is what a killed process leaves behind.
                let left = TempDir::new().unwrap();
                copy_all(self.home(), left.path());
                self.records = on_disk(left.path(), self.room, &self.clock);
                self.home = left;
            }
            RecordStore::Redis(_) => panic!("a gateway that dies is a story of its own"),
        }
        drop(underway);
    }

    /// How much there is, without what has expired.
    pub(crate) async fn counts(&self) -> RecordCounts {
        if let RecordStore::Disk(records) = &self.records {
            records.sweep().await;
        }
        self.records.count().await.unwrap()
    }

    /// A claim that must be won.
    pub(crate) async fn win(&self, claim_request: ClaimRequest) -> Permit {
        match self.claim(claim_request).await {
            Claim::Won(permit) => permit,
            other => panic!("the claim_request was not won: {other:?}"),
        }
    }

    /// A claim that must find the first running.
    pub(crate) async fn wait(&self, claim_request: ClaimRequest) -> Waiter {
        match self.claim(claim_request).await {
            Claim::InFlight(waiting) => waiting,
            other => panic!("nothing is in flight: {other:?}"),
        }
    }

    /// Executes a request, from claim to record.
    pub(crate) async fn run(&self, claim_request: ClaimRequest, answer: &Arc<StoredResponse>) {
        let mut permit = self.win(claim_request).await;
        permit.mark_sent();
        let outcome = ExecutionOutcome::Completed(Arc::clone(answer));
        self.records.end(permit, outcome).await.unwrap();
    }

    /// Executes a request and loses its response.
    pub(crate) async fn lose(&self, claim_request: ClaimRequest) {
        let mut permit = self.win(claim_request).await;
        permit.mark_sent();
        self.records
            .end(permit, ExecutionOutcome::Unknown)
            .await
            .unwrap();
    }
}

fn on_disk(path: &Path, room: StoreCapacity, clock: &Clock) -> RecordStore {
    RecordStore::Disk(DiskRecords::open(path, room, clock.clone()).unwrap())
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

/// A key of a scope.
pub(crate) fn id(key: u16, scope: u8) -> RecordId {
    let mut hash = [0; 16];
    hash[..2].copy_from_slice(&key.to_be_bytes());
    RecordId {
        key: KeyHash(hash),
        scope: ScopeHash([scope; 16]),
    }
}

/// A wish to run the usual request under a key of the usual scope.
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

/// An answer that can be told from others, with everything in it that is easily lost.
pub(crate) fn answer(number: u16) -> Arc<StoredResponse> {
    sized_answer(number, 100)
}

/// An answer with a body of this many bytes.
pub(crate) fn sized_answer(number: u16, body: usize) -> Arc<StoredResponse> {
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
