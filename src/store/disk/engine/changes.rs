//! Changes to a store, and how durable they are to be.

use fjall::PersistMode;
use rustix::io::Errno;

use super::super::Timeline;
use super::super::record::{Record, StoredClaim};
use super::super::tally::Tally;
use super::{Engine, ExpiryEntry, ExpiryKey, Result, TALLY, failed};
use crate::failpoint::fails;
use crate::idempotency::{RecordId, ScopeHash, StoreError};

/// Changes that are made together or not at all.
pub(in super::super) struct Changes<'a> {
    pub(super) engine: &'a Engine,
    pub(super) batch: fjall::OwnedWriteBatch,
}

/// How far changes have to get before they count as made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Durability {
    /// To the engine. Lost in a crash.
    Engine,
    /// To the system. Lost in a power cut.
    System,
    /// To the disk.
    Disk,
}

impl Changes<'_> {
    pub(in super::super) fn put_claim(&mut self, id: RecordId, claimed: &StoredClaim) {
        let name = id.to_bytes();
        let bytes = claimed.encode(&name);
        self.batch.insert(&self.engine.claims, name, bytes);
    }

    pub(in super::super) fn remove_claim(&mut self, id: RecordId) {
        self.batch.remove(&self.engine.claims, id.to_bytes());
    }

    /// Writes a record; its weight.
    pub(in super::super) fn put_record(&mut self, id: RecordId, record: &Record) -> u64 {
        let name = id.to_bytes();
        let bytes = record.encode(&name);
        let weight = bytes.len() as u64;
        let brief = ExpiryEntry {
            state: record.state,
            fingerprint: record.fingerprint.to_bytes(),
            client: record.client.0,
            since: record.since.0,
            weight,
        };
        let due = ExpiryKey {
            expires: record.expires,
            id,
        };
        let brief = postcard::to_allocvec(&brief).expect("numbers can always be written");
        self.batch.insert(&self.engine.records, name, bytes);
        self.batch
            .insert(&self.engine.expiries, due.to_bytes(), brief);
        weight
    }

    pub(in super::super) fn remove_record(&mut self, due: ExpiryKey) {
        self.batch.remove(&self.engine.records, due.id.to_bytes());
        self.remove_expiry(due);
    }

    /// Removes the index entry of a record that is replaced in the same batch by one with another expiry.
    pub(in super::super) fn remove_expiry(&mut self, due: ExpiryKey) {
        self.batch.remove(&self.engine.expiries, due.to_bytes());
    }

    pub(in super::super) fn put_scope(&mut self, scope: ScopeHash, keys: u32) {
        if keys == 0 {
            self.batch.remove(&self.engine.scopes, scope.0);
        } else {
            self.batch
                .insert(&self.engine.scopes, scope.0, keys.to_le_bytes());
        }
    }

    /// Commits the changes together with `tally`, as durably as `durability` says. Returns the tally with its
    /// time. After an error the changes may be stored or not.
    pub(in super::super) fn commit(
        mut self,
        tally: Tally,
        timeline: &Timeline,
        durability: Durability,
    ) -> Result<Tally> {
        let tally = Tally {
            clocks: Some(timeline.read()),
            ..tally
        };
        let written = postcard::to_allocvec(&tally).expect("numbers can always be written");
        self.batch.insert(&self.engine.meta, TALLY, written);
        let mode = match durability {
            Durability::Engine => None,
            Durability::System => Some(PersistMode::Buffer),
            Durability::Disk => Some(PersistMode::SyncData),
        };
        if fails!("store-write") {
            return Err(StoreError::new(Errno::IO));
        }
        if fails!("store-sync") {
            // As after a failed `fdatasync`: the batch is in the page cache, and may not be on the disk.
            let mode = Some(PersistMode::Buffer);
            self.batch.durability(mode).commit().map_err(failed)?;
            return Err(StoreError::new(Errno::IO));
        }
        // Configured to sleep, like a disk that does not respond.
        let _ = fails!("store-stall");
        self.engine.wait_for_flush()?;
        self.batch.durability(mode).commit().map_err(failed)?;
        if durability == Durability::Disk {
            // A background thread can have received the error of a sync that this batch depends on.
            self.engine.check_workers()?;
        }
        Ok(tally)
    }
}
