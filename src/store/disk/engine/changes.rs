//! Atomic changes to the fjall database, with a choice of durability.

use fjall::PersistMode;
use rustix::io::Errno;

use super::super::StoreClock;
use super::super::record::{DiskRecord, StoredClaim};
use super::super::totals::StoreTotals;
use super::{Engine, EngineResult, ExpiryEntry, ExpiryKey, TOTALS, engine_error};
use crate::failpoint::fails;
use crate::idempotency::{RecordId, ScopeHash, StoreError};

/// Committed together or not at all.
pub(in super::super) struct Changes<'a> {
    pub(super) engine: &'a Engine,
    pub(super) batch: fjall::OwnedWriteBatch,
}

/// Which failures a change survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Durability {
    /// None: the change is lost if the process crashes.
    Engine,
    /// A crash of the process, but not a power failure.
    System,
    /// A power failure.
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

    /// Also writes the entry in the expiry index. Returns the encoded size in bytes.
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

    /// With its entry in the expiry index.
    pub(in super::super) fn remove_record(&mut self, key: ExpiryKey) {
        self.batch.remove(&self.engine.records, key.id.to_bytes());
        self.remove_expiry(key);
    }

    /// The caller must overwrite the record with one that expires at another time.
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

    /// Returns `totals` with a reading of the clocks. After an error, it is unknown whether the changes are stored.
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
            // Simulates a failed `fdatasync`: the batch is in the page cache only.
            let mode = Some(PersistMode::Buffer);
            self.batch.durability(mode).commit().map_err(engine_error)?;
            return Err(StoreError::new(Errno::IO));
        }
        // Tests make this failpoint sleep, like a disk that does not respond.
        let _ = fails!("store-stall");
        self.engine.wait_for_flush()?;
        self.batch.durability(mode).commit().map_err(engine_error)?;
        if durability == Durability::Disk {
            // A background thread can have failed to sync a file that the batch needs.
            self.engine.check_workers()?;
        }
        Ok(totals)
    }
}
