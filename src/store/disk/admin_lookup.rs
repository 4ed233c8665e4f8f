//! Lookups of idempotency records for the admin API, outside the writer thread.
//!
//! A lookup scans the records of a key in steps, each under a read lock, so that the writer thread can close a failed
//! engine between two. A record is one value, so a step reads the response bodies from disk too. Therefore the bytes
//! that a step and a lookup read are bounded.

use std::ops::Bound;
use std::sync::Arc;

use fjall::{Keyspace, UserKey};
use parking_lot::RwLock;

use super::Timestamp;
use super::engine::{Engine, EngineResult, engine_error};
use super::record::{DiskRecord, RecordHead};
use crate::idempotency::{KeyHash, RecordId, RecordInfo, ScopeHash, StoreError, StoredResponse};

const STEP: usize = 32;

/// In bytes of records.
const STEP_BYTES: usize = 8 << 20;

/// In bytes of records.
const MAX_READ: usize = 1 << 30;

/// `None` while the engine is closed.
#[derive(Default)]
pub(super) struct Lookup(RwLock<Option<Keyspace>>);

impl Lookup {
    /// Blocks until the current step of every lookup has ended.
    pub(super) fn set(&self, engine: Option<&Engine>) {
        *self.0.write() = engine.map(Engine::records);
    }

    /// Without responses. Expired records are skipped.
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

    /// `None` also if the record has expired.
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

struct DiskScan {
    from: Bound<UserKey>,
    to: UserKey,
    found: Vec<RecordInfo>,
    /// In bytes.
    read: usize,
}

impl DiskScan {
    /// Reads at most [`STEP_BYTES`]. Returns `false` when the scan is finished.
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

/// Lowest engine key of the records of `key`.
fn first(key: KeyHash, scope: Option<ScopeHash>) -> UserKey {
    name(key, scope.unwrap_or(ScopeHash([0; 16])))
}

/// Highest engine key of the records of `key`.
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
