//! Rate limit buckets in Redis, shared by all gateways of a fleet.
//!
//! One script makes all charges of a request atomically, in one round trip and by the clock of Redis. On a cluster, one
//! script runs for each slot that has buckets of the request, all at the same time. If one script rejects the request,
//! the charges of the other scripts are refunded. Until the refund, these charges can cause the rejection of another
//! request, but no request is admitted beyond a quota. If the client disconnects before the refund starts, its tokens
//! are not refunded.
//!
//! The gateway has two tables in memory. [`Rejections`] caches rejections. If a client retries too early, the gateway
//! rejects the retry from this cache, without a call to Redis. [`LocalFallback`] has local buckets, which it updates
//! with every bucket state in a reply of Redis. It decides with these buckets while Redis does not respond. So each
//! gateway admits at most the quota in any interval, whether Redis responds or not. While Redis responds to all
//! gateways, all of them together admit at most the quota.

mod calls;
mod fallback;
mod rejections;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use self::calls::{ChargeReply, Group, Groups};
use self::fallback::{LocalFallback, States};
use self::rejections::{Observation, Rejections};
use super::Redis;
use super::client::RedisClient;
use super::script::{Call, READ_BUCKET, REFILL_BUCKET};
use super::settings::Nodes;
use crate::clock::Moment;
use crate::idempotency::StoreError;
use crate::store::memory::MemoryBuckets;
use crate::store::{BucketView, Part};
use crate::throttle::decision::{USUAL_LIMITS, full_at_under};
use crate::throttle::{
    BucketKey, BucketState, Buckets, Charge, ChargeOutcome, ChargeResult, Limit,
};

/// How long a rejection by a cluster is cached. This is short, because the charge that caused the rejection can be
/// refunded.
const CLUSTER_REJECTION_TTL: Duration = Duration::from_secs(1);

/// How long a rejection by a single server is cached. This is bounded, because an operator can empty Redis or set its
/// clock.
const SERVER_REJECTION_TTL: Duration = Duration::from_secs(10);

/// The rate limit buckets of a fleet. Each clone has its own connection and shares the rest.
#[derive(Debug)]
pub(crate) struct RedisBuckets {
    redis: Redis,
    client: RedisClient,
    /// Redis client for refunds, which continue after their request is dropped.
    refunds: RedisClient,
    rejections: Arc<Rejections>,
    fallback: Arc<LocalFallback>,
}

/// The charges of a request: first the charges of enforced rate limits, then the charges of shadow limits, which reject
/// no request.
#[derive(Clone, Copy, Debug)]
struct RequestCharges<'a> {
    all: &'a [Charge<'a>],
    /// Number of enforced charges. They are the first elements of `all`.
    enforced: usize,
}

impl<'a> RequestCharges<'a> {
    fn enforced(&self) -> &'a [Charge<'a>] {
        &self.all[..self.enforced]
    }

    fn shadow(&self) -> &'a [Charge<'a>] {
        &self.all[self.enforced..]
    }
}

/// The reply for each group of charges, or `None` if Redis did not respond.
type Replies = SmallVec<[Option<ChargeReply>; 1]>;

impl RedisBuckets {
    /// Creates the store of buckets in `redis`, with at most `max_clients` buckets in memory.
    pub(super) fn new(redis: &Redis, max_clients: usize) -> Self {
        let clock = redis.0.state.clock.clone();
        Self {
            redis: redis.clone(),
            client: redis.client(Part::Limits),
            refunds: redis.client(Part::Limits),
            rejections: Arc::new(Rejections::new()),
            fallback: Arc::new(LocalFallback::new(max_clients, clock)),
        }
    }

    /// Returns the buckets in memory, which decide while Redis does not respond.
    pub(crate) fn local(&self) -> &MemoryBuckets {
        &self.fallback.local
    }

    pub(crate) async fn read(
        &self,
        limit: &Limit,
        bucket: BucketKey,
    ) -> Result<BucketView, StoreError> {
        let state = self.client.state();
        let name = calls::name(&state.settings.prefix, bucket);
        let reply: (u64, u32, u64, u32) = self.client.run(&READ_BUCKET.call(&[name])).await?;
        let (seconds, nanos, refill_seconds, refill_nanos) = reply;
        let (now, refill) = (
            state.clock.now(),
            Duration::new(refill_seconds, refill_nanos),
        );
        let stored = BucketState {
            full_at: now.after(Duration::new(seconds, nanos)),
            refill: u64::try_from(refill.as_nanos()).unwrap_or(u64::MAX),
        };
        Ok(BucketView {
            full_at: full_at_under(limit, stored, now),
            is_shared: false,
        })
    }

    /// Refills a bucket, also for this gateway while Redis does not respond. Other gateways can reject its key from
    /// their caches for [`SERVER_REJECTION_TTL`].
    pub(crate) async fn refill(
        &self,
        limit: &Limit,
        bucket: BucketKey,
    ) -> Result<bool, StoreError> {
        let name = calls::name(&self.client.state().settings.prefix, bucket);
        self.client.run::<u64>(&REFILL_BUCKET.call(&[name])).await?;
        self.rejections.remove(bucket);
        self.fallback.refill(limit, bucket);
        Ok(true)
    }

    /// Charges all groups in Redis. Each call also reports the charges that this gateway made without Redis.
    async fn call(
        &self,
        charges: &RequestCharges<'_>,
        groups: &Groups,
        owed: &[Duration],
        now: Moment,
    ) -> Replies {
        let call = async |group: &Group| {
            let call = group.charge(charges, owed, now);
            let reply = self.client.run::<ChargeReply>(&call).await.ok();
            reply.filter(|reply| reply.owed.len() == group.indexes.len())
        };
        match &groups[..] {
            [group] => [call(group).await].into(),
            several => join_all(several.iter().map(call)).await.into(),
        }
    }

