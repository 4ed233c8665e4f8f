//! The responses of completed records, in a moka cache that is bounded by `max_bytes` and evicts the oldest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use moka::notification::RemovalCause;
use moka::sync::Cache;

use crate::idempotency::{RecordCounts, RecordId, StoredResponse};
use crate::store::capacity::StoreCapacity;
use crate::store::capacity_use::LogInterval;
use crate::store::log_evictions;

/// Approximate bytes of a cache entry besides its response.
const CACHE_OVERHEAD: usize = 160;

/// From this size in bytes, an insertion evicts immediately. After smaller responses, moka evicts only once in some
/// dozens of insertions.
const LARGE_RESPONSE: usize = 64 << 10;

pub(super) struct Responses {
    /// By the number of the claim.
    cache: Cache<u64, CachedResponse>,
    evictions: AtomicU64,
    log_interval: LogInterval,
}

#[derive(Clone)]
struct CachedResponse {
    id: RecordId,
    response: Arc<StoredResponse>,
}

impl Responses {
    /// `evicted` gets the record of each evicted response, and the number of its claim.
    pub(super) fn new(
        capacity: &StoreCapacity,
        evicted: impl Fn(RecordId, u64) + Send + Sync + 'static,
    ) -> Self {
        let cache = Cache::builder()
            .max_capacity(capacity.max_bytes)
            .weigher(|_, stored: &CachedResponse| {
                let weight = stored.response.weight() + CACHE_OVERHEAD;
                u32::try_from(weight).unwrap_or(u32::MAX)
            })
            // The default policy of moka can discard a new response instead of storing it.
            .eviction_policy(moka::policy::EvictionPolicy::lru())
            .eviction_listener(move |number: Arc<u64>, stored, cause| {
                if cause == RemovalCause::Size {
                    evicted(stored.id, *number);
                }
            })
            .build();
        Self {
            cache,
            evictions: AtomicU64::new(0),
            log_interval: LogInterval::default(),
        }
    }

    pub(super) fn insert(&self, number: u64, id: RecordId, response: Arc<StoredResponse>) {
        let is_large = response.weight() >= LARGE_RESPONSE;
        self.cache.insert(number, CachedResponse { id, response });
        if is_large {
            self.cache.run_pending_tasks();
        }
    }

    pub(super) fn remove(&self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            self.cache.invalidate(&number);
        }
    }

    /// Logs the total at most once a minute.
    pub(super) fn count_eviction(&self, at: Duration) {
        let evictions = self.evictions.fetch_add(1, Ordering::Relaxed) + 1;
        if self.log_interval.is_due(at) {
            log_evictions(evictions);
        }
    }

    pub(super) fn count_into(&self, counts: &mut RecordCounts) {
        self.cache.run_pending_tasks();
        counts.bytes = self.cache.weighted_size();
        counts.evictions = self.evictions.load(Ordering::Relaxed);
    }
}
