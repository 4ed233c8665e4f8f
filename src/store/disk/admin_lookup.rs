//! Lookups of idempotency records for the admin API, outside the writer thread.
//!
//! A lookup scans the records of an idempotency key in steps. It returns the state, age, status and size of each
//! record, without the response. A step holds a read lock on the engine. The lock is released between two steps, so
//! that the writer thread can close a failed engine. A record is stored as one value, so a step reads the response
//! bodies from disk too. Therefore the bytes that a step and a lookup read are bounded.

use std::ops::Bound;
use std::sync::Arc;

use fjall::{Keyspace, UserKey};
use parking_lot::RwLock;

use super::Timestamp;
use super::engine::{Engine, EngineResult, engine_error};
use super::record::{DiskRecord, RecordHead};
use crate::idempotency::{KeyHash, RecordId, RecordInfo, ScopeHash, StoreError, StoredResponse};

/// Maximum number of records that a step of a lookup reads.
const STEP: usize = 32;

/// A step of a lookup ends after it has read this many bytes of records.
const STEP_BYTES: usize = 8 << 20;

/// A lookup ends after it has read this many bytes of records.
const MAX_READ: usize = 1 << 30;

/// Read access to the idempotency records. Contains the keyspace of the records, or `None` while the engine is closed.
#[derive(Default)]
pub(super) struct Lookup(RwLock<Option<Keyspace>>);

impl Lookup {
    /// Sets the engine from which lookups read. `None` means that the engine is closed. Blocks until the current step
    /// of every lookup has ended.
    pub(super) fn set(&self, engine: Option<&Engine>) {
        *self.0.write() = engine.map(Engine::records);
    }

    /// Returns up to `most` records of the idempotency key `key`, without their responses. If `scope` is `None`,
    /// returns the records of all scopes. Expired records are skipped.
    pub(super) fn find(
        &self,
        key: KeyHash,
        scope: Option<ScopeHash>,
        most: usize,
        now: Timestamp,
    ) -> EngineResult<Vec<RecordInfo>> {
        let mut scan = DiskScan {
            from: Bound::Included(first(key, scope)),
            to: last(key, scope),
            found: Vec::new(),
            read: 0,
        };
        while scan.found.len() < most && scan.read < MAX_READ {
            let limit = STEP.min(most - scan.found.len());
            if !self.with(|records| scan.step(records, limit, now))? {
                break;
            }
        }
        Ok(scan.found)
    }

    /// Returns the stored response of the record `id`. Returns `None` if the record has no response or has expired.
    pub(super) fn response(
        &self,
        id: RecordId,
        now: Timestamp,
    ) -> EngineResult<Option<Arc<StoredResponse>>> {
        let name = id.to_bytes();
        let bytes = self.with(|records| records.get(name).map_err(engine_error))?;
        let Some(bytes) = bytes else { return Ok(None) };
        let record = DiskRecord::decode(&name, &bytes).map_err(|error| damaged(id, &error))?;
        Ok(record.response.filter(|_| record.expires > now))
    }

    fn with<T>(&self, read: impl FnOnce(&Keyspace) -> EngineResult<T>) -> EngineResult<T> {
        match &*self.0.read() {
            Some(records) => read(records),
            None => Err(StoreError::known(
                "the idempotency store has failed and is not open again yet",
            )),
        }
    }
}

/// A scan of the records of one idempotency key.
struct DiskScan {
    from: Bound<UserKey>,
    to: UserKey,
    found: Vec<RecordInfo>,
    /// Size of all records that the scan has read, in bytes.
    read: usize,
}

impl DiskScan {
    /// Reads up to `limit` further records, or fewer if they exceed [`STEP_BYTES`]. Returns `false` when the scan is
    /// finished.
    fn step(&mut self, records: &Keyspace, limit: usize, now: Timestamp) -> EngineResult<bool> {
        let range = (self.from.clone(), Bound::Included(self.to.clone()));
        let mut steps = 0;
        let end = self.read + STEP_BYTES;
        for entry in records.range(range).take(limit) {
            let (name, bytes) = entry.into_inner().map_err(engine_error)?;
            let id = name.as_ref().try_into().map(RecordId::from_bytes);
            let id = id.map_err(|_| {
                StoreError::new(
                    "an idempotency record is damaged: its engine key does not have 32 bytes",
                )
            })?;
            let head = RecordHead::decode(&name, &bytes).map_err(|error| damaged(id, &error))?;
            steps += 1;
            self.read += bytes.len();
            self.from = Bound::Excluded(name);
            if head.expires > now {
                self.found.push(RecordInfo {
                    id,
                    state: head.state,
                    age: now.since(head.since),
                    expires_in: Some(head.expires.since(now)),
                    fingerprint: head.fingerprint,
                    response: head.response,
                });
            }
            if self.read >= end {
                return Ok(true);
            }
        }
        Ok(steps == limit)
    }
}

/// Returns the lowest engine key of the records with the idempotency key `key`, in `scope` or in all scopes.
fn first(key: KeyHash, scope: Option<ScopeHash>) -> UserKey {
    name(key, scope.unwrap_or(ScopeHash([0; 16])))
}

/// Returns the highest engine key of the records with the idempotency key `key`, in `scope` or in all scopes.
fn last(key: KeyHash, scope: Option<ScopeHash>) -> UserKey {
    name(key, scope.unwrap_or(ScopeHash([0xff; 16])))
}

fn name(key: KeyHash, scope: ScopeHash) -> UserKey {
    RecordId { key, scope }.to_bytes().into()
}

fn damaged(id: RecordId, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::new(format_args!(
        "idempotency record {id:?} is damaged: {error}"
    ))
}
