//! Stores of rate limit buckets and idempotency records. The modules `throttle` and `idempotency` define their traits.

mod capacity;
mod capacity_use;
#[cfg(feature = "disk")]
pub(crate) mod disk;
#[cfg(any(feature = "disk", feature = "redis"))]
mod encoding;
mod ended_queues;
mod health;
#[cfg(any(feature = "disk", feature = "redis"))]
mod in_flight;
pub(crate) mod memory;
mod open;
#[cfg(feature = "redis")]
pub(crate) mod redis;

use std::sync::Arc;

use self::memory::MemoryBuckets;
#[cfg(feature = "redis")]
use self::redis::{buckets::RedisBuckets, records::RedisRecords};
use crate::clock::Moment;
use crate::idempotency::{
    Claim, ClaimRequest, ExecutionOutcome, KeyHash, Permit, RecordCounts, RecordId, RecordInfo,
    Records, ScopeHash, StoreError, StoredResponse,
};
use crate::throttle::{BucketKey, Buckets, Charge, ChargeResult, Limit};
#[cfg(feature = "disk")]
use disk::DiskRecords;
use memory::records::MemoryRecords;

pub use capacity::StoreCapacity;
pub(crate) use capacity_use::{Bound, CapacityUse};
pub(crate) use health::{Health, Part};
pub use open::OpenError;
pub(crate) use open::OpenStore;

#[derive(Clone, Debug)]
pub(crate) enum BucketStore {
    /// With `store.backend = "disk"`, snapshots of the buckets are also written to disk.
    Memory(Arc<MemoryBuckets>),
    #[cfg(feature = "redis")]
    Redis(RedisBuckets),
}

