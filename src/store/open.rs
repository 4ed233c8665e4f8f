//! Opens the store of rate limit buckets and idempotency records: in memory, on disk or in Redis.
//!
//! If a store on disk cannot be opened, this is an error, because requests could be executed twice without the
//! idempotency records. If Redis cannot be reached, the store is opened and connects later. If Redis can be reached but
//! could lose records because of its settings (for example an eviction policy), this is an error.

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

/// An open store of rate limit buckets and idempotency records. Clones share the store.
#[derive(Clone, Debug)]
pub(crate) struct OpenStore {
    /// Store of the buckets of rate limits.
    pub(crate) buckets: BucketStore,
    /// Store of idempotency records.
    pub(crate) records: RecordStore,
    /// Keys of the hashes under which buckets and records are stored.
    pub(crate) hash_keys: HashKeySource,
    /// Redis client of the buckets and the records. `None` if the store is not Redis.
    #[cfg(feature = "redis")]
    pub(crate) redis: Option<Redis>,
    /// Writer of bucket snapshots, which runs until it is closed or dropped. `None` unless the store is on disk.
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
    /// Creates an empty store in memory, with up to `max_clients` buckets.
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

    /// Opens the store in the directory `path`: idempotency records on disk, and up to `max_clients` buckets in memory
    /// with snapshots on disk.
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

    /// Opens the store in Redis. `keyed` states whether it also stores idempotency records. While Redis does not
    /// respond, up to `max_clients` buckets in memory are used instead of those in Redis.
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

    /// Closes the store: writes the last snapshot and the last records, and ends the threads of the store. Blocks for
    /// this time. Later operations on records fail, unless the store is in memory.
    pub(crate) fn close(&self) {
        match &self.records {
            RecordStore::Memory(_) => {}
            #[cfg(feature = "disk")]
            RecordStore::Disk(records) => {
                // The snapshot is written before the store directory is unlocked.
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
