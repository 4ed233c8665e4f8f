//! Whole histories of several clients and limits, against the model.

use std::collections::HashMap;
use std::time::Duration;

use crate::store::memory::MemoryBuckets;
use crate::throttle::{BucketKey, Charge, ChargeOutcome, Limit};
use proptest::prelude::*;
use proptest::sample::subsequence;

use super::model::{Answer, Credit};
use super::{admitted, any_exceed, cases, charge, limit, nanos, small_quota, standing_clock};

const CLIENTS: u64 = 3;

/// One request of a trace.
#[derive(Clone, Debug)]
struct Step {
    /// Nanoseconds since the one before.
    later: u64,
    client: u64,
    /// The limits it is held to, in this order, and what it costs each.
    limits: Vec<usize>,
    cost: u32,
}

/// Some limits, and requests that are held to some of them.
fn any_trace() -> impl Strategy<Value = (Vec<Limit>, Vec<Step>)> {
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
            // Whole multiples of the scale, so that moments of refill are met exactly, or a nanosecond off.
            let later = (0_u64..30, 0_u64..3)
                .prop_map(move |(steps, off)| (steps * scale + off).saturating_sub(1));
            let costs = 1..=smallest.unwrap_or(1);
            let held_to = subsequence(all.clone(), 1..=all.len()).prop_shuffle();
            let step =
                (later, 0..CLIENTS, held_to, costs).prop_map(|(later, client, limits, cost)| {
                    Step {
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

/// A limit with an even number is counted by client, one with an odd number is global.
fn bucket(limit: usize, client: u64) -> BucketKey {
    let counted_by = if limit.is_multiple_of(2) {
        client
    } else {
        CLIENTS
    };
    let name = limit as u64 * (CLIENTS + 1) + counted_by + 1;
    BucketKey {
        // Spread over the shards as a keyed hash would.
        high: name.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        low: name,
    }
}

fn charges<'a>(limits: &'a [Limit], step: &Step) -> Vec<Charge<'a>> {
    step.limits
        .iter()
        .map(|&index| charge(&limits[index], bucket(index, step.client), step.cost))
        .collect()
}

proptest! {
    #![proptest_config(cases(1_000))]

    #[test]
    fn every_verdict_of_a_trace_is_the_model_s((limits, steps) in any_trace()) {
        let clock = standing_clock();
        let buckets = MemoryBuckets::new(1_000, clock.clone());
        let mut model: HashMap<(u64, u64), Credit> = HashMap::new();
        let mut now = 0;
        for step in &steps {
            clock.advance(Duration::from_nanos(step.later));
            now += step.later;
            let charges = charges(&limits, step);
            let verdict = buckets.charge_now(&charges);

            let key = |charge: &Charge<'_>| (charge.bucket.high, charge.bucket.low);
            let mut longest_delay = 0;
            let mut longest_wait = None;
            let mut waits = Vec::new();
            for charge in &charges {
                let quota = charge.limit.quota;
                let credit = model.entry(key(charge)).or_insert_with(|| Credit::full(quota));
                credit.accrue(quota, now);
                let answer = credit.ask(charge.limit, step.cost);
                match answer {
                    Answer::Passes { after } => longest_delay = longest_delay.max(after),
                    Answer::Waits { at_least } => longest_wait = longest_wait.max(Some(at_least)),
                }
                waits.push(answer);
            }
            match (verdict.outcome, longest_wait) {
                (ChargeOutcome::Admitted { delay }, None) => {
                    prop_assert_eq!(nanos(delay), longest_delay);
                    for charge in &charges {
                        let credit = model.get_mut(&key(charge)).unwrap();
                        credit.spend(charge.limit.quota, step.cost);
                    }
                }
                (ChargeOutcome::Rejected { wait, by }, Some(longest)) => {
                    prop_assert_eq!(nanos(wait), longest);
                    prop_assert_eq!(waits[by], Answer::Waits { at_least: longest });
                }
                (outcome, wait) => prop_assert!(false, "{:?}, but the model {:?}", outcome, wait),
            }
            for ((charge, reading), answer) in charges.iter().zip(&verdict.readings).zip(waits) {
                let (remaining, next) = model[&key(charge)].read(charge.limit.quota);
                let next = match answer {
                    Answer::Waits { at_least } => at_least,
                    Answer::Passes { .. } => next,
                };
                prop_assert_eq!((reading.remaining, nanos(reading.next)), (remaining, next));
            }
        }
    }

    /// The admitted requests of a trace get the same answers when the refused ones never come.
    #[test]
    fn a_refused_request_changes_no_bucket((limits, steps) in any_trace()) {
        let clock = standing_clock();
        let all = MemoryBuckets::new(1_000, clock.clone());
        let only_admitted = MemoryBuckets::new(1_000, clock.clone());
        for step in &steps {
            clock.advance(Duration::from_nanos(step.later));
            let charges = charges(&limits, step);
            let verdict = all.charge_now(&charges);
            if admitted(&verdict) {
                prop_assert_eq!(only_admitted.charge_now(&charges), verdict);
            }
        }
    }
}
