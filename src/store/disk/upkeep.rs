//! What nobody asks for: settling what a crash left behind, dropping what expired, making room.

use std::collections::{HashMap, HashSet};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::Stamp;
use super::engine::{Durability, Engine, ExpiryKey};
use super::record::Record;
use super::tally::Tally;
use super::writer::{EngineState, Writer};
use crate::idempotency::{ClientHash, Fingerprint, RecordState, ScopeHash, StoreError};
use crate::store::capacity::ClientCounts;
use crate::store::log_evictions;

/// Records dropped or relieved of their responses in one batch.
const CHUNK: usize = 1_000;

/// How often upkeep is done.
const EVERY: Duration = Duration::from_millis(500);

/// Bytes of expired records that are worth a compaction.
const COMPACT_BYTES: u64 = 32 << 20;

/// How often it is logged that responses are being dropped.
const LOG_EVERY: Duration = Duration::from_mins(1);

/// Where upkeep stands.
#[derive(Default)]
pub(super) struct Upkeep {
    /// The last record that was dropped: none before it is left.
    swept: Option<ExpiryKey>,
    /// The last record that was relieved of its response: none before it has one.
    relieved: Option<ExpiryKey>,
    /// Whether there may be more to drop at once.
    has_backlog: bool,
    /// Bytes dropped since the last compaction.
    dropped: u64,
    last: Option<Instant>,
    logged: Option<Instant>,
    logged_unreadable: Option<Instant>,
    compaction: Option<JoinHandle<()>>,
}

/// What came of relieving records of their responses.
struct Relieved {
    responses: u64,
    last: Option<ExpiryKey>,
    at_end: bool,
    /// Why the walk ended before the end of the index.
    unreadable: Option<StoreError>,
}

impl Upkeep {
    /// How long the writer may wait for something to do.
    pub(super) fn pause(&self) -> Duration {
        if self.has_backlog {
            Duration::ZERO
        } else {
            EVERY
        }
    }

    /// The last record that was dropped: none before it is left.
    pub(super) fn swept(&self) -> Option<ExpiryKey> {
        self.swept
    }

    /// Has upkeep done after the next batch.
    pub(super) fn make_due(&mut self) {
        self.last = None;
    }

    fn is_due(&self) -> bool {
        self.has_backlog || self.last.is_none_or(|last| last.elapsed() >= EVERY)
    }

