//! Opens the store for rate limit buckets and idempotency records that the configuration selects.
//!
//! If a store on disk cannot be opened, the gateway does not start, because without the idempotency records it could
//! execute requests twice. If Redis cannot be reached, the gateway starts and connects later. If Redis can be reached
//! but could lose records because of its settings (for example an eviction policy), the gateway does not start.

use std::path::Path;
use std::sync::Arc;

use thiserror::Error;

use super::Shared;
use crate::clock::Clock;
use crate::config::{Backend, Policy};
use crate::store::disk::bucket_snapshots::BucketSnapshots;
use crate::store::disk::{self, DiskRecords};
use crate::store::memory::MemoryBuckets;
use crate::store::redis::settings::RedisSettings;
use crate::store::redis::{self, Redis};
use crate::store::{BucketStore, RecordStore};

/// Error of opening a store. The error message ends with a remedy.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The store on disk cannot be opened.
    #[error(transparent)]
    Disk(#[from] disk::DiskOpenError),
    /// The store in Redis cannot be opened.
    #[error(transparent)]
    Redis(#[from] redis::RedisOpenError),
}

impl Shared {
    /// Creates the state for a policy, with the store that `[store]` of the configuration selects.
    pub fn open(policy: Arc<Policy>, clock: Clock) -> Result<Self, OpenError> {
        let backend = policy.store.backend.clone();
        let memory = Self::new(policy, clock);
        match backend {
            Backend::Memory => Ok(memory),
            Backend::Disk { path } => Ok(memory.on_disk(&path)?),
            Backend::Redis(settings) => Ok(memory.in_redis(settings)?),
        }
    }

    /// Replaces the stores in memory by idempotency records on disk, and by buckets in memory with snapshots on disk.
    fn on_disk(self, path: &Path) -> Result<Self, disk::DiskOpenError> {
        let records = DiskRecords::open(path, self.policy.store.capacity, self.clock.clone())?;
        let rules = self.policy.routes.iter();
        let rules = rules.filter_map(|route| route.idempotency.as_ref());
        if let Some(largest) = rules.map(|rule| rule.max_response).max() {
            records.set_max_response(largest as u64);
        }
        let buckets = MemoryBuckets::new(self.policy.max_clients, self.clock.clone());
        let buckets = Arc::new(buckets);
        let snapshots = BucketSnapshots::start(&records, Arc::clone(&buckets), self.clock.clone())?;
        Ok(Self {
            buckets: BucketStore::Memory(buckets),
            hash_keys: records.secret().into(),
            records: RecordStore::Disk(records),
            snapshots: Some(Arc::new(snapshots)),
            ..self
        })
    }

    /// Replaces the stores in memory by buckets and idempotency records in Redis.
    fn in_redis(self, settings: RedisSettings) -> Result<Self, redis::RedisOpenError> {
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
