//! Maintenance of the disk store by its writer thread. When the engine is opened, a claim that belongs to no execution
//! is removed or becomes a record with an unknown outcome. Later, expired records are dropped, responses evicted, and
//! the database compacted.

use std::collections::{HashMap, HashSet};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::engine::{Durability, EndedRecords, Engine, ExpiryKey};
use super::record::DiskRecord;
use super::totals::StoreTotals;
use super::writer::{EngineState, Writer};
use super::{DiskStoreState, Timestamp};
use crate::idempotency::{ClientHash, Fingerprint, RecordId, RecordState, ScopeHash, StoreError};
use crate::store::capacity::ClientCounts;
use crate::store::capacity_use::LogInterval;
use crate::store::log_evictions;

/// Records that one batch drops or checks for eviction.
const CHUNK: usize = 1_000;

/// Between two runs, unless a backlog of expired records exists.
const INTERVAL: Duration = Duration::from_millis(500);

/// A compaction starts only after this many bytes of completed records were dropped or evicted.
const COMPACT_BYTES: u64 = 32 << 20;

#[derive(Default)]
pub(super) struct Maintenance {
    /// The last record that was checked. `None` if the next check starts at the beginning of the index.
    evicted: Option<ExpiryKey>,
    /// Whether the last run stopped at [`CHUNK`] records. The next run then starts without a pause, because more
    /// records can have expired.
    has_backlog: bool,
    /// Bytes of completed records that were dropped or lost their response since the last compaction.
    dropped: u64,
    /// `None` makes the next run due immediately.
    last: Option<Instant>,
    evictions_log: LogInterval,
    unreadable_log: LogInterval,
    compaction: Option<JoinHandle<()>>,
}

pub(super) struct ResolvedClaims {
    totals: StoreTotals,
    clients: ClientCounts,
    ended: EndedRecords,
    /// The expiry index is incomplete.
    unreadable: Option<StoreError>,
}

struct EvictionStep {
    /// Number of evicted responses.
    responses: u64,
    /// `None` if the next scan starts at the beginning of the index.
    last: Option<ExpiryKey>,
    /// Whether the scan reached the end of the index.
    at_end: bool,
    /// The read error that ended the scan early.
    unreadable: Option<StoreError>,
}

impl Maintenance {
    /// How long the writer thread waits for an operation before it runs maintenance.
    pub(super) fn pause(&self) -> Duration {
        if self.has_backlog {
            Duration::ZERO
        } else {
            INTERVAL
        }
    }

    /// Towards the next compaction.
    pub(super) fn count_dropped(&mut self, bytes: u64) {
        self.dropped += bytes;
    }

    pub(super) fn make_due(&mut self) {
        self.last = None;
    }

