//! The storage engine of the disk store: a fjall database with five keyspaces.
//!
//! fjall is a log-structured merge tree. A commit appends its batch to a journal and inserts it into memtables. A full
//! memtable is sealed, and a background thread writes it to a table file. Compactions merge table files and free the
//! space of removed entries.

mod changes;
mod expiry;
mod integrity;
mod resync;

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fjall::compaction::Leveled;
use fjall::config::{
    BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry, PinningPolicy,
};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use self::expiry::decode_expiry;
use self::integrity::{check_keyspaces, journals};
use super::Timestamp;
use super::record::{DiskRecord, StoredClaim};
use super::totals::StoreTotals;
use crate::idempotency::{ClaimToken, ClientHash, RecordId, RecordState, ScopeHash, StoreError};
use crate::store::capacity::ClientCounts;

pub(super) use self::changes::{Changes, Durability};
pub(super) use self::expiry::{EndedRecords, ExpiryEntry, ExpiryKey};
pub(super) use self::resync::resync;

/// For blocks of table files, in bytes.
const CACHE_BYTES: u64 = 32 << 20;

/// Size of the journals, in bytes, at which fjall writes their content to table files: the minimum that it accepts.
const JOURNAL_BYTES: u64 = 64 << 20;

/// Size of the memtable of `records`, in bytes, at which fjall writes it to a table file.
const MEMTABLE_BYTES: u64 = 16 << 20;

/// In bytes.
const TABLE_BYTES: u64 = 16 << 20;

/// Interval of checks whether sealed memtables are written.
const ROTATION_POLL: Duration = Duration::from_millis(10);

/// How long a commit waits for a memtable to be written. Then it fails and the engine is closed.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// Sealed memtables of a keyspace at the start of a commit. A commit waits while there are more. It adds at most two,
/// and fjall blocks commits while there are four.
const MAX_SEALED: usize = 1;

/// Key in the keyspace `meta`.
const TOTALS: &[u8] = b"tally";

/// No entry has this key: those of all entries are longer.
const ABSENT_KEY: &[u8] = b"-";

pub(super) struct Engine {
    db: Database,
    /// By [`RecordId`].
    records: Keyspace,
    /// By [`RecordId`].
    claims: Keyspace,
    /// Ordered by expiry.
    expiries: Keyspace,
    /// Number of keys of each scope.
    scopes: Keyspace,
    /// The [`StoreTotals`], under [`TOTALS`].
    meta: Keyspace,
    /// Stops the waits of a compaction in a background thread.
    dropped: Arc<AtomicBool>,
}

pub(super) type EngineResult<T> = Result<T, StoreError>;

