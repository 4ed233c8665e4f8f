//! Stores of rate limit buckets and idempotency records: in memory, on disk and in Redis.
//!
//! The modules `throttle` and `idempotency` define the traits of these stores. This module implements the traits.

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

/// The store of rate limit buckets that the configuration selects.
#[derive(Clone, Debug)]
pub(crate) enum BucketStore {
    /// The buckets are in memory. If `store.backend` is `"disk"`, the gateway also writes snapshots of them to disk.
    Memory(Arc<MemoryBuckets>),
    /// The buckets are in Redis, and all gateways of a fleet share them. Each clone has its own connection.
    #[cfg(feature = "redis")]
    Redis(RedisBuckets),
}

impl BucketStore {
    /// Returns the buckets in the memory of this gateway. If the store is Redis, the gateway uses these buckets only
    /// while Redis does not respond.
    pub(crate) fn local(&self) -> &MemoryBuckets {
        match self {
            Self::Memory(buckets) => buckets,
            #[cfg(feature = "redis")]
            Self::Redis(buckets) => buckets.local(),
        }
    }
}

/// State of a bucket that is read without a charge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketView {
    pub(crate) full_at: Moment,
    /// Whether the key has no bucket of its own and uses an overflow bucket.
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

    /// Refills a bucket. Returns `false` if the key uses an overflow bucket.
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
            // This future is boxed because it is large. Unboxed, it would also enlarge the futures of requests that do
            // not use Redis.
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
    /// The records are in memory. A restart of the process loses all of them.
    Memory(MemoryRecords),
    /// The records are on disk. Records whose write was acknowledged survive a crash.
    #[cfg(feature = "disk")]
    Disk(DiskRecords),
    /// The records are in Redis, and all gateways of a fleet share them.
    #[cfg(feature = "redis")]
    Redis(RedisRecords),
}

/// Awaits a call of the selected record store. The future of a Redis call is boxed because it is large. Unboxed, it
/// would also enlarge the futures of requests that use another store.
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
    /// Returns whether other gateways use the same record store, which is true only with Redis.
    pub fn is_shared(&self) -> bool {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(_) => true,
            _ => false,
        }
    }

    /// Returns the health of each part of the store that can fail. A memory store has no such part. In a disk store,
    /// the idempotency records can fail. In a Redis store, the rate limit buckets can fail as well.
    pub fn health(&self) -> Vec<Health> {
        match self {
            Self::Memory(_) => Vec::new(),
            #[cfg(feature = "disk")]
            Self::Disk(records) => vec![records.health()],
            #[cfg(feature = "redis")]
            Self::Redis(records) => records.health().into(),
        }
    }

    /// Returns how full the store is; `None` if Redis has no `maxmemory`.
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

    /// Counts all idempotency records of the store, by state. If the store is Redis, this call is slow, because it
    /// reads every record.
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

    fn claims_at_once(&self) -> bool {
        match self {
            Self::Memory(records) => records.claims_at_once(),
            #[cfg(feature = "disk")]
            Self::Disk(records) => records.claims_at_once(),
            #[cfg(feature = "redis")]
            Self::Redis(records) => records.claims_at_once(),
        }
    }

    fn copies_replays(&self) -> bool {
        match self {
            Self::Memory(records) => records.copies_replays(),
            #[cfg(feature = "disk")]
            Self::Disk(records) => records.copies_replays(),
            #[cfg(feature = "redis")]
            Self::Redis(records) => records.copies_replays(),
        }
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

/// Logs how many stored responses the store has evicted since startup. The caller limits the frequency of the log.
fn log_evictions(evictions: u64) {
    tracing::warn!(
        evictions,
        "stored responses evicted, because the store is at `store.max_bytes`: retries of these requests are rejected \
         instead of replayed; raise `store.max_bytes`, or shorten `ttl`"
    );
}

#[cfg(test)]
pub(crate) mod tests;
