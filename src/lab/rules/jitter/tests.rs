use std::collections::BTreeMap;

use super::super::{GroupedTrace, group};
use super::*;
use crate::lab::simulated::{Defect, SimulatedClients, SimulatedStep, four_attempts, policy};
use crate::retry::{Jitter, Preset, RetryPolicy, Strategy};

const TRIALS: u64 = 200;
const OPERATIONS: u32 = 50;

/// Returns the shipped policies with the kind of their jitter.
fn policies() -> Vec<(&'static str, RetryPolicy, &'static str)> {
    let exponential = |jitter| policy(Strategy::Exponential, jitter);
    let mut policies: Vec<_> = Preset::ALL
        .into_iter()
        .map(|preset| {
            let policy = four_attempts(preset);
            (preset.name(), policy, name_of(policy.backoff.jitter))
        })
        .collect();
    policies.extend([
        ("constant", policy(Strategy::Constant, Jitter::None), "none"),
        ("none", exponential(Jitter::None), "none"),
        ("percent", exponential(Jitter::Percent(0.25)), "percent"),
        ("percent 50", exponential(Jitter::Percent(0.5)), "percent"),
        ("full", exponential(Jitter::Full), "full"),
        ("equal", exponential(Jitter::Equal), "equal"),
        (
            "decorrelated",
            exponential(Jitter::Decorrelated),
            "decorrelated",
        ),
    ]);
    policies
}

fn name_of(jitter: Jitter) -> &'static str {
    match jitter {
        Jitter::None => "none",
        Jitter::Added(_) => "added",
        Jitter::Proportional(_) => "proportional",
        Jitter::Percent(_) => "percent",
        Jitter::Full => "full",
        Jitter::Equal => "equal",
        Jitter::Decorrelated => "decorrelated",
    }
}

/// Returns the kind of jitter that the rule finds in a simulation of this policy.
fn judged(policy: RetryPolicy, operations: u32, seed: u64) -> &'static str {
    let mut simulation = SimulatedClients::new(seed);
    simulation.run(
        policy,
        Defect::None,
        &[SimulatedStep::Status(503)],
        operations,
        7,
    );
    let trace = simulation.trace();
    let grouping = group(&trace.attempts, trace.started);
    let trace = GroupedTrace::new(&trace, &grouping.operations, true);
    let delays = Delays::chosen(&trace, 1);
    match presence(&delays, trace.noise) {
        None => "few",
        Some(false) => "none",
        Some(true) => match kind::kind(&delays, MIN_OPERATIONS_FOR_KIND) {
            Kind::Added(_) => "added",
            Kind::Proportional { .. } => "proportional",
            Kind::Percent { .. } => "percent",
            Kind::Scaled { .. } => "proportional or percent",
            Kind::Equal => "equal",
            Kind::Full => "full",
            Kind::Decorrelated => "decorrelated",
            Kind::Unknown(_) => "unknown",
        },
    }
}

#[test]
fn the_kinds_of_the_shipped_policies_are_told_apart_at_50_operations() {
    let mut wrong = Vec::new();
    for (name, policy, expected) in policies() {
        let mut judgements: BTreeMap<_, u64> = BTreeMap::new();
        for seed in 0..TRIALS {
            *judgements
                .entry(judged(policy, OPERATIONS, seed))
                .or_default() += 1;
        }
        println!("{name:>18} ({expected}): {judgements:?}");
        let correct = judgements.get(expected).copied().unwrap_or_default();
        if correct * 100 < TRIALS * 95 {
            wrong.push(name);
        }
    }
    assert!(wrong.is_empty(), "less than 95 % accuracy: {wrong:?}");
}

#[test]
fn the_kind_is_unknown_if_the_delay_does_not_grow() {
    for jitter in [
        Jitter::Percent(0.25),
        Jitter::Proportional(0.3),
        Jitter::Equal,
    ] {
        for seed in 0..TRIALS {
            let found = judged(policy(Strategy::Constant, jitter), OPERATIONS, seed);
            assert_eq!(found, "unknown", "{jitter:?} {seed}");
        }
    }
}
