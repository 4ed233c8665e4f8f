//! Compares random histories of several clients and limits with the model of a bucket.

use std::collections::HashMap;
use std::time::Duration;

use crate::store::memory::MemoryBuckets;
use crate::throttle::{BucketKey, Charge, ChargeOutcome, Limit};
use proptest::prelude::*;
use proptest::sample::subsequence;

use super::model::{Credit, ModelDecision};
use super::{admitted, any_exceed, cases, charge, limit, nanos, small_quota, virtual_clock};

const CLIENTS: u64 = 3;

/// One request of a trace.
#[derive(Clone, Debug)]
struct TimedRequest {
    /// Nanoseconds since the previous request.
    later: u64,
    client: u64,
    /// Indexes of the rate limits of the request, in the order in which the request has them.
    limits: Vec<usize>,
    cost: u32,
}

/// Generates some rate limits, and a trace of requests that each have some of these limits.
fn any_trace() -> impl Strategy<Value = (Vec<Limit>, Vec<TimedRequest>)> {
    let scale = prop::sample::select(vec![1, 7, 1_000_003, 1_000_000_000]);
    scale.prop_flat_map(|scale| {
        let limits = prop::collection::vec((small_quota(scale), any_exceed(100 * scale)), 1..5);
        limits.prop_flat_map(move |limits| {
            let limits: Vec<_> = (0..)
                .zip(limits)
                .map(|(id, (quota, exceed))| limit(id, quota, exceed))
                .collect();
            let all: Vec<_> = (0..limits.len()).collect();
            let smallest = limits
                .iter()
                .map(|limit| limit.quota.capacity().get())
                .min();
            // The pause is a multiple of the scale, or one nanosecond more or less than a multiple. So requests often
            // arrive exactly when a token is added.
            let later = (0_u64..30, 0_u64..3)
                .prop_map(move |(steps, off)| (steps * scale + off).saturating_sub(1));
            let costs = 1..=smallest.unwrap_or(1);
            let used = subsequence(all.clone(), 1..=all.len()).prop_shuffle();
            let step =
                (later, 0..CLIENTS, used, costs).prop_map(|(later, client, limits, cost)| {
                    TimedRequest {
                        later,
                        client,
                        limits,
                        cost,
                    }
                });
            (Just(limits), prop::collection::vec(step, 1..120))
        })
    })
}

/// Returns the bucket of a limit. A limit with an even index has one bucket per client, and one with an odd index has a
/// global bucket.
fn bucket(limit: usize, client: u64) -> BucketKey {
    let counted_by = if limit.is_multiple_of(2) {
        client
    } else {
        CLIENTS
    };
    let name = limit as u64 * (CLIENTS + 1) + counted_by + 1;
    BucketKey {
        // The multiplication distributes the buckets over the shards, as a keyed hash does.
        high: name.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        low: name,
    }
}

fn charges<'a>(limits: &'a [Limit], step: &TimedRequest) -> Vec<Charge<'a>> {
    step.limits
        .iter()
        .map(|&index| charge(&limits[index], bucket(index, step.client), step.cost))
        .collect()
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn every_decision_of_a_trace_matches_the_model((limits, steps) in any_trace()) {
        let clock = virtual_clock();
        let buckets = MemoryBuckets::new(1_000, clock.clone());
        let mut model: HashMap<(u64, u64), Credit> = HashMap::new();
        let mut now = 0;
        for step in &steps {
            clock.advance(Duration::from_nanos(step.later));
            now += step.later;
            let charges = charges(&limits, step);
            let decision = buckets.charge_now(&charges);

            let key = |charge: &Charge<'_>| (charge.bucket.high, charge.bucket.low);
            let mut longest_delay = 0;
            let mut longest_wait = None;
            let mut waits = Vec::new();
            for charge in &charges {
                let quota = charge.limit.quota;
                let credit = model.entry(key(charge)).or_insert_with(|| Credit::full(quota));
                credit.accrue(quota, now);
                let decided = credit.decide(charge.limit, step.cost);
                match decided {
                    ModelDecision::Admits { delay } => longest_delay = longest_delay.max(delay),
                    ModelDecision::Rejects { wait } => longest_wait = longest_wait.max(Some(wait)),
                }
                waits.push(decided);
            }
            match (decision.outcome, longest_wait) {
                (ChargeOutcome::Admitted { delay }, None) => {
                    prop_assert_eq!(nanos(delay), longest_delay);
                    for charge in &charges {
                        let credit = model.get_mut(&key(charge)).unwrap();
                        credit.spend(charge.limit.quota, step.cost);
                    }
                }
                (ChargeOutcome::Rejected { wait, by }, Some(longest)) => {
                    prop_assert_eq!(nanos(wait), longest);
                    prop_assert_eq!(waits[by], ModelDecision::Rejects { wait: longest });
                }
                (outcome, wait) => prop_assert!(false, "{:?}, but the model {:?}", outcome, wait),
            }
            for ((charge, reading), decided) in charges.iter().zip(&decision.readings).zip(waits) {
                let (remaining, next) = model[&key(charge)].read(charge.limit.quota);
                let next = match decided {
                    ModelDecision::Rejects { wait } => wait,
                    ModelDecision::Admits { .. } => next,
                };
                prop_assert_eq!((reading.remaining, nanos(reading.next)), (remaining, next));
            }
        }
    }

    /// If a trace is repeated without its rejected requests, the admitted requests get the same decisions as in the
    /// complete trace.
    #[test]
    fn a_rejected_request_changes_no_bucket((limits, steps) in any_trace()) {
        let clock = virtual_clock();
        let all = MemoryBuckets::new(1_000, clock.clone());
        let only_admitted = MemoryBuckets::new(1_000, clock.clone());
        for step in &steps {
            clock.advance(Duration::from_nanos(step.later));
            let charges = charges(&limits, step);
            let decision = all.charge_now(&charges);
            if admitted(&decision) {
                prop_assert_eq!(only_admitted.charge_now(&charges), decision);
            }
        }
    }
}