    /// Updates the local buckets and the cached rejections with the bucket states `before` and `after` the charges.
    /// `seen` has the time of the call and the time of its reply.
    fn observe(
        &self,
        charges: &RequestCharges<'_>,
        (before, after): (&States, &States),
        result: &ChargeResult,
        seen: Observation,
    ) {
        let rejected = matches!(result.decision.outcome, ChargeOutcome::Rejected { .. });
        for (index, charge) in charges.all.iter().enumerate() {
            let (Some(before), Some(after)) = (before[index], after[index]) else {
                continue;
            };
            // Redis computed this debt at some time between the call and its reply. The local bucket starts with the
            // same debt at the time of the reply, so its debt is never smaller than that of the bucket in Redis.
            let full_at = seen.replied.after(after.since(seen.called));
            let local = &self.fallback.local;
            local.observe(charge.limit, charge.bucket, full_at);
            let rejected = match index.checked_sub(charges.enforced) {
                None => rejected,
                Some(shadow) => result.exceeded.contains(&shadow),
            };
            let owing = |full_at: Moment| Observation {
                owed: full_at.since(seen.called),
                refill: charge.limit.quota.refill(),
                ..seen
            };
            if rejected {
                self.rejections.insert(charge.bucket, owing(before));
            } else {
                self.rejections.update(charge.bucket, owing(after));
            }
        }
    }

    /// Refunds the charges of a rejected request. The response is sent after the refund, so the next request of the
    /// client finds the tokens. The refund continues if the client disconnects.
    async fn refund(&self, charges: &RequestCharges<'_>, groups: &Groups, replies: &Replies) {
        let state = self.client.state();
        let mut calls: Vec<Call> = Vec::new();
        for (group, reply) in groups.iter().zip(replies) {
            if let Some(reply) = reply
                && reply.admitted
                && group.enforced > 0
            {
                calls.push(group.refund(charges, reply, &state.settings.prefix));
            }
        }
        if calls.is_empty() {
            return;
        }
        let (done, finished) = oneshot::channel::<()>();
        let client = self.refunds.clone();
        state.spawn_tracked(async move {
            // A failed refund is not repeated. The client gets these tokens back only as the bucket refills.
            join_all(calls.iter().map(|call| client.run::<u8>(call))).await;
            drop(done);
        });
        let _ = finished.await;
    }
}

impl Buckets for RedisBuckets {
    async fn charge(&self, enforced: &[Charge<'_>], shadow: &[Charge<'_>]) -> ChargeResult {
        let all = enforced.iter().chain(shadow).copied();
        let all: SmallVec<[Charge<'_>; USUAL_LIMITS]> = all.collect();
        let charges = RequestCharges {
            all: &all,
            enforced: enforced.len(),
        };
        let state = self.client.state();
        let epoch = state.epoch();
        let called = state.clock.now();
        // While the circuit breaker is open, cached rejections are not used, because `on_store_error` of each rate
        // limit decides.
        if !state.breaker(Part::Limits).is_open()
            && let Some(result) = self.rejections.lookup(&charges, epoch, called)
        {
            return result;
        }

        let is_cluster = matches!(state.settings.nodes, Nodes::Cluster(_));
        let groups = calls::groups(&charges, &state.settings.prefix, is_cluster);
        let unreported = all.iter().map(|charge| self.fallback.unreported(charge));
        let unreported: SmallVec<[BucketState; USUAL_LIMITS]> = unreported.collect();
        let owed = all.iter().zip(&unreported);
        let owed =
            owed.map(|(charge, &state)| full_at_under(charge.limit, state, called).since(called));
        let owed: SmallVec<[Duration; USUAL_LIMITS]> = owed.collect();
        let replies = self.call(&charges, &groups, &owed, called).await;
        let seen = Observation {
            epoch,
            called,
            replied: state.clock.now(),
            until: called.after(if is_cluster {
                CLUSTER_REJECTION_TTL
            } else {
                SERVER_REJECTION_TTL
            }),
            owed: Duration::ZERO,
            refill: Duration::ZERO,
        };

        let mut before = States::from_elem(None, all.len());
        for (group, reply) in groups.iter().zip(&replies) {
            let states = reply.iter().flat_map(|reply| &reply.owed);
            for (&index, &debt) in group.indexes.iter().zip(states) {
                before[index] = Some(called.after(debt));
                self.fallback.reported(&all[index], unreported[index]);
            }
        }
        let (result, after) = self.fallback.decide_all(&charges, &before, called);
        debug_assert!(
            groups.len() > 1
                || replies
                    .iter()
                    .flatten()
                    .all(|reply| reply.admitted == result.decision.is_admitted()),
            "the script and `decide` must agree: {replies:?}, {result:?}"
        );
        self.observe(&charges, (&before, &after), &result, seen);
        if !result.decision.is_admitted() {
            self.refund(&charges, &groups, &replies).await;
        }
        result
    }

    fn try_charge(&self, _: &[Charge<'_>], _: &[Charge<'_>]) -> Option<ChargeResult> {
        None
    }
}

impl Clone for RedisBuckets {
    fn clone(&self) -> Self {
        Self {
            redis: self.redis.clone(),
            client: self.client.with_own_connection(),
            refunds: self.refunds.clone(),
            rejections: Arc::clone(&self.rejections),
            fallback: Arc::clone(&self.fallback),
        }
    }
}

#[cfg(test)]
mod needs_redis;