impl Engine {
    /// `used`: batches of this database were acknowledged before, so missing or damaged files are errors.
    pub(super) fn open(path: &Path, used: bool) -> EngineResult<Self> {
        // fjall treats a damaged journal as a truncated one. If it is the newest, the number of batches is too low,
        // which the caller detects. If it is an older one, the number is right, so all records are counted if there are
        // several journals. fjall deletes a journal after it has read it. So if opening fails, the next attempt can
        // find a single one; the marker file makes it count the records too.
        let marker = path.with_extension("doubt");
        let needs_count = used && (marker.exists() || journals(path)? > 1);
        if needs_count {
            File::create(&marker).map_err(StoreError::new)?;
        }
        if used {
            check_keyspaces(&path.join("keyspaces"))?;
        }
        let db = Database::builder(path)
            .cache_size(CACHE_BYTES)
            .max_journaling_size(JOURNAL_BYTES)
            .journal_compression(CompressionType::None)
            .worker_threads(2)
            .manual_journal_persist(true)
            .open()
            .map_err(engine_error)?;
        let keyspace = |name: &str, memtable: u64| {
            let options = || {
                let bloom = BloomConstructionPolicy::BitsPerKey(10.0);
                KeyspaceCreateOptions::default()
                    .max_memtable_size(memtable)
                    .manual_journal_persist(true)
                    .data_block_compression_policy(CompressionPolicy::disabled())
                    .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(bloom)))
                    // About ten bytes per record stay in memory.
                    .filter_block_pinning_policy(PinningPolicy::all(true))
                    .index_block_pinning_policy(PinningPolicy::all(true))
                    .compaction_strategy(Arc::new(
                        Leveled::default().with_table_target_size(TABLE_BYTES),
                    ))
            };
            db.keyspace(name, options).map_err(engine_error)
        };
        let engine = Self {
            records: keyspace("records", MEMTABLE_BYTES)?,
            claims: keyspace("claims", MEMTABLE_BYTES / 4)?,
            expiries: keyspace("expiries", MEMTABLE_BYTES / 4)?,
            scopes: keyspace("scopes", MEMTABLE_BYTES / 4)?,
            meta: keyspace("meta", MEMTABLE_BYTES / 4)?,
            dropped: Arc::default(),
            db,
        };
        if needs_count {
            engine.check_counts()?;
            fs::remove_file(&marker).map_err(StoreError::new)?;
        }
        Ok(engine)
    }

    /// Reads the complete database.
    fn check_counts(&self) -> EngineResult<()> {
        let totals = self.totals()?;
        let count =
            |keyspace: &Keyspace| keyspace.len().map(|len| len as u64).map_err(engine_error);
        let (records, claims) = (count(&self.records)?, count(&self.claims)?);
        let expected = totals.completed + totals.unknown + totals.tombstones;
        if records != expected || count(&self.expiries)? != expected {
            return Err(StoreError::new(format_args!(
                "a journal of the storage engine is damaged: found {records} of {expected} idempotency records"
            )));
        }
        if records + claims != totals.keys {
            return Err(StoreError::new(format_args!(
                "a journal of the storage engine is damaged: found {records} records and {claims} claims, expected {} \
                 together",
                totals.keys
            )));
        }
        Ok(())
    }

    pub(super) fn changes(&self) -> Changes<'_> {
        Changes {
            engine: self,
            batch: self.db.batch(),
        }
    }

    /// With the encoded size in bytes.
    pub(super) fn record(&self, id: RecordId) -> EngineResult<Option<(DiskRecord, u64)>> {
        let name = id.to_bytes();
        let Some(bytes) = self.records.get(name).map_err(engine_error)? else {
            return Ok(None);
        };
        Ok(Some((decode(id, &bytes)?, bytes.len() as u64)))
    }

    /// Also returns the encoded size. `None` if the claim is still stored. Fails if neither a record nor a claim is
    /// stored.
    pub(super) fn stored_end(&self, token: &ClaimToken) -> EngineResult<Option<(DiskRecord, u64)>> {
        let id = token.request.id;
        if self.is_claimed(id)? {
            return Ok(None);
        }
        match self.record(id)? {
            Some(stored) if stored.0.fingerprint == token.request.fingerprint => Ok(Some(stored)),
            _ => Err(StoreError::new(
                "the idempotency store has no claim for this execution",
            )),
        }
    }

    /// For lookups by the admin API.
    pub(super) fn records(&self) -> Keyspace {
        self.records.clone()
    }

    pub(super) fn is_claimed(&self, id: RecordId) -> EngineResult<bool> {
        self.claims
            .contains_key(id.to_bytes())
            .map_err(engine_error)
    }

    pub(super) fn sync(&self) -> EngineResult<()> {
        self.db.persist(PersistMode::SyncData).map_err(engine_error)
    }

    /// Fails if a background thread of fjall has had an error.
    fn check_workers(&self) -> EngineResult<()> {
        self.db.persist(PersistMode::Buffer).map_err(engine_error)
    }

    /// In fjall, a commit blocks without a timeout while a keyspace has 4 sealed memtables, even if the thread that
    /// writes them has failed, and while level 0 has 30 runs. Runs are not checked, because they also grow during a
    /// compaction of the complete keyspace, which is not a failure.
    fn wait_for_flush(&self) -> EngineResult<()> {
        let keyspaces = [
            &self.records,
            &self.claims,
            &self.expiries,
            &self.scopes,
            &self.meta,
        ];
        let mut before = usize::MAX;
        let mut progress = Instant::now();
        loop {
            let sealed = keyspaces.map(Keyspace::sealed_memtable_count);
            if sealed.iter().all(|&sealed| sealed <= MAX_SEALED) {
                return Ok(());
            }
            self.check_workers()?;
            let total = sealed.iter().sum();
            if total < before {
                progress = Instant::now();
            }
            before = total;
            if progress.elapsed() > FLUSH_TIMEOUT {
                return Err(StoreError::new(format_args!(
                    "the storage engine wrote no memtable to disk for {} s",
                    FLUSH_TIMEOUT.as_secs()
                )));
            }
            thread::sleep(ROTATION_POLL);
        }
    }

    /// Of executions in flight, and of those whose end was not stored, for example because the process was killed.
    pub(super) fn stored_claims(&self) -> EngineResult<Vec<(RecordId, StoredClaim)>> {
        let claims = self.claims.iter();
        claims
            .map(|entry| {
                let (name, bytes) = entry.into_inner().map_err(engine_error)?;
                let id = id(&name)?;
                let claimed = StoredClaim::decode(&name, &bytes).map_err(|error| {
                    StoreError::new(format_args!(
                        "a stored claim of an idempotency key is damaged: {error}"
                    ))
                })?;
                Ok((id, claimed))
            })
            .collect()
    }

    /// In the order of expiry, from the key `after` on.
    pub(super) fn expiries(
        &self,
        after: Option<ExpiryKey>,
    ) -> impl Iterator<Item = EngineResult<(ExpiryKey, ExpiryEntry)>> + use<> {
        let from = after.map_or([0; 40], ExpiryKey::to_bytes);
        self.expiries.range(from..).map(|entry| {
            let (name, bytes) = entry.into_inner().map_err(engine_error)?;
            Ok((ExpiryKey::from_bytes(&name)?, decode_expiry(&bytes)?))
        })
    }

    /// `None` if the record was removed.
    pub(super) fn expiry(&self, key: ExpiryKey) -> EngineResult<Option<ExpiryEntry>> {
        let bytes = self.expiries.get(key.to_bytes()).map_err(engine_error)?;
        bytes.map(|bytes| decode_expiry(&bytes)).transpose()
    }

    /// Reads only the expiry index, because records contain responses and are much larger. After an error, the rest of
    /// the index is missing.
    pub(super) fn load_index(
        &self,
        clients: &mut ClientCounts,
        ended: &mut EndedRecords,
    ) -> EngineResult<()> {
        for entry in self.expiries(None) {
            let (key, entry) = entry?;
            clients.add(ClientHash(entry.client));
            let since = Timestamp(entry.since);
            let ttl = key.expires.since(since);
            ended.push(since, ttl, entry.state != RecordState::Unknown, key);
        }
        Ok(())
    }

    pub(super) fn keys_of(&self, scope: ScopeHash) -> EngineResult<u32> {
        let bytes = self.scopes.get(scope.0).map_err(engine_error)?;
        let Some(bytes) = bytes else { return Ok(0) };
        let bytes = bytes.as_ref().try_into();
        bytes.map(u32::from_le_bytes).map_err(|_| {
            StoreError::new("the stored number of idempotency keys of a scope is damaged")
        })
    }

    pub(super) fn totals(&self) -> EngineResult<StoreTotals> {
        match self.meta.get(TOTALS).map_err(engine_error)? {
            None => Ok(StoreTotals::default()),
            Some(bytes) => postcard::from_bytes(&bytes).map_err(|error| {
                StoreError::new(format_args!(
                    "the stored totals of the idempotency store are damaged: {error}"
                ))
            }),
        }
    }

    /// The closure frees the disk space of removed records. It can run for minutes, so the writer thread must not call
    /// it.
    pub(super) fn compaction(&self) -> impl FnOnce() -> EngineResult<()> + Send + use<> {
        let keyspaces =
            [&self.records, &self.claims, &self.expiries, &self.scopes].map(Clone::clone);
        let dropped = Arc::clone(&self.dropped);
        move || {
            for keyspace in keyspaces {
                rotate(&keyspace, &dropped)?;
                keyspace.major_compact().map_err(engine_error)?;
                // fjall deletes compacted table files when it next rotates the memtable, but it does not rotate an
                // empty one.
                keyspace.remove(ABSENT_KEY).map_err(engine_error)?;
                rotate(&keyspace, &dropped)?;
            }
            Ok(())
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Relaxed);
    }
}

