//! The engine: fjall, with the five keyspaces of a store.

mod changes;
mod damage;
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
use serde::{Deserialize, Serialize};

use self::damage::{check_keyspaces, journals};
use super::Stamp;
use super::record::{Record, StoredClaim, state_code};
use super::tally::Tally;
use crate::idempotency::{ClientHash, Fingerprint, RecordId, RecordState, ScopeHash, StoreError};
use crate::store::capacity::ClientCounts;

pub(super) use self::changes::{Changes, Durability};
pub(super) use self::resync::resync;

/// Blocks of files kept in memory.
const CACHE_BYTES: u64 = 32 << 20;

/// The journal's size before its content is moved to tables; fjall takes no less.
const JOURNAL_BYTES: u64 = 64 << 20;

/// Records in memory before they are written to a table.
const MEMTABLE_BYTES: u64 = 16 << 20;

/// The size of a table.
const TABLE_BYTES: u64 = 16 << 20;

/// How often the writer checks whether a memtable has been written to a table.
const ROTATION_POLL: Duration = Duration::from_millis(10);

/// How long no memtable is written to a table, while a batch waits, before the engine counts as failed.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// Sealed memtables of a keyspace before a batch waits. A batch adds two at most, and fjall waits from 4 on.
const MAX_SEALED: usize = 1;

const TALLY: &[u8] = b"tally";

/// A name that nothing has: all are longer.
const NOTHING: &[u8] = b"-";

/// An open database.
pub(super) struct Engine {
    db: Database,
    /// What became of a key.
    records: Keyspace,
    /// What is in progress.
    claims: Keyspace,
    /// When records expire, earliest first.
    expiries: Keyspace,
    /// How many keys a scope has.
    scopes: Keyspace,
    /// The tally.
    meta: Keyspace,
    /// Whether this was dropped: nothing in the background is to wait for it any more.
    dropped: Arc<AtomicBool>,
}

/// What the index of expiries tells of a record, so that it need not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ExpiryEntry {
    #[serde(with = "state_code")]
    pub(super) state: RecordState,
    pub(super) fingerprint: [u8; 32],
    /// The hash of the client that sent the request.
    pub(super) client: u64,
    pub(super) since: u64,
    /// Bytes of the record.
    pub(super) weight: u64,
}

type Result<T> = std::result::Result<T, StoreError>;

