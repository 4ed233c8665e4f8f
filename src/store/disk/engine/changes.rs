//! Atomic changes to the fjall database, with a choice of durability.

use fjall::PersistMode;
use rustix::io::Errno;

use super::super::StoreClock;
use super::super::record::{DiskRecord, StoredClaim};
use super::super::totals::StoreTotals;
use super::{Engine, EngineResult, ExpiryEntry, ExpiryKey, TOTALS, engine_error};
use crate::failpoint::fails;
use crate::idempotency::{RecordId, ScopeHash, StoreError};

/// Changes to the database that are committed together or not at all.
pub(in super::super) struct Changes<'a> {
    pub(super) engine: &'a Engine,
    pub(super) batch: fjall::OwnedWriteBatch,
}

/// How durable a commit is: which failures its changes survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Durability {
    /// The change is buffered in the process. It is lost if the process crashes.
    Engine,
    /// The change is in the page cache of the operating system. It survives a crash of the process, but not a power
    /// failure.
    System,
    /// The change is synced to disk. It survives a power failure.
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

    /// Writes an idempotency record and its entry in the expiry index. Returns the encoded size of the record in bytes.
    pub(in super::super) fn put_record(&mut self, id: RecordId, record: &DiskRecord) -> u64 {
        let name = id.to_bytes();
        let bytes = record.encode(&name);
        let weight = bytes.len() as u64;
        let entry = ExpiryEntry {
            state: record.state,
            fingerprint: record.fingerprint.to_bytes(),
            client: record.client.0,
            since: record.since.0,
            weight,
        };
        let key = ExpiryKey {
            expires: record.expires,
            id,
        };
        let entry = postcard::to_allocvec(&entry).expect("a struct of numbers can be encoded");
        self.batch.insert(&self.engine.records, name, bytes);
        self.batch
            .insert(&self.engine.expiries, key.to_bytes(), entry);
        weight
    }

    /// Removes an idempotency record and its entry in the expiry index.
    pub(in super::super) fn remove_record(&mut self, key: ExpiryKey) {
        self.batch.remove(&self.engine.records, key.id.to_bytes());
        self.remove_expiry(key);
    }

    /// Removes only the entry of a record in the expiry index. The caller must overwrite the record with one that
    /// expires at another time.
    pub(in super::super) fn remove_expiry(&mut self, key: ExpiryKey) {
        self.batch.remove(&self.engine.expiries, key.to_bytes());
    }

    pub(in super::super) fn put_scope(&mut self, scope: ScopeHash, keys: u32) {
        if keys == 0 {
            self.batch.remove(&self.engine.scopes, scope.0);
        } else {
            self.batch
                .insert(&self.engine.scopes, scope.0, keys.to_le_bytes());
        }
    }

    /// Commits the changes together with `totals` and a reading of the clocks. Returns the totals with this reading.
    /// After an error, it is unknown whether the changes are stored.
    pub(in super::super) fn commit(
        mut self,
        totals: StoreTotals,
        store_clock: &StoreClock,
        durability: Durability,
    ) -> EngineResult<StoreTotals> {
        let totals = StoreTotals {
            clocks: Some(store_clock.read()),
            ..totals
        };
        let encoded = postcard::to_allocvec(&totals).expect("a struct of numbers can be encoded");
        self.batch.insert(&self.engine.meta, TOTALS, encoded);
        let mode = match durability {
            Durability::Engine => None,
            Durability::System => Some(PersistMode::Buffer),
            Durability::Disk => Some(PersistMode::SyncData),
        };
        if fails!("store-write") {
            return Err(StoreError::new(Errno::IO));
        }
        if fails!("store-sync") {
            // Simulates a failed `fdatasync`: the batch is in the page cache, but it can be missing on disk.
            let mode = Some(PersistMode::Buffer);
            self.batch.durability(mode).commit().map_err(engine_error)?;
            return Err(StoreError::new(Errno::IO));
        }
        // Tests configure this failpoint to sleep, which simulates a disk that does not respond. It never fails, so its
        // result is ignored.
        let _ = fails!("store-stall");
        self.engine.wait_for_flush()?;
        self.batch.durability(mode).commit().map_err(engine_error)?;
        if durability == Durability::Disk {
            // The background threads are checked after the commit, because one of them can have failed to sync a file
            // that the batch needs.
            self.engine.check_workers()?;
        }
        Ok(totals)
    }
}
