//! Lookups of records for the admin API, outside the writer thread.
//!
//! A lookup scans the records of a key in steps. It returns state, age, status and size of each record, without the
//! response. The lock is held for one step at a time, so that the writer can close the engine between two steps. A
//! record is stored as one value, so a step also reads the response bodies from disk. The bytes read are bounded.

use std::ops::Bound;
use std::sync::Arc;

use fjall::{Keyspace, UserKey};
use parking_lot::RwLock;

use super::Timestamp;
use super::engine::{Engine, EngineResult, engine_error};
use super::record::{DiskRecord, RecordHead};
use crate::idempotency::{KeyHash, RecordId, RecordInfo, ScopeHash, StoreError, StoredResponse};

/// Upper bound of the records read per step.
const STEP: usize = 32;

/// Size of the records, in bytes, after which a step ends.
const STEP_BYTES: usize = 8 << 20;

/// Upper bound of the records that one lookup reads, in bytes.
const MAX_READ: usize = 1 << 30;

/// Read access to the records. It contains the keyspace while the engine is open.
#[derive(Default)]
pub(super) struct Lookup(RwLock<Option<Keyspace>>);

impl Lookup {
    /// Sets the engine to read from, or `None` if it is closed. Waits for a step that is in progress.
    pub(super) fn set(&self, engine: Option<&Engine>) {
        *self.0.write() = engine.map(Engine::records);
    }

    /// Returns up to `most` records of `key`, in `scope` or in all scopes if `None`, without their responses.
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

    /// Returns the stored response of a completed record that has not expired.
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
                "the store failed and is not reopened yet",
            )),
        }
    }
}

/// A scan of the records of a key.
struct DiskScan {
    from: Bound<UserKey>,
    to: UserKey,
    found: Vec<RecordInfo>,
    /// Size of the records read so far, in bytes.
    read: usize,
}

impl DiskScan {
    /// Reads up to `limit` further records, or fewer if they exceed [`STEP_BYTES`]. Returns whether the scan is not
    /// finished.
    fn step(&mut self, records: &Keyspace, limit: usize, now: Timestamp) -> EngineResult<bool> {
        let range = (self.from.clone(), Bound::Included(self.to.clone()));
        let mut steps = 0;
        let end = self.read + STEP_BYTES;
        for entry in records.range(range).take(limit) {
            let (name, bytes) = entry.into_inner().map_err(engine_error)?;
            let id = name.as_ref().try_into().map(RecordId::from_bytes);
            let id =
                id.map_err(|_| StoreError::new("the key of a record does not have 32 bytes"))?;
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

/// Returns the lowest key that a record of `key` can have in the keyspace.
fn first(key: KeyHash, scope: Option<ScopeHash>) -> UserKey {
    name(key, scope.unwrap_or(ScopeHash([0; 16])))
}

/// Returns the highest key that a record of `key` can have in the keyspace.
fn last(key: KeyHash, scope: Option<ScopeHash>) -> UserKey {
    name(key, scope.unwrap_or(ScopeHash([0xff; 16])))
}

fn name(key: KeyHash, scope: ScopeHash) -> UserKey {
    RecordId { key, scope }.to_bytes().into()
}

fn damaged(id: RecordId, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::new(format_args!("record {id:?} is damaged: {error}"))
}
