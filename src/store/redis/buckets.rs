//! Buckets in Redis, the same for all gateways of a fleet.
//!
//! One script makes all charges of a request, by Redis's clock: one round trip, and one atomic step. On a cluster it
//! is one script for each slot that has some of the buckets, all at the same time. If one rejects, the charges of the
//! others are refunded. Until then another request may be rejected for them, but none is ever admitted beyond a
//! quota. A client that disconnects in between has spent its charges, as during a delay.
//!
//! Three things are kept beside Redis. [`Refusals`] rejects clients that retry too early without a call. A table in
//! memory observes every state that Redis returns, and decides where Redis does not respond. [`Backlog`] has
//! the charges made in that table until Redis knows them. So each gateway admits at most the quota in any interval,
//! whether Redis responds or not. All gateways together do while Redis responds to all of them.

mod backlog;
mod place;
mod refusals;
mod scripts;
mod verdict;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use self::backlog::Backlog;
use self::place::{Group, Groups};
use self::refusals::{Refusals, Span};
use self::scripts::Told;
use self::verdict::States;
use super::Redis;
use super::client::{Client, ClientState};
use super::script::Call;
use super::settings::Nodes;
use crate::clock::{Clock, Moment};
use crate::store::Part;
use crate::store::memory::MemoryBuckets;
use crate::throttle::decision::USUAL_LIMITS;
use crate::throttle::{Buckets, Charge, ChargeResult, Decision, Outcome};

/// How long a refusal by a cluster is relied on. It may be for a charge that is about to be taken back, so
/// whoever comes back is asked for again, if not every time.
const HEARSAY: Duration = Duration::from_secs(1);

/// How long a refusal by a single server is relied on, in case somebody has emptied it, or set its clock.
const NEWS: Duration = Duration::from_secs(10);

/// All buckets of a fleet. A clone has a connection of its own and shares the rest.
#[derive(Debug)]
pub struct RedisBuckets {
    redis: Redis,
    link: Client,
    beside: Arc<Beside>,
    /// For refunds, which do not end with their request.
    errands: Arc<Client>,
}

/// What a gateway keeps beside Redis.
#[derive(Debug)]
struct Beside {
    refusals: Refusals,
    /// Decides where Redis does not respond.
    local: MemoryBuckets,
    /// What was charged in `local` and is not known to Redis.
    backlog: Backlog,
    clock: Clock,
}

impl Beside {
    fn new(local: MemoryBuckets, clock: Clock) -> Self {
        Self {
            refusals: Refusals::new(),
            local,
            backlog: Backlog::new(),
            clock,
        }
    }

    /// Makes all `charges` in the local buckets or none, and notes them for Redis.
    ///
    /// A bucket beyond `max_clients` is not noted: its state is that of a bucket which it shares with other clients.
    fn charge_locally(&self, charges: &[Charge<'_>]) -> Decision {
        let verdict = self.local.charge_now(charges);
        if verdict.is_admitted() {
            let now = self.clock.now();
            for charge in charges {
                let (full_at, is_tracked) = self.local.full_at(charge.limit.id, charge.bucket);
                if is_tracked {
                    self.backlog.add(charge.bucket, full_at, now);
                }
            }
        }
        verdict
    }
}

/// All that a request is charged: the enforced ones first, then the watched ones.
#[derive(Clone, Copy, Debug)]
struct Wanted<'a> {
    enforced: &'a [Charge<'a>],
    watched: &'a [Charge<'a>],
}

impl<'a> Wanted<'a> {
    fn all(&self) -> impl Iterator<Item = &'a Charge<'a>> {
        self.enforced.iter().chain(self.watched)
    }

    fn get(&self, place: usize) -> &'a Charge<'a> {
        match place.checked_sub(self.enforced.len()) {
            None => &self.enforced[place],
            Some(place) => &self.watched[place],
        }
    }
}

/// What Redis told of each group, if it did.
type Answers = SmallVec<[Option<Told>; 1]>;

impl RedisBuckets {
    /// Returns the buckets in `redis`, with local ones for `max_clients`.
    pub(super) fn new(redis: &Redis, max_clients: usize) -> Self {
        let clock = redis.0.state.clock.clone();
        let local = MemoryBuckets::new(max_clients, clock.clone());
        Self {
            redis: redis.clone(),
            link: redis.client(Part::Limits),
            beside: Arc::new(Beside::new(local, clock)),
            errands: Arc::new(redis.client(Part::Limits)),
        }
    }

    /// Returns the buckets that decide where Redis does not respond.
    pub fn local(&self) -> &MemoryBuckets {
        &self.beside.local
    }

    fn core(&self) -> &ClientState {
        self.link.state()
    }

    /// Charges all groups, after reporting what their buckets owe at least.
    async fn ask(&self, wanted: &Wanted<'_>, groups: &Groups, owed: &[Duration]) -> Answers {
        let ask = async |group: &Group| {
            let call = scripts::charge(wanted, group, owed);
            let told = self.link.run::<Told>(&call).await.ok();
            told.filter(|told| told.owed.len() == group.places.len())
        };
        match &groups[..] {
            [group] => [ask(group).await].into(),
            several => join_all(several.iter().map(ask)).await.into(),
        }
    }

