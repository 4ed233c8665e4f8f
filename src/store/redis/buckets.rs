//! Buckets in Redis, the same for all gateways of a fleet.
//!
//! One script makes all charges of a request, by Redis's clock: one round trip, and one atomic step. On a cluster it
//! is one script for each slot that has some of the buckets, all at the same time. If one rejects, the charges of the
//! others are refunded. Until then another request may be rejected for them, but none is ever admitted beyond a
//! quota. A client that disconnects in between has spent its charges, as during a delay.
//!
//! Two things are kept beside Redis. [`Rejections`] rejects clients that retry too early without a call. [`Fallback`]
//! observes every state that Redis returns in local buckets, and decides with them where Redis does not respond. So
//! each gateway admits at most the quota in any interval, whether Redis responds or not. All gateways together do
//! while Redis responds to all of them.

mod calls;
mod fallback;
mod rejections;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use self::calls::{ChargeReply, Group, Groups};
use self::fallback::{Fallback, States};
use self::rejections::{Observation, Rejections};
use super::Redis;
use super::client::Client;
use super::script::Call;
use super::settings::Nodes;
use crate::clock::Moment;
use crate::store::Part;
use crate::store::memory::MemoryBuckets;
use crate::throttle::decision::USUAL_LIMITS;
use crate::throttle::{Buckets, Charge, ChargeOutcome, ChargeResult};

/// How long a rejection by a cluster is cached. It may be due to a charge that is about to be refunded.
const TRUST_IN_CLUSTER: Duration = Duration::from_secs(1);

/// How long a rejection by a single server is cached, in case an operator empties Redis or sets its clock.
const TRUST_IN_SERVER: Duration = Duration::from_secs(10);

/// All buckets of a fleet. A clone has its own connection and shares the rest.
#[derive(Debug)]
pub(crate) struct RedisBuckets {
    redis: Redis,
    client: Client,
    /// For refunds, which continue when their request is dropped.
    refunds: Client,
    rejections: Arc<Rejections>,
    fallback: Arc<Fallback>,
}

/// The charges of a request: first the enforced ones, then those of shadow limits.
#[derive(Clone, Copy, Debug)]
struct Charges<'a> {
    all: &'a [Charge<'a>],
    /// The number of enforced charges.
    enforced: usize,
}

impl<'a> Charges<'a> {
    fn enforced(&self) -> &'a [Charge<'a>] {
        &self.all[..self.enforced]
    }

    fn watched(&self) -> &'a [Charge<'a>] {
        &self.all[self.enforced..]
    }
}

/// The reply of each group, or `None` if Redis did not respond.
type Replies = SmallVec<[Option<ChargeReply>; 1]>;

impl RedisBuckets {
    /// Returns the buckets in `redis`, with local ones for `max_clients`.
    pub(super) fn new(redis: &Redis, max_clients: usize) -> Self {
        let clock = redis.0.state.clock.clone();
        Self {
            redis: redis.clone(),
            client: redis.client(Part::Limits),
            refunds: redis.client(Part::Limits),
            rejections: Arc::new(Rejections::new()),
            fallback: Arc::new(Fallback::new(max_clients, clock)),
        }
    }

    /// Returns the buckets that decide where Redis does not respond.
    pub(crate) fn local(&self) -> &MemoryBuckets {
        &self.fallback.local
    }

    /// Charges all groups, after reporting what their buckets owe at least.
    async fn call(&self, charges: &Charges<'_>, groups: &Groups, owed: &[Duration]) -> Replies {
        let call = async |group: &Group| {
            let call = group.charge(charges, owed);
            let reply = self.client.run::<ChargeReply>(&call).await.ok();
            reply.filter(|reply| reply.owed.len() == group.indexes.len())
        };
        match &groups[..] {
            [group] => [call(group).await].into(),
            several => join_all(several.iter().map(call)).await.into(),
        }
    }