impl Engine {
    /// Opens the database at `path`, which is made if there is none; `used` if something was acknowledged
    /// from there before.
    pub(super) fn open(path: &Path, used: bool) -> Result<Self> {
        // The engine takes a damaged journal for one that was cut short. In the newest that shows as batches
        // that are missing; in one before it nothing shows, because what came later is there. The doubt is
        // written down: the engine soon deletes what it has read, and the next attempt must not trust it.
        let doubt = path.with_extension("doubt");
        let doubtful = used && (doubt.exists() || journals(path)? > 1);
        if doubtful {
            File::create(&doubt).map_err(StoreError::new)?;
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
            .map_err(failed)?;
        let keyspace = |name: &str, memtable: u64| {
            let options = || {
                let bloom = BloomConstructionPolicy::BitsPerKey(10.0);
                KeyspaceCreateOptions::default()
                    .max_memtable_size(memtable)
                    .manual_journal_persist(true)
                    .data_block_compression_policy(CompressionPolicy::disabled())
                    .filter_policy(FilterPolicy::all(FilterPolicyEntry::Bloom(bloom)))
                    // Some ten bytes a record: what tells where a record is stays in memory.
                    .filter_block_pinning_policy(PinningPolicy::all(true))
                    .index_block_pinning_policy(PinningPolicy::all(true))
                    .compaction_strategy(Arc::new(
                        Leveled::default().with_table_target_size(TABLE_BYTES),
                    ))
            };
            db.keyspace(name, options).map_err(failed)
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
        if doubtful {
            engine.check_counts()?;
            fs::remove_file(&doubt).map_err(StoreError::new)?;
        }
        Ok(engine)
    }

    /// Whether there is as much as the tally says. Reads everything, so only where there is doubt.
    fn check_counts(&self) -> Result<()> {
        let tally = self.tally()?;
        let count = |keyspace: &Keyspace| keyspace.len().map(|len| len as u64).map_err(failed);
        let (records, claims) = (count(&self.records)?, count(&self.claims)?);
        let promised = tally.completed + tally.unknown + tally.tombstones;
        if records != promised || count(&self.expiries)? != promised {
            return Err(StoreError::new(format_args!(
                "a journal is damaged: {records} records are left of {promised}"
            )));
        }
        if records + claims != tally.keys {
            return Err(StoreError::new(format_args!(
                "a journal is damaged: {records} records and {claims} claims are left of {} keys",
                tally.keys
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

    /// The record under a key, and its weight.
    pub(super) fn record(&self, id: RecordId) -> Result<Option<(Record, u64)>> {
        let name = id.to_bytes();
        let Some(bytes) = self.records.get(name).map_err(failed)? else {
            return Ok(None);
        };
        Ok(Some((decode(id, &bytes)?, bytes.len() as u64)))
    }

    /// The records, for reading only.
    pub(super) fn records(&self) -> Keyspace {
        self.records.clone()
    }

    /// Whether there is a claim of this record.
    pub(super) fn is_claimed(&self, id: RecordId) -> Result<bool> {
        self.claims.contains_key(id.to_bytes()).map_err(failed)
    }

    /// Syncs all that was written.
    pub(super) fn sync(&self) -> Result<()> {
        self.db.persist(PersistMode::SyncData).map_err(failed)
    }

    /// Fails if a background thread of the engine has failed.
    fn check_workers(&self) -> Result<()> {
        self.db.persist(PersistMode::Buffer).map_err(failed)
    }

    /// Waits until the engine has written enough memtables to tables that a commit does not have to wait for them.
    ///
    /// A commit itself waits without a timeout while a keyspace has 4 sealed memtables, and does not notice that
    /// the thread has failed that writes them. A commit also waits while level 0 of a keyspace has 30 runs. This
    /// is not a failure: level 0 grows for as long as a compaction of the whole keyspace takes.
    fn wait_for_flush(&self) -> Result<()> {
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
                return Err(StoreError::new("writing memtables to disk timed out"));
            }
            thread::sleep(ROTATION_POLL);
        }
    }

    /// What is claimed and has come to no end.
    pub(super) fn claimed(&self) -> Result<Vec<(RecordId, StoredClaim)>> {
        let claims = self.claims.iter();
        claims
            .map(|entry| {
                let (name, bytes) = entry.into_inner().map_err(failed)?;
                let id = id(&name)?;
                let claimed = StoredClaim::decode(&name, &bytes).map_err(|error| {
                    StoreError::new(format_args!("a claim is damaged: {error}"))
                })?;
                Ok((id, claimed))
            })
            .collect()
    }

    /// Records in the order in which they expire, from the place `after` on.
    pub(super) fn expiries(
        &self,
        after: Option<ExpiryKey>,
    ) -> impl Iterator<Item = Result<(ExpiryKey, ExpiryEntry)>> + use<> {
        let from = after.map_or([0; 40], ExpiryKey::to_bytes);
        self.expiries.range(from..).map(|entry| {
            let (name, bytes) = entry.into_inner().map_err(failed)?;
            let brief = postcard::from_bytes(&bytes)
                .map_err(|error| StoreError::new(format_args!("an expiry is damaged: {error}")))?;
            Ok((ExpiryKey::from_bytes(&name)?, brief))
        })
    }

    /// Adds all records to the counts of their clients. Reads the index of expiries and no record: the records are
    /// larger than the index by their responses. After an error the counts lack the rest of the index.
    pub(super) fn count_clients(&self, clients: &mut ClientCounts) -> Result<()> {
        for entry in self.expiries(None) {
            clients.add(ClientHash(entry?.1.client));
        }
        Ok(())
    }

    /// How many keys a scope has.
    pub(super) fn keys_of(&self, scope: ScopeHash) -> Result<u32> {
        let bytes = self.scopes.get(scope.0).map_err(failed)?;
        let Some(bytes) = bytes else { return Ok(0) };
        let bytes = bytes.as_ref().try_into();
        bytes
            .map(u32::from_le_bytes)
            .map_err(|_| StoreError::new("a scope's count is damaged"))
    }

    pub(super) fn tally(&self) -> Result<Tally> {
        match self.meta.get(TALLY).map_err(failed)? {
            None => Ok(Tally::default()),
            Some(bytes) => postcard::from_bytes(&bytes)
                .map_err(|error| StoreError::new(format_args!("the tally is damaged: {error}"))),
        }
    }

    /// Gives space back that expired records took. Takes its time; not for the writer's thread.
    pub(super) fn compaction(&self) -> impl FnOnce() -> Result<()> + Send + use<> {
        let keyspaces =
            [&self.records, &self.claims, &self.expiries, &self.scopes].map(Clone::clone);
        let dropped = Arc::clone(&self.dropped);
        move || {
            for keyspace in keyspaces {
                rotate(&keyspace, &dropped)?;
                keyspace.major_compact().map_err(failed)?;
                // The tables a compaction replaces are deleted with the next change of the memtable, and an
                // empty one is not changed: so something that is not there is removed first.
                keyspace.remove(NOTHING).map_err(failed)?;
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

/// Has a keyspace write its memtable to a table, and waits for it. The engine's own way to wait has no end
/// where the table cannot be written, as on a full disk.
fn rotate(keyspace: &Keyspace, dropped: &AtomicBool) -> Result<()> {
    if keyspace.rotate_memtable().map_err(failed)? {
        while keyspace.sealed_memtable_count() > 0 {
            if dropped.load(Ordering::Relaxed) {
                return Err(StoreError::new("the engine was given up"));
            }
            thread::sleep(ROTATION_POLL);
        }
    }
    Ok(())
}

/// When a record expires, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExpiryKey {
    pub(super) expires: Stamp,
    pub(super) id: RecordId,
}

impl ExpiryKey {
    fn to_bytes(self) -> [u8; 40] {
        let mut bytes = [0; 40];
        bytes[..8].copy_from_slice(&self.expires.0.to_be_bytes());
        bytes[8..].copy_from_slice(&self.id.to_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let Some((expires, name)) = bytes.split_first_chunk::<8>() else {
            return Err(StoreError::new("an expiry is damaged"));
        };
        Ok(Self {
            expires: Stamp(u64::from_be_bytes(*expires)),
            id: id(name)?,
        })
    }
}

impl ExpiryEntry {
    pub(super) fn fingerprint(&self) -> Fingerprint {
        Fingerprint::from_bytes(&self.fingerprint)
    }
}

fn id(name: &[u8]) -> Result<RecordId> {
    let name = name.try_into();
    name.map(RecordId::from_bytes)
        .map_err(|_| StoreError::new("a record has a name that is none"))
}

fn decode(id: RecordId, bytes: &[u8]) -> Result<Record> {
    Record::decode(&id.to_bytes(), bytes)
        .map_err(|error| StoreError::new(format_args!("the record {id:?} is damaged: {error}")))
}

/// The reason of an engine that rejects writes after a failed one. The reason of that one is more specific.
pub(super) const POISONED: &str = "an earlier write failed";

/// The error of an engine that failed.
pub(super) fn failed(error: fjall::Error) -> StoreError {
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

    use super::super::Timeline;
    use super::*;
    use crate::clock::Clock;
    use crate::idempotency::StoredResponse;

    const RECORDS: u32 = 1_000_000;

    /// Records in one commit.
    const BATCH: u32 = 10_000;

    fn record_id(number: u32) -> RecordId {
        let hash = blake3::hash(&number.to_be_bytes());
        RecordId::from_bytes(hash.as_bytes())
    }

    #[test]
    #[ignore = "writes 1,000,000 records, which takes a minute, and prints how long it takes to count them"]
    fn counting_the_keys_of_clients_reads_no_records() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("records");
        let timeline = Timeline::new(Clock::real());
        let response = Arc::new(StoredResponse::new(
            StatusCode::OK,
            &HeaderMap::new(),
            &[7; 450],
        ));
        let engine = Engine::open(&path, false).unwrap();
        for batch in 0..RECORDS / BATCH {
            let mut changes = engine.changes();
            for number in batch * BATCH..(batch + 1) * BATCH {
                let record = Record {
                    state: RecordState::Completed,
                    response: Some(Arc::clone(&response)),
                    fingerprint: Fingerprint::from_bytes(&[3; 32]),
                    client: ClientHash(u64::from(number % 1_000)),
                    since: Stamp(u64::from(number)),
                    expires: Stamp(u64::from(number) + 86_400_000),
                };
                changes.put_record(record_id(number), &record);
            }
            let committed = changes.commit(Tally::default(), &timeline, Durability::Engine);
            committed.unwrap();
        }
        engine.sync().unwrap();
        drop(engine);
        let engine = Engine::open(&path, true).unwrap();
        for attempt in 1..=3 {
            let mut clients = ClientCounts::default();
            let began = Instant::now();
            engine.count_clients(&mut clients).unwrap();
            println!("count {attempt}: {:?}", began.elapsed());
            assert_eq!(clients.held(ClientHash(7)), 1_000);
        }
    }
}