    /// Whether nothing of it is at work in the background.
    pub(super) fn is_idle(&self) -> bool {
        self.compaction.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Writer {
    /// Settles the claims that no execution holds, counts the keys of each client, and takes the engine into use.
    /// Claims that were never acknowledged are removed, and the others become unknown. Operations that were sent
    /// before must have been taken out of the inbox: a completion in it would be recorded as unknown first.
    pub(super) fn settle_claims(&mut self, engine: Engine) -> Result<(), StoreError> {
        let now = self.common.timeline.now();
        let mut tally = self.tally;
        let mut changes = engine.changes();
        let mut freed: HashMap<ScopeHash, u32> = HashMap::new();
        let mut unknown = 0_u64;
        let waiting = self.waiting_ids();
        let mut kept = HashSet::new();
        let mut clients = ClientCounts::default();
        for (id, claimed) in engine.claimed()? {
            if self.common.in_flight.is_running(id) || waiting.contains(&id) {
                kept.insert(id);
                clients.add(ClientHash(claimed.client));
                continue;
            }
            changes.remove_claim(id);
            if self.doomed.contains(&id) {
                tally.keys = tally.keys.saturating_sub(1);
                *freed.entry(id.scope).or_default() += 1;
                continue;
            }
            unknown += 1;
            let record = Record {
                state: RecordState::Unknown,
                response: None,
                fingerprint: Fingerprint::from_bytes(&claimed.fingerprint),
                client: ClientHash(claimed.client),
                since: now,
                expires: now.after(Duration::from_millis(claimed.ttl)),
            };
            let weight = changes.put_record(id, &record);
            tally.add(record.state, weight);
        }
        for (&scope, &keys) in &freed {
            if let Ok(counted) = engine.keys_of(scope) {
                changes.put_scope(scope, counted.saturating_sub(keys));
            }
        }
        // Written even if there is nothing to settle: it shows that the engine can write.
        tally.batches += 1;
        let tally = changes.commit(tally, &self.common.timeline, Durability::Disk)?;
        // After the commit, so that the records of settled claims are in the index.
        let unreadable = engine.count_clients(&mut clients).err();
        self.clients = clients;
        if let Some(error) = unreadable {
            self.log_unreadable(&error);
        }
        self.doomed.clear();
        self.common.in_flight.clear_lost(&kept);
        self.upkeep.swept = None;
        self.upkeep.relieved = None;
        self.acknowledge(tally);
        self.common.lookup.set(Some(&engine));
        self.state = EngineState::Open(engine);
        if unknown > 0 {
            tracing::warn!(
                keys = unknown,
                "requests were underway when the store was last used: what became of them is unknown"
            );
        }
        Ok(())
    }

    pub(super) fn look_after_if_due(&mut self) {
        if self.tally.bytes > self.capacity.max_bytes || self.upkeep.is_due() {
            self.look_after();
        }
    }

    /// Drops some of what has expired, makes room if there is too little, and holds the reserve. Fails the
    /// engine if it cannot be written. What cannot be read is left as it is, and logged.
    pub(super) fn look_after(&mut self) {
        self.upkeep.last = Some(Instant::now());
        let kept = self.sweep().and_then(|_| self.make_room());
        if let Err(reason) = kept {
            self.give_up(reason);
            return;
        }
        self.readmit();
        self.compact_if_worthwhile();
    }

    /// Logs that upkeep cannot read its index, once a minute.
    fn log_unreadable(&mut self, error: &StoreError) {
        let logged = &mut self.upkeep.logged_unreadable;
        if logged.is_none_or(|logged| logged.elapsed() >= LOG_EVERY) {
            *logged = Some(Instant::now());
            tracing::error!(
                %error,
                path = %self.home.path().display(),
                "the index of expiries is damaged, so expired keys and old responses are not removed; restore the \
                 directory from a backup"
            );
        }
    }

    /// Drops all expired records.
    #[cfg(test)]
    pub(super) fn sweep_all(&mut self) {
        loop {
            match self.sweep() {
                Ok(CHUNK) => {}
                Ok(_) => return,
                Err(reason) => return self.give_up(reason),
            }
        }
    }

    /// Drops up to [`CHUNK`] expired records and returns how many it dropped. Fails only if a write fails.
    fn sweep(&mut self) -> Result<usize, StoreError> {
        self.upkeep.has_backlog = false;
        let EngineState::Open(engine) = &self.state else {
            return Ok(0);
        };
        let now = self.common.timeline.now();
        let mut tally = self.tally;
        let mut changes = engine.changes();
        let mut freed: HashMap<ScopeHash, u32> = HashMap::new();
        let mut dropped = 0;
        let mut unreadable = None;
        let mut last = self.upkeep.swept;
        // From a cursor: the engine would read all entries that were removed before it.
        for entry in engine.expiries(last) {
            let (due, brief) = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    // The engine's iterator skips more than the damaged block, so the walk ends here.
                    unreadable = Some(error);
                    break;
                }
            };
            if due.expires > now || dropped == CHUNK {
                break;
            }
            changes.remove_record(due);
            tally.remove(brief.state, brief.weight);
            tally.keys = tally.keys.saturating_sub(1);
            *freed.entry(due.id.scope).or_default() += 1;
            // If the commit fails, the counts are made anew.
            self.clients.remove(ClientHash(brief.client));
            self.common.recent.invalidate(&due.id);
            dropped += 1;
            last = Some(due);
        }
        if dropped > 0 {
            for (&scope, &keys) in &freed {
                // A count that cannot be read stays as it is: the scope may use fewer keys.
                if let Ok(counted) = engine.keys_of(scope) {
                    changes.put_scope(scope, counted.saturating_sub(keys));
                }
            }
            let tally = changes.commit(tally, &self.common.timeline, Durability::System)?;
            self.upkeep.dropped += self.tally.bytes.saturating_sub(tally.bytes);
            self.upkeep.swept = last;
            self.upkeep.has_backlog = dropped == CHUNK;
            self.acknowledge(tally);
        }
        if let Some(error) = unreadable {
            self.log_unreadable(&error);
        }
        Ok(dropped)
    }

    /// Relieves records of their responses until they fit; those that expire soonest go first.
    fn make_room(&mut self) -> Result<(), StoreError> {
        let mut ends = 0;
        // Twice to the end at most: once from wherever it stopped before, and once from the beginning.
        while self.tally.bytes > self.capacity.max_bytes && ends < 2 {
            let EngineState::Open(engine) = &self.state else {
                return Ok(());
            };
            let (relieved, changed) = self.relieve(engine)?;
            if relieved.at_end {
                ends += 1;
            }
            self.upkeep.relieved = relieved.last;
            if let Some(tally) = changed {
                self.upkeep.dropped += self.tally.bytes.saturating_sub(tally.bytes);
                self.acknowledge(tally);
                self.log_evictions(relieved.responses);
            }
            if let Some(error) = relieved.unreadable {
                self.log_unreadable(&error);
                break;
            }
        }
        Ok(())
    }