    fn is_due(&self) -> bool {
        self.has_backlog || self.last.is_none_or(|last| last.elapsed() >= INTERVAL)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.compaction.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl ResolvedClaims {
    /// Resolves the claims that belong to no execution. One in `orphaned`, whose request was certainly not sent, is
    /// removed. The others become records with an unknown outcome, unless their completion is in `waiting`. The caller
    /// must empty the inbox first: an execution whose completion is still in it could be recorded as unknown.
    pub(super) fn write(
        engine: &Engine,
        shared: &DiskStoreState,
        mut totals: StoreTotals,
        waiting: &HashSet<RecordId>,
        orphaned: &HashSet<RecordId>,
    ) -> Result<Self, StoreError> {
        let now = shared.store_clock.now();
        let mut changes = engine.changes();
        let mut freed: HashMap<ScopeHash, u32> = HashMap::new();
        let mut unknown = 0_u64;
        let mut active = HashSet::new();
        let mut clients = ClientCounts::default();
        for (id, claimed) in engine.stored_claims()? {
            if shared.in_flight.is_running(id) || waiting.contains(&id) {
                active.insert(id);
                clients.add(ClientHash(claimed.client));
                continue;
            }
            changes.remove_claim(id);
            if orphaned.contains(&id) {
                totals.keys = totals.keys.saturating_sub(1);
                *freed.entry(id.scope).or_default() += 1;
                continue;
            }
            unknown += 1;
            let record = DiskRecord {
                state: RecordState::Unknown,
                response: None,
                fingerprint: Fingerprint::from_bytes(&claimed.fingerprint),
                client: ClientHash(claimed.client),
                since: now,
                expires: now.after(Duration::from_millis(claimed.ttl)),
            };
            let weight = changes.put_record(id, &record);
            totals.add(record.state, weight);
        }
        for (&scope, &keys) in &freed {
            if let Ok(counted) = engine.keys_of(scope) {
                changes.put_scope(scope, counted.saturating_sub(keys));
            }
        }
        // Written even if no claim changes, because it shows that the engine can write.
        totals.batches += 1;
        let totals = changes.commit(totals, &shared.store_clock, Durability::Disk)?;
        // After the commit, so that the expiry index contains the resolved claims.
        let mut ended = EndedRecords::default();
        let unreadable = engine.load_index(&mut clients, &mut ended).err();
        shared.in_flight.clear_lost(&active);
        shared.lookup.set(Some(engine));
        if unknown > 0 {
            tracing::warn!(
                keys = unknown,
                "idempotency store found executions that a crash or kill interrupted, their outcome is unknown"
            );
        }
        Ok(Self {
            totals,
            clients,
            ended,
            unreadable,
        })
    }
}

impl Writer {
    pub(super) fn resolve_claims(&mut self, engine: Engine) -> Result<(), StoreError> {
        let (totals, waiting) = (self.ledger.totals, self.waiting_ids());
        let resolved = ResolvedClaims::write(
            &engine,
            &self.shared,
            totals,
            &waiting,
            &self.orphaned_claims,
        )?;
        self.orphaned_claims.clear();
        self.state = EngineState::Open(engine);
        self.adopt(resolved);
        Ok(())
    }

    pub(super) fn adopt(&mut self, resolved: ResolvedClaims) {
        self.ledger.clients = resolved.clients;
        self.ledger.ended = resolved.ended;
        if let Some(error) = resolved.unreadable {
            self.log_unreadable(&error);
        }
        self.maintenance.evicted = None;
        self.acknowledge(resolved.totals);
    }

    pub(super) fn maintain_if_due(&mut self) {
        if self.ledger.totals.bytes > self.capacity.max_bytes || self.maintenance.is_due() {
            self.maintain();
        }
    }

    /// A failed write closes the engine. A read error is logged, and the affected records stay unchanged.
    pub(super) fn maintain(&mut self) {
        self.maintenance.last = Some(Instant::now());
        self.shared.capacity_use();
        let written = self.sweep().and_then(|()| self.evict_responses());
        if let Err(reason) = written {
            self.close_failed_engine(reason);
            return;
        }
        self.update_admission();
        self.compact_if_worthwhile();
    }

    /// At most once a minute.
    fn log_unreadable(&mut self, error: &StoreError) {
        let now = Duration::from_millis(self.shared.store_clock.now().0);
        if self.maintenance.unreadable_log.is_due(now) {
            tracing::error!(
                %error,
                path = %self.dir.path().display(),
                "expiry index of the idempotency store is damaged, expired idempotency keys and old responses are not \
                 removed, restore the store directory from a backup"
            );
        }
    }

    /// Fails only if a write fails. After a read error, the record stays until the engine is opened again.
    fn sweep(&mut self) -> Result<(), StoreError> {
        self.maintenance.has_backlog = false;
        let EngineState::Open(engine) = &self.state else {
            return Ok(());
        };
        let now = self.shared.store_clock.now();
        let mut totals = self.ledger.totals;
        let mut changes = engine.changes();
        let mut freed: HashMap<ScopeHash, u32> = HashMap::new();
        let mut checked = 0;
        let mut dropped = HashSet::new();
        let mut unreadable = None;
        while checked < CHUNK
            && let Some(key) = self.ledger.ended.pop_expired(now)
        {
            checked += 1;
            // The queues can have two entries for a record: of a freed key and of its next execution, if both ended in
            // the same millisecond.
            if dropped.contains(&key.id) {
                continue;
            }
            let entry = match engine.expiry(key) {
                Ok(Some(entry)) => entry,
                Ok(None) => continue,
                Err(error) => {
                    unreadable = Some(error);
                    continue;
                }
            };
            changes.remove_record(key);
            totals.remove(entry.state, entry.weight);
            totals.keys = totals.keys.saturating_sub(1);
            *freed.entry(key.id.scope).or_default() += 1;
            // If the commit fails, the engine is reopened and all keys are counted again.
            self.ledger.clients.remove(ClientHash(entry.client));
            self.shared.recent.invalidate(&key.id);
            dropped.insert(key.id);
        }
        self.maintenance.has_backlog = checked == CHUNK;
        if !dropped.is_empty() {
            for (&scope, &keys) in &freed {
                // After a read error, the scope reaches `max_keys_per_scope` early.
                if let Ok(counted) = engine.keys_of(scope) {
                    changes.put_scope(scope, counted.saturating_sub(keys));
                }
            }
            let totals = changes.commit(totals, &self.shared.store_clock, Durability::System)?;
            self.maintenance.dropped += self.ledger.totals.bytes.saturating_sub(totals.bytes);
            self.acknowledge(totals);
        }
        if let Some(error) = unreadable {
            self.log_unreadable(&error);
        }
        Ok(())
    }

    /// The records that expire first lose their responses first.
    fn evict_responses(&mut self) -> Result<(), StoreError> {
        let mut ends = 0;
        // The loop reaches the end at most twice: from the last position, and from the beginning.
        while self.ledger.totals.bytes > self.capacity.max_bytes && ends < 2 {
            let EngineState::Open(engine) = &self.state else {
                return Ok(());
            };
            let (step, changed) = self.evict_chunk(engine)?;
            if step.at_end {
                ends += 1;
            }
            self.maintenance.evicted = step.last;
            if let Some(totals) = changed {
                self.maintenance.dropped += self.ledger.totals.bytes.saturating_sub(totals.bytes);
                self.acknowledge(totals);
                self.log_evictions(step.responses);
            }
            if let Some(error) = step.unreadable {
                self.log_unreadable(&error);
                break;
            }
        }
        Ok(())
    }

    /// Returns the new totals if a response was evicted.
    fn evict_chunk(
        &self,
        engine: &Engine,
    ) -> Result<(EvictionStep, Option<StoreTotals>), StoreError> {
        let mut totals = self.ledger.totals;
        let mut changes = engine.changes();
        let mut step = EvictionStep {
            responses: 0,
            last: self.maintenance.evicted,
            at_end: true,
            unreadable: None,
        };
        for (checked, entry) in engine.expiries(self.maintenance.evicted).enumerate() {
            if checked == CHUNK || totals.bytes <= self.capacity.max_bytes {
                step.at_end = false;
                break;
            }
            let (key, entry) = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    step.unreadable = Some(error);
                    step.at_end = false;
                    break;
                }
            };
            step.last = Some(key);
            if entry.state != RecordState::Completed {
                continue;
            }
            let record = DiskRecord {
                state: RecordState::Tombstone,
                response: None,
                fingerprint: entry.fingerprint(),
                client: ClientHash(entry.client),
                since: Timestamp(entry.since),
                expires: key.expires,
            };
            totals.remove(RecordState::Completed, entry.weight);
            let weight = changes.put_record(key.id, &record);
            totals.add(RecordState::Tombstone, weight);
            self.shared.recent.invalidate(&key.id);
            step.responses += 1;
        }
        if step.at_end {
            // A new record with a short TTL can expire before the last checked record.
            step.last = None;
        }
        if step.responses == 0 {
            return Ok((step, None));
        }
        let totals = changes.commit(totals, &self.shared.store_clock, Durability::System)?;
        Ok((step, Some(totals)))
    }

