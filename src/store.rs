//! Where buckets and records are kept.
//!
//! The traits belong to their users; what is here implements them.

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

/// Buckets wherever the configuration wants them.
#[derive(Clone, Debug)]
pub(crate) enum BucketStore {
    /// In memory, whether or not they are written down now and then.
    Memory(Arc<MemoryBuckets>),
    /// In Redis: one for a fleet. A clone has a connection of its own.
    Redis(RedisBuckets),
}

impl BucketStore {
    /// The buckets that this gateway tracks by itself; with Redis, for when it cannot be asked.
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
            // Boxed, or every request would have room for it, those that are decided in memory included.
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

/// Records wherever the configuration wants them.
#[derive(Clone, Debug)]
pub enum RecordStore {
    /// In memory: gone with the process.
    Memory(MemoryRecords),
    /// On disk: what was acknowledged survives.
    Disk(DiskRecords),
    /// In Redis: one for a fleet.
    Redis(RedisRecords),
}

/// Awaits a call of the store there is. One of Redis is boxed: it is large, and every request with a key
/// would have room for it, those whose records are elsewhere included.
macro_rules! of_each {
    ($store:expr, $records:ident => $call:expr) => {
        match $store {
            RecordStore::Memory($records) => $call.await,
            RecordStore::Disk($records) => $call.await,
            RecordStore::Redis($records) => Box::pin($call).await,
        }
    };
}

impl RecordStore {
    /// Whether other gateways have records in it, too.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::Redis(_))
    }

    /// Returns the health of each part of the store that can fail. Of Redis, limits are a part too.
    pub fn health(&self) -> Vec<Health> {
        match self {
            Self::Memory(_) => Vec::new(),
            Self::Disk(records) => vec![records.health()],
            Self::Redis(records) => records.health().into(),
        }
    }

    /// How much there is in all of the store. On one that a fleet shares every record is looked at, so it is
    /// not to be asked often.
    pub async fn count(&self) -> Result<RecordCounts, StoreError> {
        match self {
            Self::Memory(_) | Self::Disk(_) => Ok(self.counts()),
            Self::Redis(records) => records.count().await,
        }
    }
}

impl Records for RecordStore {
    async fn claim(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        of_each!(self, records => records.claim(request))
    }

    async fn end(&self, permit: Permit, outcome: ExecutionOutcome) -> Result<(), StoreError> {
        of_each!(self, records => records.end(permit, outcome))
    }

    async fn find(
        &self,
        key: KeyHash,
        scope: Option<ScopeHash>,
        most: usize,
    ) -> Result<Vec<RecordInfo>, StoreError> {
        of_each!(self, records => records.find(key, scope, most))
    }

    async fn response(&self, id: RecordId) -> Result<Option<Arc<StoredResponse>>, StoreError> {
        of_each!(self, records => records.response(id))
    }

    async fn free_unknown(&self, id: RecordId) -> Result<bool, StoreError> {
        of_each!(self, records => records.free_unknown(id))
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

/// Says that responses had to go; now and then, not for each of them.
fn log_evictions(evictions: u64) {
    tracing::warn!(
        evictions,
        "responses to idempotency keys are being dropped to make room: their keys stay, and repeated requests \
         are told that the response was not kept; raise `store.max_bytes`, or shorten `ttl`"
    );
}

#[cfg(test)]
mod tests;
