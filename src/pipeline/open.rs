//! Opening the store a policy asks for.
//!
//! Memory is always there. A store on disk that cannot be opened keeps the gateway from starting: to go on
//! without it would forget promises that somebody relies on. A Redis that cannot be reached does not: it
//! is somebody else's, and may be back before the first request; only one that would break promises does.

use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

use super::Shared;
use crate::clock::Clock;
use crate::config::{Backend, Policy};
use crate::store::disk::buckets::Snapshots;
use crate::store::disk::{self, DiskRecords};
use crate::store::memory::MemoryBuckets;
use crate::store::redis::settings::RedisSettings;
use crate::store::redis::{self, Redis};
use crate::store::{BucketStore, RecordStore};

/// Why a store cannot be opened. Every message ends with a way out.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The one on disk.
    #[error(transparent)]
    Disk(#[from] disk::OpenError),
    /// The one in Redis.
    #[error(transparent)]
    Redis(#[from] redis::OpenError),
}

impl Shared {
    /// Everything a policy needs to be put to work, kept where it says.
    pub fn open(policy: Arc<Policy>, clock: Clock) -> Result<Self, OpenError> {
        let backend = policy.store.backend.clone();
        let memory = Self::new(policy, clock);
        match backend {
            Backend::Memory => Ok(memory),
            Backend::Disk { path } => Ok(memory.on_disk(&path)?),
            Backend::Redis(settings) => Ok(memory.in_redis(settings)?),
        }
    }

    /// The same with its records on disk, and its buckets written down there.
    fn on_disk(self, path: &Path) -> Result<Self, disk::OpenError> {
        let records = DiskRecords::open(path, self.policy.store.room, self.clock.clone())?;
        let rules = self.policy.routes.iter();
        let rules = rules.filter_map(|route| route.idempotency.as_ref());
        if let Some(largest) = rules.map(|rule| rule.max_response).max() {
            records.set_max_response(largest as u64);
        }
        let buckets = MemoryBuckets::new(self.policy.max_clients, self.clock.clone());
        let buckets = Arc::new(buckets);
        let snapshots = Snapshots::start(&records, Arc::clone(&buckets), self.clock.clone())?;
        Ok(Self {
            buckets: BucketStore::Memory(buckets),
            hash_keys: records.secret().into(),
            records: RecordStore::Disk(records),
            snapshots: Some(Arc::new(snapshots)),
            ..self
        })
    }

    /// The same with its buckets and its records in Redis.
    fn in_redis(self, settings: RedisSettings) -> Result<Self, redis::OpenError> {
        let mut routes = self.policy.routes.iter();
        let keyed = routes.any(|route| route.idempotency.is_some());
        let redis = Redis::open(settings, keyed, self.clock.clone())?;
        Ok(Self {
            hash_keys: redis.hash_keys(),
            buckets: BucketStore::Redis(redis.buckets(self.policy.max_clients)),
            records: RecordStore::Redis(redis.records()),
            redis: Some(redis),
            ..self
        })
    }
}
