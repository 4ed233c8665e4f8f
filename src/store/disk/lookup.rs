//! Reads records for operators, outside the writer's thread.
//!
//! A lookup walks the records of a key in steps and keeps only what is shown of each: state, age, status and
//! size. The engine is locked for one step at a time, so that the writer can close it in between. Values are
//! stored whole, so a step still reads the bodies from disk; the number of bytes read is bounded.

use std::ops::Bound;

use fjall::{Keyspace, UserKey};
use parking_lot::RwLock;

use super::Stamp;
use super::engine::{Engine, failed};
use super::record::{Record, RecordHead};
use crate::idempotency::{KeyHash, RecordId, RecordInfo, ScopeHash, StoreError, StoredResponse};
use std::sync::Arc;

/// Records read per step, under one lock.
const STEP: usize = 32;

/// Bytes of records after which a step ends.
const STEP_BYTES: usize = 8 << 20;

/// Bytes of records that one lookup reads at most.
const MAX_READ: usize = 1 << 30;

type Result<T> = std::result::Result<T, StoreError>;

/// Read access to the records of the engine, while that is open.
#[derive(Default)]
pub(super) struct Lookup(RwLock<Option<Keyspace>>);

impl Lookup {
    /// Makes the records of `engine` readable, or none if it is closed. Waits for a step that is in progress.
    pub(super) fn set(&self, engine: Option<&Engine>) {
        *self.0.write() = engine.map(Engine::records);
    }

    /// Returns up to `most` records of `key`, in `scope` or in all scopes if `None`, without their responses.
    pub(super) fn find(
        &self,
        key: KeyHash,
        scope: Option<ScopeHash>,
        most: usize,
        now: Stamp,
    ) -> Result<Vec<RecordInfo>> {
        let mut walk = Walk {
            from: Bound::Included(first(key, scope)),
            to: last(key, scope),
            found: Vec::new(),
            read: 0,
        };
        while walk.found.len() < most && walk.read < MAX_READ {
            let limit = STEP.min(most - walk.found.len());
            if !self.with(|records| walk.step(records, limit, now))? {
                break;
            }
        }
        Ok(walk.found)
    }

    /// Returns the stored response of a completed record that has not expired.
    pub(super) fn response(&self, id: RecordId, now: Stamp) -> Result<Option<Arc<StoredResponse>>> {
        let name = id.to_bytes();
        let bytes = self.with(|records| records.get(name).map_err(failed))?;
        let Some(bytes) = bytes else { return Ok(None) };
        let record = Record::decode(&name, &bytes).map_err(|error| damaged(id, &error))?;
        Ok(record.response.filter(|_| record.expires > now))
    }

    fn with<T>(&self, read: impl FnOnce(&Keyspace) -> Result<T>) -> Result<T> {
        match &*self.0.read() {
            Some(records) => read(records),
            None => Err(StoreError::known("the store is not open")),
        }
    }
}

/// A walk through the records of a key.
struct Walk {
    from: Bound<UserKey>,
    to: UserKey,
    found: Vec<RecordInfo>,
    /// Bytes of records read so far.
    read: usize,
}

impl Walk {
    /// Reads up to `limit` further records, and no further one after [`STEP_BYTES`]. Returns whether there may be
    /// more.
    fn step(&mut self, records: &Keyspace, limit: usize, now: Stamp) -> Result<bool> {
        let range = (self.from.clone(), Bound::Included(self.to.clone()));
        let mut steps = 0;
        let end = self.read + STEP_BYTES;
        for entry in records.range(range).take(limit) {
            let (name, bytes) = entry.into_inner().map_err(failed)?;
            let id = name.as_ref().try_into().map(RecordId::from_bytes);
            let id = id.map_err(|_| StoreError::new("a record has a malformed name"))?;
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

/// The first name that a record of `key` can have.
fn first(key: KeyHash, scope: Option<ScopeHash>) -> UserKey {
    name(key, scope.unwrap_or(ScopeHash([0; 16])))
}

/// The last name that a record of `key` can have.
fn last(key: KeyHash, scope: Option<ScopeHash>) -> UserKey {
    name(key, scope.unwrap_or(ScopeHash([0xff; 16])))
}

fn name(key: KeyHash, scope: ScopeHash) -> UserKey {
    RecordId { key, scope }.to_bytes().into()
}

fn damaged(id: RecordId, error: &dyn std::fmt::Display) -> StoreError {
    StoreError::new(format_args!("the record {id:?} is damaged: {error}"))
}