    /// Decides by the states that Redis returned, and by local ones where it returned none.
    fn judge(&self, wanted: &Wanted<'_>, states: &States, now: Moment) -> (ChargeResult, States) {
        let beside = &*self.beside;
        let (enforced, watched) = states.split_at(wanted.enforced.len());
        let mut after = States::from_slice(enforced);
        let verdict = verdict::judge(wanted.enforced, &mut after, now, beside);
        let mut exceeded = SmallVec::new();
        for (place, (charge, state)) in wanted.watched.iter().zip(watched).enumerate() {
            let charge = std::slice::from_ref(charge);
            let mut state = States::from_slice(&[*state]);
            // Its `on_store_error` does not apply: a shadow limit admits and rejects nothing.
            let verdict = match state[0] {
                Some(_) => verdict::judge(charge, &mut state, now, beside),
                None => beside.charge_locally(charge),
            };
            if !verdict.is_admitted() {
                exceeded.push(place);
            }
            after.extend(state);
        }
        (
            ChargeResult {
                decision: verdict,
                exceeded,
            },
            after,
        )
    }

    /// Updates the local table and the cache of rejections with the states that Redis returned.
    fn learn(
        &self,
        wanted: &Wanted<'_>,
        before: &States,
        after: &States,
        judgement: &ChargeResult,
        span: Span,
    ) {
        let refused = matches!(judgement.decision.outcome, Outcome::Rejected { .. });
        for (place, charge) in wanted.all().enumerate() {
            let (Some(before), Some(after)) = (before[place], after[place]) else {
                continue;
            };
            // Redis computed this debt at some time between the call and its reply. Locally it counts from the reply,
            // so that a bucket which this gateway goes on with owes no less than in Redis.
            let full_at = span.answered.after(after.since(span.asked));
            let local = &self.beside.local;
            local.observe(charge.limit.id, charge.bucket, full_at);
            let refused = match place.checked_sub(wanted.enforced.len()) {
                None => refused,
                Some(place) => judgement.exceeded.contains(&place),
            };
            let refusals = &self.beside.refusals;
            if refused {
                refusals.note(charge.bucket, before.since(span.asked), span);
            } else {
                refusals.renew(charge.bucket, after.since(span.asked), span);
            }
        }
    }

    /// Refunds the charges of a request that is not admitted. The request waits for it, so that the client's next
    /// request finds it done. It is done also if the client disconnects.
    async fn take_back(&self, wanted: &Wanted<'_>, groups: &Groups, answers: &Answers) {
        let prefix = &self.core().settings.prefix;
        let mut calls: Vec<Call> = Vec::new();
        for (group, told) in groups.iter().zip(answers) {
            if let Some(told) = told
                && told.admitted
                && group.enforced > 0
            {
                calls.push(scripts::refund(wanted, group, told, prefix));
            }
        }
        if calls.is_empty() {
            return;
        }
        let (done, finished) = oneshot::channel::<()>();
        let link = Arc::clone(&self.errands);
        self.core().spawn_tracked(async move {
            // A refund that fails costs its client these tokens, until they have come back.
            join_all(calls.iter().map(|call| link.run::<u8>(call))).await;
            drop(done);
        });
        let _ = finished.await;
    }
}

impl Buckets for RedisBuckets {
    async fn charge(&self, enforced: &[Charge<'_>], watched: &[Charge<'_>]) -> ChargeResult {
        let charges: SmallVec<[Charge<'_>; USUAL_LIMITS]> = enforced
            .iter()
            .chain(watched)
            .map(place::per_quota)
            .collect();
        let (enforced, watched) = charges.split_at(enforced.len());
        let wanted = Wanted { enforced, watched };
        let core = self.core();
        let epoch = core.epoch();
        let asked = core.clock.now();
        // While Redis is not in use, the `on_store_error` of each limit decides.
        if !core.breaker(Part::Limits).is_open()
            && let Some(judgement) = self.beside.refusals.judge(&wanted, epoch, asked)
        {
            return judgement;
        }

        let clustered = matches!(core.settings.nodes, Nodes::Cluster(_));
        let groups = place::groups(&wanted, &core.settings.prefix, clustered);
        let backlog = &self.beside.backlog;
        let owed: SmallVec<[Duration; USUAL_LIMITS]> = charges
            .iter()
            .map(|charge| backlog.full_at(charge.bucket).since(asked))
            .collect();
        let answers = self.ask(&wanted, &groups, &owed).await;
        let answered = core.clock.now();

        let mut before = States::from_elem(None, charges.len());
        for (group, told) in groups.iter().zip(&answers) {
            let states = told.iter().flat_map(|told| &told.owed);
            for (&place, &state) in group.places.iter().zip(states) {
                before[place] = Some(asked.after(state));
                backlog.remove(charges[place].bucket, asked.after(owed[place]));
            }
        }
        let (judgement, after) = self.judge(&wanted, &before, asked);
        debug_assert!(
            groups.len() > 1
                || answers
                    .iter()
                    .flatten()
                    .all(|told| told.admitted == judgement.decision.is_admitted()),
            "the script and `decide` come to one decision: {answers:?}, {judgement:?}"
        );
        let span = Span {
            epoch,
            asked,
            answered,
            reliable: if clustered { HEARSAY } else { NEWS },
        };
        self.learn(&wanted, &before, &after, &judgement, span);
        if !judgement.decision.is_admitted() {
            self.take_back(&wanted, &groups, &answers).await;
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
            link: self.link.another(),
            beside: Arc::clone(&self.beside),
            errands: Arc::clone(&self.errands),
        }
    }
}

#[cfg(test)]
mod tests;