    /// Logs the total at most once a minute.
    fn log_evictions(&mut self, responses: u64) {
        let evictions = self.shared.stats.evicted(responses);
        let now = Duration::from_millis(self.shared.store_clock.now().0);
        if self.maintenance.evictions_log.is_due(now) {
            log_evictions(evictions);
        }
    }

    /// If no compaction is running and enough bytes were dropped: at least [`COMPACT_BYTES`], and a quarter of the size
    /// of the completed records.
    fn compact_if_worthwhile(&mut self) {
        let EngineState::Open(engine) = &self.state else {
            return;
        };
        let worthwhile =
            self.maintenance.dropped >= COMPACT_BYTES.max(self.ledger.totals.bytes / 4);
        if !worthwhile || !self.maintenance.is_idle() {
            return;
        }
        self.maintenance.dropped = 0;
        let compaction = engine.compaction();
        let compacting = move || {
            if let Err(error) = compaction() {
                tracing::warn!(
                    %error,
                    "compaction of the idempotency store failed, disk space of removed records is not freed until the \
                     next compaction"
                );
            }
        };
        let name = "tidegate-compact".into();
        match thread::Builder::new().name(name).spawn(compacting) {
            Ok(thread) => self.maintenance.compaction = Some(thread),
            Err(error) => tracing::warn!(
                %error,
                "cannot start compaction thread of the idempotency store, disk space of removed records is not freed \
                 until the next compaction"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use tempfile::TempDir;

    use super::super::DiskStoreState;
    use super::super::store_dir::StoreDir;
    use super::*;
    use crate::clock::Clock;
    use crate::store::StoreCapacity;

    #[test]
    fn a_failed_engine_is_not_reopened_while_a_compaction_runs() {
        let dir = TempDir::new().unwrap();
        let capacity = StoreCapacity::default();
        let shared = Arc::new(DiskStoreState::new(capacity, Clock::real()));
        let dir = StoreDir::open(dir.path()).unwrap();
        let mut writer = Writer::open(dir, capacity, shared).unwrap();
        writer.state = EngineState::Failed(StoreError::new("failure of a test"), Instant::now());
        let (end, ended) = mpsc::channel::<()>();
        let compaction = thread::spawn(move || assert!(ended.recv().is_err()));
        writer.maintenance.compaction = Some(compaction);
        let (_ops, inbox) = mpsc::channel();
        writer.reopen_if_due(&inbox);
        assert!(matches!(writer.state, EngineState::Failed(..)));
        assert!(writer.pause() > Duration::from_millis(100));
        drop(end);
    }

    #[test]
    fn maintenance_of_a_full_store_ends_with_and_without_an_engine() {
        let dir = TempDir::new().unwrap();
        let capacity = StoreCapacity {
            max_bytes: 10,
            ..StoreCapacity::default()
        };
        let shared = Arc::new(DiskStoreState::new(capacity, Clock::real()));
        let dir = StoreDir::open(dir.path()).unwrap();
        let mut writer = Writer::open(dir, capacity, shared).unwrap();
        writer.ledger.totals.bytes = 1_000;
        writer.ledger.totals.completed = 1;
        let totals = writer.ledger.totals;
        // The totals contain more bytes than the records have, so the eviction cannot reach `max_bytes`. It must stop
        // at the end of the expiry index.
        writer.maintain();
        assert!(matches!(writer.state, EngineState::Open(_)));
        assert!(writer.maintenance.evicted.is_none());
        writer.close_failed_engine(StoreError::new("failure of a test"));
        writer.maintain();
        // The store exceeds `max_bytes`, so maintenance runs although the last run has just ended.
        let last = writer.maintenance.last;
        writer.maintain_if_due();
        assert!(writer.maintenance.last > last);
        let EngineState::Failed(reason, _) = &writer.state else {
            panic!("maintenance opened the engine");
        };
        assert!(reason.to_string().contains("failure of a test"), "{reason}");
        assert_eq!(writer.ledger.totals, totals);
    }
}
