//! Buckets in Redis, the same for all gateways of a fleet.
//!
//! A request's charges are one script, run where the buckets are and by the clock that is there: one round
//! trip, and one step. On a cluster it is one script for each slot that has any of them, all at the same
//! time; if one refuses, the others take back what they charged. Until they have, somebody else may be
//! refused for it, but nobody is ever admitted beyond a quota. Whoever hangs up in between has spent
//! what was charged, as one who leaves while being delayed has.
//!
//! Two things are kept beside Redis. [`Refusals`] answers those who come back before their time without
//! asking Redis again. A table in memory observes every state that Redis tells, and takes over where it
//! cannot be asked: an outage does not hand every client a fresh burst.

mod place;
mod refusals;
mod scripts;
mod verdict;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use self::place::{Group, Groups};
use self::refusals::{Refusals, Span};
use self::scripts::Told;
use self::verdict::States;
use super::Redis;
use super::breaker::Part;
use super::core::Core;
use super::link::Link;
use super::script::Call;
use super::settings::Nodes;
use crate::clock::Moment;
use crate::store::memory::MemoryBuckets;
use crate::throttle::{Buckets, Charge, Judgement, Outcome};

/// How long a refusal by a cluster is relied on. It may be for a charge that is about to be taken back, so
/// whoever comes back is asked for again, if not every time.
const HEARSAY: Duration = Duration::from_secs(1);

/// How long a refusal by a single server is relied on, in case somebody has emptied it, or set its clock.
const NEWS: Duration = Duration::from_secs(10);

/// All buckets of a fleet. A clone has a connection of its own and shares the rest.
#[derive(Debug)]
pub struct RedisBuckets {
    redis: Redis,
    link: Link,
    beside: Arc<Beside>,
}

/// What a gateway keeps beside Redis.
#[derive(Debug)]
struct Beside {
    refusals: Refusals,
    /// Takes over where Redis cannot be asked.
    local: MemoryBuckets,
    /// For what goes on behind the requests.
    errands: Arc<Link>,
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
    /// The buckets in `redis`, and room for `max_clients` of them here.
    pub(super) fn new(redis: &Redis, max_clients: usize) -> Self {
        let clock = redis.0.core.clock.clone();
        Self {
            redis: redis.clone(),
            link: redis.link(),
            beside: Arc::new(Beside {
                refusals: Refusals::new(),
                local: MemoryBuckets::new(max_clients, clock),
                errands: Arc::new(redis.link()),
            }),
        }
    }

    /// What takes over where Redis cannot be asked.
    pub fn local(&self) -> &MemoryBuckets {
        &self.beside.local
    }

    fn core(&self) -> &Core {
        self.link.core()
    }

    /// Has all groups charged.
    async fn ask(&self, wanted: &Wanted<'_>, groups: &Groups) -> Answers {
        let ask = async |group: &Group| {
            let call = scripts::charge(wanted, group);
            let told = self.link.ask::<Told>(Part::Limits, &call).await.ok();
            told.filter(|told| told.owed.len() == group.places.len())
        };
        match &groups[..] {
            [group] => [ask(group).await].into(),
            several => join_all(several.iter().map(ask)).await.into(),
        }
    }

    /// Judges by what Redis told, and by what is here where it did not.
    fn judge(&self, wanted: &Wanted<'_>, states: &States, now: Moment) -> (Judgement, States) {
        let local = &self.beside.local;
        let (enforced, watched) = states.split_at(wanted.enforced.len());
        let mut after = States::from_slice(enforced);
        let verdict = verdict::judge(wanted.enforced, &mut after, now, local);
        let mut exceeded = SmallVec::new();
        for (place, (charge, state)) in wanted.watched.iter().zip(watched).enumerate() {
            let charge = std::slice::from_ref(charge);
            let mut state = States::from_slice(&[*state]);
            // Whatever its `on_store_error`: there is nothing that it could let pass or stop.
            let verdict = match state[0] {
                Some(_) => verdict::judge(charge, &mut state, now, local),
                None => local.charge_now(charge),
            };
            if !verdict.is_admitted() {
                exceeded.push(place);
            }
            after.extend(state);
        }
        (Judgement { verdict, exceeded }, after)
    }

    /// Takes note of what Redis told.
    fn learn(
        &self,
        wanted: &Wanted<'_>,
        before: &States,
        after: &States,
        judgement: &Judgement,
        span: Span,
    ) {
        let refused = matches!(judgement.verdict.outcome, Outcome::Refused { .. });
        for (place, charge) in wanted.all().enumerate() {
            let (Some(before), Some(after)) = (before[place], after[place]) else {
                continue;
            };
            let local = &self.beside.local;
            local.observe(charge.limit.id, charge.bucket, after);
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

    /// Takes back what was charged for a request that is not admitted. Waited for, so that its client's next
    /// request finds it done; and done whether or not the client is still there.
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
        let link = Arc::clone(&self.beside.errands);
        self.core().finish_later(async move {
            // One that fails leaves its client with less than it could have had, and not for long.
            join_all(calls.iter().map(|call| link.ask::<u8>(Part::Limits, call))).await;
            drop(done);
        });
        let _ = finished.await;
    }
}

impl Buckets for RedisBuckets {
    async fn charge(&self, enforced: &[Charge<'_>], watched: &[Charge<'_>]) -> Judgement {
        let wanted = Wanted { enforced, watched };
        let core = self.core();
        let epoch = core.epoch.load(Ordering::Acquire);
        let asked = core.clock.now();
        // While Redis cannot be asked, each limit's `on_store_error` has the say.
        if !core.breaker(Part::Limits).is_open()
            && let Some(judgement) = self.beside.refusals.judge(&wanted, epoch, asked)
        {
            return judgement;
        }

        let clustered = matches!(core.settings.nodes, Nodes::Cluster(_));
        let groups = place::groups(&wanted, &core.settings.prefix, clustered);
        let answers = self.ask(&wanted, &groups).await;
        let answered = core.clock.now();

        let mut before = States::from_elem(None, enforced.len() + watched.len());
        for (group, told) in groups.iter().zip(&answers) {
            let owed = told.iter().flat_map(|told| &told.owed);
            for (&place, &owed) in group.places.iter().zip(owed) {
                before[place] = Some(asked.after(owed));
            }
        }
        let (judgement, after) = self.judge(&wanted, &before, asked);
        debug_assert!(
            groups.len() > 1
                || answers
                    .iter()
                    .flatten()
                    .all(|told| told.admitted == judgement.verdict.is_admitted()),
            "the script and `decide` come to one decision: {answers:?}, {judgement:?}"
        );
        let span = Span {
            epoch,
            asked,
            answered,
            reliable: if clustered { HEARSAY } else { NEWS },
        };
        self.learn(&wanted, &before, &after, &judgement, span);
        if !judgement.verdict.is_admitted() {
            self.take_back(&wanted, &groups, &answers).await;
        }
        judgement
    }
}

impl Clone for RedisBuckets {
    fn clone(&self) -> Self {
        Self {
            redis: self.redis.clone(),
            link: self.link.another(),
            beside: Arc::clone(&self.beside),
        }
    }
}

#[cfg(test)]
mod tests;