    /// Updates the local buckets and the cached rejections with the states that Redis returned; `seen` has their times.
    fn learn(
        &self,
        charges: &Charges<'_>,
        (before, after): (&States, &States),
        judgement: &ChargeResult,
        seen: Observation,
    ) {
        let rejected = matches!(judgement.decision.outcome, ChargeOutcome::Rejected { .. });
        for (index, charge) in charges.all.iter().enumerate() {
            let (Some(before), Some(after)) = (before[index], after[index]) else {
                continue;
            };
            // Redis computed this debt at some time between the call and its reply. Locally it counts from the reply,
            // so that a bucket which this gateway goes on with owes no less than in Redis.
            let full_at = seen.replied.after(after.since(seen.called));
            let local = &self.fallback.local;
            local.observe(charge.limit.id, charge.bucket, full_at);
            let rejected = match index.checked_sub(charges.enforced) {
                None => rejected,
                Some(watched) => judgement.exceeded.contains(&watched),
            };
            let owing = |full_at: Moment| Observation {
                owed: full_at.since(seen.called),
                ..seen
            };
            if rejected {
                self.rejections.insert(charge.bucket, owing(before));
            } else {
                self.rejections.update(charge.bucket, owing(after));
            }
        }
    }

    /// Refunds the charges of a request that is not admitted. The request waits for it, so that the client's next
    /// request finds it done. It is done also if the client disconnects.
    async fn refund(&self, charges: &Charges<'_>, groups: &Groups, replies: &Replies) {
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
            // A refund that fails costs its client these tokens until the bucket has refilled.
            join_all(calls.iter().map(|call| client.run::<u8>(call))).await;
            drop(done);
        });
        let _ = finished.await;
    }
}

impl Buckets for RedisBuckets {
    async fn charge(&self, enforced: &[Charge<'_>], watched: &[Charge<'_>]) -> ChargeResult {
        let all = enforced.iter().chain(watched).map(calls::per_quota);
        let all: SmallVec<[Charge<'_>; USUAL_LIMITS]> = all.collect();
        let charges = Charges {
            all: &all,
            enforced: enforced.len(),
        };
        let state = self.client.state();
        let epoch = state.epoch();
        let called = state.clock.now();
        // While the breaker is open, the `on_store_error` of each limit decides.
        if !state.breaker(Part::Limits).is_open()
            && let Some(judgement) = self.rejections.judge(&charges, epoch, called)
        {
            return judgement;
        }

        let is_cluster = matches!(state.settings.nodes, Nodes::Cluster(_));
        let groups = calls::groups(&charges, &state.settings.prefix, is_cluster);
        let unreported = |charge: &Charge<'_>| self.fallback.unreported(charge.bucket);
        let owed = all.iter().map(|charge| unreported(charge).since(called));
        let owed: SmallVec<[Duration; USUAL_LIMITS]> = owed.collect();
        let replies = self.call(&charges, &groups, &owed).await;
        let seen = Observation {
            epoch,
            called,
            replied: state.clock.now(),
            until: called.after(if is_cluster {
                TRUST_IN_CLUSTER
            } else {
                TRUST_IN_SERVER
            }),
            owed: Duration::ZERO,
        };

        let mut before = States::from_elem(None, all.len());
        for (group, reply) in groups.iter().zip(&replies) {
            let states = reply.iter().flat_map(|reply| &reply.owed);
            for (&index, &debt) in group.indexes.iter().zip(states) {
                before[index] = Some(called.after(debt));
                let reported = called.after(owed[index]);
                self.fallback.reported(all[index].bucket, reported);
            }
        }
        let (judgement, after) = self.fallback.judge(&charges, &before, called);
        debug_assert!(
            groups.len() > 1
                || replies
                    .iter()
                    .flatten()
                    .all(|reply| reply.admitted == judgement.decision.is_admitted()),
            "the script and `decide` come to one decision: {replies:?}, {judgement:?}"
        );
        self.learn(&charges, (&before, &after), &judgement, seen);
        if !judgement.decision.is_admitted() {
            self.refund(&charges, &groups, &replies).await;
        }
        judgement
    }

    fn try_charge(&self, _: &[Charge<'_>], _: &[Charge<'_>]) -> Option<ChargeResult> {
        None
    }
}

impl Clone for RedisBuckets {
    fn clone(&self) -> Self {
        Self {
            redis: self.redis.clone(),
            client: self.client.another(),
            refunds: self.refunds.clone(),
            rejections: Arc::clone(&self.rejections),
            fallback: Arc::clone(&self.fallback),
        }
    }
}

#[cfg(test)]
mod tests;