impl BucketStore {
    /// The buckets in the memory of this gateway. With Redis, they are used only while Redis does not respond.
    pub(crate) fn local(&self) -> &MemoryBuckets {
        match self {
            Self::Memory(buckets) => buckets,
            #[cfg(feature = "redis")]
            Self::Redis(buckets) => buckets.local(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketView {
    pub(crate) full_at: Moment,
    /// Whether the key uses an overflow bucket.
    pub(crate) is_shared: bool,
}

#[cfg(feature = "gateway")]
impl BucketStore {
    pub(crate) async fn read(
        &self,
        limit: &Limit,
        bucket: BucketKey,
    ) -> Result<BucketView, StoreError> {
        match self {
            Self::Memory(_) => Ok(self.read_local(limit, bucket)),
            Self::Redis(buckets) => buckets.read(limit, bucket).await,
        }
    }

    pub(crate) fn read_local(&self, limit: &Limit, bucket: BucketKey) -> BucketView {
        let (full_at, is_tracked) = self.local().full_at(limit, bucket);
        BucketView {
            full_at,
            is_shared: !is_tracked && full_at > self.local().now(),
        }
    }

    /// Returns `false` if the key uses an overflow bucket.
    pub(crate) async fn refill(
        &self,
        limit: &Limit,
        bucket: BucketKey,
    ) -> Result<bool, StoreError> {
        match self {
            Self::Memory(buckets) => Ok(buckets.refill(limit, bucket)),
            Self::Redis(buckets) => buckets.refill(limit, bucket).await,
        }
    }
}

impl Buckets for BucketStore {
    async fn charge(&self, enforced: &[Charge<'_>], shadow: &[Charge<'_>]) -> ChargeResult {
        match self {
            Self::Memory(buckets) => buckets.charge(enforced, shadow).await,
            // Boxed, because it is large and would enlarge the futures of requests that do not use Redis.
            #[cfg(feature = "redis")]
            Self::Redis(buckets) => Box::pin(buckets.charge(enforced, shadow)).await,
        }
    }

    fn try_charge(&self, enforced: &[Charge<'_>], shadow: &[Charge<'_>]) -> Option<ChargeResult> {
        match self {
            Self::Memory(buckets) => buckets.try_charge(enforced, shadow),
            #[cfg(feature = "redis")]
            Self::Redis(buckets) => buckets.try_charge(enforced, shadow),
        }
    }
}

/// The store of idempotency records that the configuration selects.
#[derive(Clone, Debug)]
pub enum RecordStore {
    /// A restart of the process loses all records.
    Memory(MemoryRecords),
    /// Records whose write was acknowledged survive a crash.
    #[cfg(feature = "disk")]
    Disk(DiskRecords),
    /// All gateways of a fleet share the records.
    #[cfg(feature = "redis")]
    Redis(RedisRecords),
}

/// The future of a Redis call is boxed, because it is large and would enlarge those of the other stores.
macro_rules! call {
    ($store:expr, $records:ident => $call:expr) => {
        match $store {
            RecordStore::Memory($records) => $call.await,
            #[cfg(feature = "disk")]
            RecordStore::Disk($records) => $call.await,
            #[cfg(feature = "redis")]
            RecordStore::Redis($records) => Box::pin($call).await,
        }
    };
}

impl RecordStore {
    /// Whether other gateways use the same records.
    pub fn is_shared(&self) -> bool {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(_) => true,
            _ => false,
        }
    }

    /// Health of each part that can fail: nothing in memory, the records on disk, buckets and records in Redis.
    pub fn health(&self) -> Vec<Health> {
        match self {
            Self::Memory(_) => Vec::new(),
            #[cfg(feature = "disk")]
            Self::Disk(records) => vec![records.health()],
            #[cfg(feature = "redis")]
            Self::Redis(records) => records.health().into(),
        }
    }

    /// How often Redis had lost its data; `None` for the other stores.
    #[cfg(feature = "redis")]
    pub(crate) fn redis_data_losses(&self) -> Option<u64> {
        match self {
            Self::Redis(records) => Some(records.data_losses()),
            Self::Memory(_) => None,
            #[cfg(feature = "disk")]
            Self::Disk(_) => None,
        }
    }

    /// `None` if Redis has no `maxmemory`.
    #[cfg_attr(
        not(feature = "redis"),
        expect(clippy::unnecessary_wraps, reason = "the other stores have a maximum")
    )]
    pub fn capacity_use(&self) -> Option<CapacityUse> {
        match self {
            Self::Memory(records) => Some(records.capacity_use()),
            #[cfg(feature = "disk")]
            Self::Disk(records) => Some(records.capacity_use()),
            #[cfg(feature = "redis")]
            Self::Redis(records) => records.capacity_use(),
        }
    }

    /// Slow in Redis, because it reads every record.
    #[cfg(feature = "gateway")]
    pub async fn count(&self) -> Result<RecordCounts, StoreError> {
        match self {
            Self::Memory(_) | Self::Disk(_) => Ok(self.counts()),
            Self::Redis(records) => records.count().await,
        }
    }
}

impl Records for RecordStore {
    async fn claim(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        call!(self, records => records.claim(request))
    }

    async fn end(&self, permit: Permit, outcome: ExecutionOutcome) -> Result<(), StoreError> {
        call!(self, records => records.end(permit, outcome))
    }

    async fn find(
        &self,
        key: KeyHash,
        scope: Option<ScopeHash>,
        most: usize,
    ) -> Result<Vec<RecordInfo>, StoreError> {
        call!(self, records => records.find(key, scope, most))
    }

    async fn response(&self, id: RecordId) -> Result<Option<Arc<StoredResponse>>, StoreError> {
        call!(self, records => records.response(id))
    }

    async fn free_unknown(&self, id: RecordId) -> Result<bool, StoreError> {
        call!(self, records => records.free_unknown(id))
    }

    fn is_in_memory(&self) -> bool {
        matches!(self, Self::Memory(_))
    }

    fn counts(&self) -> RecordCounts {
        match self {
            Self::Memory(records) => records.counts(),
            #[cfg(feature = "disk")]
            Self::Disk(records) => records.counts(),
            #[cfg(feature = "redis")]
            Self::Redis(records) => records.counts(),
        }
    }
}

/// The caller limits the frequency of the log.
fn log_evictions(evictions: u64) {
    tracing::warn!(
        evictions,
        "stored responses evicted, because the store is at `store.max_bytes`: retries of these requests are rejected \
         instead of replayed; raise `store.max_bytes`, or shorten `ttl`"
    );
}

#[cfg(test)]
pub(crate) mod tests;
