//! Rate limit buckets in Redis, shared by all gateways of a fleet.
//!
//! One script makes all charges of a request atomically, in one round trip and by the clock of Redis. On a cluster, one
//! script runs for each slot that has buckets of the request, all at the same time. If one script rejects the request,
//! the charges of the others are refunded. Until then they can cause the rejection of another request, but no request
//! is admitted beyond a quota. If the client disconnects before the refund starts, its tokens are not refunded.
//!
//! [`LocalFallback`] has local buckets, updated with every bucket state in a reply of Redis. It decides with them while
//! Redis does not respond. So each gateway admits at most the quota in any interval, whether Redis responds or not, and
//! while it responds to all gateways, all of them together do.

mod calls;
mod fallback;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use self::calls::{ChargeReply, Group, Groups};
use self::fallback::{LocalFallback, States};
use super::Redis;
use super::client::RedisClient;
use super::script::{Call, READ_BUCKET, REFILL_BUCKET};
use super::settings::Nodes;
use crate::clock::Moment;
use crate::idempotency::StoreError;
use crate::store::memory::MemoryBuckets;
use crate::store::{BucketView, Part};
use crate::throttle::decision::{USUAL_LIMITS, full_at_under};
use crate::throttle::{BucketKey, BucketState, Buckets, Charge, ChargeResult, Limit};

/// Each clone has its own connection and shares the rest.
#[derive(Debug)]
pub(crate) struct RedisBuckets {
    redis: Redis,
    client: RedisClient,
    /// For refunds, which continue on the runtime of the monitor after their request is dropped.
    refunds: RedisClient,
    fallback: Arc<LocalFallback>,
}

/// The charges of a request: first those of enforced rate limits, then those of shadow limits.
#[derive(Clone, Copy, Debug)]
struct RequestCharges<'a> {
    all: &'a [Charge<'a>],
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

/// The reply for each group of charges; `None` if Redis did not respond.
type Replies = SmallVec<[Option<ChargeReply>; 1]>;

impl RedisBuckets {
    pub(super) fn new(redis: &Redis, max_clients: usize) -> Self {
        let clock = redis.0.state.clock.clone();
        Self {
            redis: redis.clone(),
            client: redis.client(Part::Limits),
            refunds: redis.client(Part::Limits),
            fallback: Arc::new(LocalFallback::new(max_clients, clock)),
        }
    }

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
        let reply: (u64, u32, u64, u32) =
            self.client.run(&Call::new(&READ_BUCKET, &[name])).await?;
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

    /// Refills a bucket, also for this gateway while Redis does not respond.
    pub(crate) async fn refill(
        &self,
        limit: &Limit,
        bucket: BucketKey,
    ) -> Result<bool, StoreError> {
        let name = calls::name(&self.client.state().settings.prefix, bucket);
        self.client
            .run::<u64>(&Call::new(&REFILL_BUCKET, &[name]))
            .await?;
        self.fallback.refill(limit, bucket);
        Ok(true)
    }

    /// Each call also reports the charges that this gateway made without Redis.
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

    /// The response is sent after the refund, so the next request of the client finds the tokens. The refund continues
    /// if the client disconnects.
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
            // Not repeated: the client gets these tokens back only as the bucket refills.
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
        let called = state.clock.now();
        let is_cluster = matches!(state.settings.nodes, Nodes::Cluster(_));
        let groups = calls::groups(&charges, &state.settings.prefix, is_cluster);
        let unreported = all.iter().map(|charge| self.fallback.unreported(charge));
        let unreported: SmallVec<[BucketState; USUAL_LIMITS]> = unreported.collect();
        let owed = all.iter().zip(&unreported);
        let owed =
            owed.map(|(charge, &state)| full_at_under(charge.limit, state, called).since(called));
        let owed: SmallVec<[Duration; USUAL_LIMITS]> = owed.collect();
        let replies = self.call(&charges, &groups, &owed, called).await;
        let returned = state.clock.now();

        let mut states = States::from_elem(called, all.len());
        for (group, reply) in groups.iter().zip(&replies) {
            let debts = reply.iter().flat_map(|reply| &reply.owed);
            for (&index, &debt) in group.indexes.iter().zip(debts) {
                states[index] = called.after(debt);
                self.fallback.reported(&all[index], unreported[index]);
            }
        }
        let observe = |states: &States| {
            for (charge, state) in all.iter().zip(states) {
                // Redis computed this debt between the call and its reply. From the time of the reply on, the debt of
                // the local bucket is never smaller than in Redis. Without a reply, the debt is zero and changes
                // nothing.
                let full_at = returned.after(state.since(called));
                let local = &self.fallback.local;
                local.observe(charge.limit, charge.bucket, full_at);
            }
        };
        // A rejection by Redis holds, although another server of the cluster did not reply.
        let is_rejected = replies.iter().flatten().any(|reply| !reply.admitted);
        let result = if is_rejected || replies.iter().all(Option::is_some) {
            let result = fallback::decide_by(&mut states, &charges, called);
            observe(&states);
            result
        } else {
            observe(&states);
            self.fallback.decide(&charges, called)
        };
        debug_assert!(
            groups.len() > 1
                || replies
                    .iter()
                    .flatten()
                    .all(|reply| reply.admitted == result.decision.is_admitted()),
            "the script and `decide` must agree: {replies:?}, {result:?}"
        );
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
            fallback: Arc::clone(&self.fallback),
        }
    }
}

#[cfg(test)]
mod needs_redis;
