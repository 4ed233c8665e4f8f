//! Opens the store of buckets and records.
//!
//! A store on disk that cannot be opened is an error, because requests could be executed twice without the records. A
//! Redis that cannot be reached is not: the store connects later. A Redis that could lose records because of its
//! settings (for example an eviction policy) is an error.

use std::sync::Arc;

use thiserror::Error;

use super::memory::MemoryBuckets;
use super::memory::records::MemoryRecords;
use super::{BucketStore, RecordStore, StoreCapacity};
#[cfg(feature = "disk")]
use super::{
    disk::bucket_snapshots::BucketSnapshots,
    disk::{DiskOpenError, DiskRecords},
};
#[cfg(feature = "redis")]
use super::{
    redis::settings::RedisSettings,
    redis::url::RedisUrlError,
    redis::{Redis, RedisOpenError},
};
use crate::clock::Clock;
use crate::request::hash_keys::HashKeySource;

/// Clones share the store.
#[derive(Clone, Debug)]
pub(crate) struct OpenStore {
    pub(crate) buckets: BucketStore,
    pub(crate) records: RecordStore,
    pub(crate) hash_keys: HashKeySource,
    /// `None` if the store is not Redis.
    #[cfg(feature = "redis")]
    pub(crate) redis: Option<Redis>,
    /// `None` unless the store is on disk.
    #[cfg(feature = "disk")]
    pub(crate) snapshots: Option<Arc<BucketSnapshots>>,
}

/// Error of opening a store. The error message ends with a remedy.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The store on disk cannot be opened.
    #[cfg(feature = "disk")]
    #[error(transparent)]
    Disk(#[from] DiskOpenError),
    /// The store in Redis cannot be opened.
    #[cfg(feature = "redis")]
    #[error(transparent)]
    Redis(#[from] RedisOpenError),
    /// The URL of the Redis server is invalid.
    #[cfg(feature = "redis")]
    #[error(transparent)]
    RedisUrl(#[from] RedisUrlError),
}

impl OpenStore {
    pub(crate) fn in_memory(max_clients: usize, capacity: StoreCapacity, clock: Clock) -> Self {
        let buckets = MemoryBuckets::new(max_clients, clock.clone());
        Self {
            buckets: BucketStore::Memory(Arc::new(buckets)),
            records: RecordStore::Memory(MemoryRecords::new(capacity, clock)),
            hash_keys: HashKeySource::random(),
            #[cfg(feature = "redis")]
            redis: None,
            #[cfg(feature = "disk")]
            snapshots: None,
        }
    }

    /// Buckets are in memory, with snapshots on disk.
    #[cfg(feature = "disk")]
    pub(crate) fn on_disk(
        path: &std::path::Path,
        max_clients: usize,
        capacity: StoreCapacity,
        clock: Clock,
    ) -> Result<Self, DiskOpenError> {
        let records = DiskRecords::open(path, capacity, clock.clone())?;
        let buckets = Arc::new(MemoryBuckets::new(max_clients, clock.clone()));
        let snapshots = BucketSnapshots::start(&records, Arc::clone(&buckets), clock)?;
        Ok(Self {
            buckets: BucketStore::Memory(buckets),
            hash_keys: records.secret().into(),
            records: RecordStore::Disk(records),
            #[cfg(feature = "redis")]
            redis: None,
            snapshots: Some(Arc::new(snapshots)),
        })
    }

    /// `keyed` states whether Redis also stores idempotency records. While Redis does not respond, up to `max_clients`
    /// buckets in memory are used.
    #[cfg(feature = "redis")]
    pub(crate) fn in_redis(
        settings: RedisSettings,
        keyed: bool,
        max_clients: usize,
        clock: Clock,
    ) -> Result<Self, RedisOpenError> {
        let redis = Redis::open(settings, keyed, clock)?;
        Ok(Self {
            buckets: BucketStore::Redis(redis.buckets(max_clients)),
            records: RecordStore::Redis(redis.records()),
            hash_keys: redis.hash_keys(),
            redis: Some(redis),
            #[cfg(feature = "disk")]
            snapshots: None,
        })
    }

    /// Writes the last snapshot and the last records. Blocks for this time. Later operations on records fail, unless
    /// the store is in memory.
    pub(crate) fn close(&self) {
        match &self.records {
            RecordStore::Memory(_) => {}
            #[cfg(feature = "disk")]
            RecordStore::Disk(records) => {
                // Before the store directory is unlocked.
                if let Some(snapshots) = &self.snapshots {
                    snapshots.close();
                }
                records.close();
            }
            #[cfg(feature = "redis")]
            RecordStore::Redis(_) => {
                if let Some(redis) = &self.redis {
                    redis.close();
                }
            }
        }
    }
}