/// Fails if the engine is dropped meanwhile. The wait function of fjall never returns if the file cannot be written.
fn rotate(keyspace: &Keyspace, dropped: &AtomicBool) -> EngineResult<()> {
    if keyspace.rotate_memtable().map_err(engine_error)? {
        while keyspace.sealed_memtable_count() > 0 {
            if dropped.load(Ordering::Relaxed) {
                return Err(StoreError::new(
                    "the storage engine was closed during a compaction",
                ));
            }
            thread::sleep(ROTATION_POLL);
        }
    }
    Ok(())
}

fn id(name: &[u8]) -> EngineResult<RecordId> {
    let name = name.try_into();
    name.map(RecordId::from_bytes).map_err(|_| {
        StoreError::new("a record or claim is damaged: its engine key does not have 32 bytes")
    })
}

fn decode(id: RecordId, bytes: &[u8]) -> EngineResult<DiskRecord> {
    DiskRecord::decode(&id.to_bytes(), bytes).map_err(|error| {
        StoreError::new(format_args!(
            "idempotency record {id:?} is damaged: {error}"
        ))
    })
}

/// The error of the earlier write is more specific, so this one does not replace it in health reports.
pub(super) const POISONED: &str = "an earlier write to the storage engine failed";

/// I/O errors lose the prefix that fjall adds.
pub(super) fn engine_error(error: fjall::Error) -> StoreError {
    match error {
        fjall::Error::Io(error) => StoreError::new(error),
        fjall::Error::Poisoned => StoreError::new(POISONED),
        other => StoreError::new(other),
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};
    use tempfile::TempDir;

    use super::super::StoreClock;
    use super::*;
    use crate::clock::Clock;
    use crate::idempotency::Fingerprint;
    use crate::idempotency::StoredResponse;

    const RECORDS: u32 = 1_000_000;

    /// Number of records in each commit.
    const BATCH: u32 = 10_000;

    fn record_id(number: u32) -> RecordId {
        let hash = blake3::hash(&number.to_be_bytes());
        RecordId::from_bytes(hash.as_bytes())
    }

    #[test]
    #[ignore = "takes a minute: writes 1,000,000 records and prints the time to count them"]
    fn counting_the_keys_of_clients_reads_only_the_expiry_index() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("records");
        let store_clock = StoreClock::new(Clock::real());
        let response = Arc::new(StoredResponse::new(
            StatusCode::OK,
            &HeaderMap::new(),
            &[7; 450],
        ));
        let engine = Engine::open(&path, false).unwrap();
        for batch in 0..RECORDS / BATCH {
            let mut changes = engine.changes();
            for number in batch * BATCH..(batch + 1) * BATCH {
                let record = DiskRecord {
                    state: RecordState::Completed,
                    response: Some(Arc::clone(&response)),
                    fingerprint: Fingerprint::from_bytes(&[3; 32]),
                    client: ClientHash(u64::from(number % 1_000)),
                    since: Timestamp(u64::from(number)),
                    expires: Timestamp(u64::from(number) + 86_400_000),
                };
                changes.put_record(record_id(number), &record);
            }
            let committed =
                changes.commit(StoreTotals::default(), &store_clock, Durability::Engine);
            committed.unwrap();
        }
        engine.sync().unwrap();
        drop(engine);
        let engine = Engine::open(&path, true).unwrap();
        for attempt in 1..=3 {
            let mut clients = ClientCounts::default();
            let began = Instant::now();
            engine
                .load_index(&mut clients, &mut EndedRecords::default())
                .unwrap();
            println!("count {attempt}: {:?}", began.elapsed());
            assert_eq!(clients.held(ClientHash(7)), 1_000);
        }
    }
}