    /// Relieves some records of their responses, from where it stopped before; what that came to, and the
    /// tally if anything changed.
    fn relieve(&self, engine: &Engine) -> Result<(Relieved, Option<Tally>), StoreError> {
        let mut tally = self.tally;
        let mut changes = engine.changes();
        let mut relieved = Relieved {
            responses: 0,
            last: self.upkeep.relieved,
            at_end: true,
            unreadable: None,
        };
        for (looked_at, entry) in engine.expiries(self.upkeep.relieved).enumerate() {
            if looked_at == CHUNK || tally.bytes <= self.capacity.max_bytes {
                relieved.at_end = false;
                break;
            }
            let (due, brief) = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    relieved.unreadable = Some(error);
                    relieved.at_end = false;
                    break;
                }
            };
            relieved.last = Some(due);
            if brief.state != RecordState::Completed {
                continue;
            }
            let record = Record {
                state: RecordState::Tombstone,
                response: None,
                fingerprint: brief.fingerprint(),
                client: ClientHash(brief.client),
                since: Stamp(brief.since),
                expires: due.expires,
            };
            tally.remove(RecordState::Completed, brief.weight);
            let weight = changes.put_record(due.id, &record);
            tally.add(RecordState::Tombstone, weight);
            self.common.recent.invalidate(&due.id);
            relieved.responses += 1;
        }
        if relieved.at_end {
            // A record of a shorter life may have come before the cursor.
            relieved.last = None;
        }
        if relieved.responses == 0 {
            return Ok((relieved, None));
        }
        let tally = changes.commit(tally, &self.common.timeline, Durability::System)?;
        Ok((relieved, Some(tally)))
    }

    fn log_evictions(&mut self, relieved: u64) {
        let evictions = self.common.stats.evicted(relieved);
        let logged = &mut self.upkeep.logged;
        if logged.is_none_or(|logged| logged.elapsed() >= LOG_EVERY) {
            *logged = Some(Instant::now());
            log_evictions(evictions);
        }
    }

    /// Has the engine give space back, in the background, when much of it was freed.
    fn compact_if_worthwhile(&mut self) {
        let EngineState::Open(engine) = &self.state else {
            return;
        };
        let worthwhile = self.upkeep.dropped >= COMPACT_BYTES.max(self.tally.bytes / 4);
        if !worthwhile || !self.upkeep.is_idle() {
            return;
        }
        self.upkeep.dropped = 0;
        let compaction = engine.compaction();
        let compacting = move || {
            if let Err(error) = compaction() {
                tracing::warn!(%error, "the idempotency store could not be compacted");
            }
        };
        let name = "tidegate-compact".into();
        match thread::Builder::new().name(name).spawn(compacting) {
            Ok(thread) => self.upkeep.compaction = Some(thread),
            Err(error) => tracing::warn!(%error, "no thread to compact the idempotency store"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use tempfile::TempDir;

    use super::super::Common;
    use super::super::store_dir::StoreDir;
    use super::*;
    use crate::clock::Clock;
    use crate::store::StoreCapacity;

    #[test]
    fn the_writer_waits_while_a_compaction_outlives_the_engine() {
        let dir = TempDir::new().unwrap();
        let capacity = StoreCapacity::default();
        let common = Arc::new(Common::new(capacity, Clock::real()));
        let home = StoreDir::take(dir.path()).unwrap();
        let mut writer = Writer::open(home, capacity, common).unwrap();
        writer.state = EngineState::Failed(StoreError::new("for a test"), Instant::now());
        let (end, ended) = mpsc::channel::<()>();
        let compaction = thread::spawn(move || assert!(ended.recv().is_err()));
        writer.upkeep.compaction = Some(compaction);
        let (_ops, inbox) = mpsc::channel();
        writer.reopen_if_due(&inbox);
        assert!(matches!(writer.state, EngineState::Failed(..)));
        assert!(writer.pause() > Duration::from_millis(100));
        drop(end);
    }

    #[test]
    fn upkeep_without_an_engine_ends_however_full_the_store_is() {
        let dir = TempDir::new().unwrap();
        let capacity = StoreCapacity {
            max_bytes: 10,
            ..StoreCapacity::default()
        };
        let common = Arc::new(Common::new(capacity, Clock::real()));
        let home = StoreDir::take(dir.path()).unwrap();
        let mut writer = Writer::open(home, capacity, common).unwrap();
        writer.tally.bytes = 1_000;
        writer.tally.completed = 1;
        // A count that does not fit what there is, with an engine: the end of the records is the end.
        writer.look_after();
        writer.give_up(StoreError::new("for a test"));
        writer.look_after();
        writer.look_after_if_due();
    }
}
