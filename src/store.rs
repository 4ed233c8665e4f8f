//! Stores of buckets and records: in memory, on disk and in Redis.
//!
//! `throttle` and `idempotency` define the traits. This module implements them.

mod capacity;
pub(crate) mod disk;
mod encoding;
mod health;
mod in_flight;
pub(crate) mod memory;
pub(crate) mod redis;

use std::sync::Arc;

use self::memory::MemoryBuckets;
use self::redis::buckets::RedisBuckets;
use self::redis::records::RedisRecords;
use crate::idempotency::{
    Claim, ClaimRequest, ExecutionOutcome, KeyHash, Permit, RecordCounts, RecordId, RecordInfo,
    Records, ScopeHash, StoreError, StoredResponse,
};
use crate::throttle::{Buckets, Charge, ChargeResult};
use disk::DiskRecords;
use memory::records::MemoryRecords;

pub use capacity::StoreCapacity;
pub(crate) use health::{Health, Part};

/// The store of buckets that the configuration selects.
#[derive(Clone, Debug)]
pub(crate) enum BucketStore {
    /// In memory, with or without periodic snapshots on disk.
    Memory(Arc<MemoryBuckets>),
    /// In Redis, shared by a fleet of gateways. Each clone has its own connection.
    Redis(RedisBuckets),
}

impl BucketStore {
    /// Returns the buckets in the memory of this gateway. With Redis, they are used while Redis does not respond.
    pub(crate) fn local(&self) -> &MemoryBuckets {
        match self {
            Self::Memory(buckets) => buckets,
            Self::Redis(buckets) => buckets.local(),
        }
    }
}

impl Buckets for BucketStore {
    async fn charge(&self, enforced: &[Charge<'_>], watched: &[Charge<'_>]) -> ChargeResult {
        match self {
            Self::Memory(buckets) => buckets.charge(enforced, watched).await,
            // Boxed, because this future is large: unboxed, it would also enlarge requests that use memory.
            Self::Redis(buckets) => Box::pin(buckets.charge(enforced, watched)).await,
        }
    }

    fn try_charge(&self, enforced: &[Charge<'_>], watched: &[Charge<'_>]) -> Option<ChargeResult> {
        match self {
            Self::Memory(buckets) => buckets.try_charge(enforced, watched),
            Self::Redis(buckets) => buckets.try_charge(enforced, watched),
        }
    }
}

/// The store of idempotency records that the configuration selects.
#[derive(Clone, Debug)]
pub enum RecordStore {
    /// In memory. A restart of the process loses all records.
    Memory(MemoryRecords),
    /// On disk. Acknowledged records survive a crash.
    Disk(DiskRecords),
    /// In Redis, shared by a fleet of gateways.
    Redis(RedisRecords),
}

/// Awaits a call of the selected store. The future of a Redis call is boxed, because it is large: unboxed, it would
/// also enlarge requests that use another store.
macro_rules! call {
    ($store:expr, $records:ident => $call:expr) => {
        match $store {
            RecordStore::Memory($records) => $call.await,
            RecordStore::Disk($records) => $call.await,
            RecordStore::Redis($records) => Box::pin($call).await,
        }
    };
}

impl RecordStore {
    /// Returns whether other gateways use the same store.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Redis(_))
    }

    /// Returns the health of each part of the store that can fail. With Redis, limits are a part too.
    pub fn health(&self) -> Vec<Health> {
        match self {
            Self::Memory(_) => Vec::new(),
            Self::Disk(records) => vec![records.health()],
            Self::Redis(records) => records.health().into(),
        }
    }

    /// Counts all records of the store, by state. In Redis this reads every record, so do not call it often.
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

    fn copies_replays(&self) -> bool {
        match self {
            Self::Memory(records) => records.copies_replays(),
            Self::Disk(records) => records.copies_replays(),
            Self::Redis(records) => records.copies_replays(),
        }
    }

    fn counts(&self) -> RecordCounts {
        match self {
            Self::Memory(records) => records.counts(),
            Self::Disk(records) => records.counts(),
            Self::Redis(records) => records.counts(),
        }
    }
}

/// Logs the number of evictions so far. The caller limits how often.
fn log_evictions(evictions: u64) {
    tracing::warn!(
        evictions,
        "stored responses evicted, because the store is at `store.max_bytes`: retries of these requests are rejected \
         instead of replayed; raise `store.max_bytes`, or shorten `ttl`"
    );
}

#[cfg(test)]
mod tests;
