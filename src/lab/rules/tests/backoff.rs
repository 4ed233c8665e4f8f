use super::*;
use crate::lab::simulated::{Defect, SimulatedClients, SimulatedStep, policy};
use crate::retry::{Jitter, Preset, Strategy};

/// Returns the attempts of one operation with these delays in milliseconds.
fn delays(delays: &[u64]) -> Vec<Attempt> {
    let mut attempts = vec![get(0).got(503)];
    let mut at = 0;
    for delay in delays {
        at += delay + 1;
        attempts.push(get(at).got(503));
    }
    attempts
}

fn simulated(
    strategy: Strategy,
    jitter: Jitter,
    operations: u32,
    steps: &[SimulatedStep],
) -> Judgement {
    let mut simulation = SimulatedClients::new(1);
    simulation.run(policy(strategy, jitter), Defect::None, steps, operations, 3);
    judge(&simulation.trace(), true)
}

#[test]
fn growing_delays_are_fitted() {
    let judged = judged(Rule::Backoff, delays(&[1_000, 2_000, 4_000]));
    assert_eq!(judged.verdict, Verdict::Pass);
    assert_eq!(
        judged.summary,
        "Delay grows: base 1.000 s, factor 2.00 (1 operation)."
    );
    let capped = super::judged(Rule::Backoff, delays(&[1_000, 2_000, 4_000, 5_000, 5_000]));
    assert_eq!(
        capped.summary,
        "Delay grows: base 1.000 s, factor 2.00, cap 5.000 s (1 operation)."
    );
    let urllib3 = super::judged(Rule::Backoff, delays(&[1, 2_000, 4_000, 8_000]));
    assert_eq!(
        urllib3.summary,
        "Delay grows after an immediate first retry: base 2.000 s, factor 2.00 (1 operation)."
    );
}

#[test]
fn many_delays_at_one_level_are_constant_although_they_vary() {
    let varying = [101, 118, 102, 140, 101, 103, 99, 125, 101, 110];
    assert_eq!(verdict(Rule::Backoff, delays(&varying)), Verdict::Warn);
    let capped = [100, 200, 400, 500, 500, 540, 500, 500, 520, 500];
    assert_ne!(verdict(Rule::Backoff, delays(&capped)), Verdict::Warn);
}

#[test]
fn constant_and_immediate_retries_are_warnings() {
    for (constant, text) in [
        (
            delays(&[1_000, 1_003]),
            "Delay does not grow: 1.002 s (1 operation).",
        ),
        (
            delays(&[1, 2, 1]),
            "Retries immediately, after 2 ms (1 operation).",
        ),
    ] {
        let judged = judged(Rule::Backoff, constant);
        assert_eq!(
            (judged.verdict, judged.summary.as_str()),
            (Verdict::Warn, text)
        );
    }
    for jitter in [Jitter::None, Jitter::Percent(0.25)] {
        let judgement = simulated(
            Strategy::Constant,
            jitter,
            40,
            &[SimulatedStep::Status(503)],
        );
        assert_eq!(
            rule_of(&judgement, Rule::Backoff).verdict,
            Verdict::Warn,
            "{jitter:?}"
        );
    }
}

#[test]
fn few_or_noisy_delays_do_not_show_the_backoff() {
    for few in [vec![1_000], vec![1_000, 1_400], vec![3_000, 200, 1_000]] {
        assert_eq!(
            verdict(Rule::Backoff, delays(&few)),
            Verdict::NotEnoughData,
            "{few:?}"
        );
    }
    let two = [(1, [1_000, 300]), (2, [200, 900])].map(|(number, times)| {
        let attempts = delays(&times).into_iter();
        attempts.map(move |attempt| attempt.by(number))
    });
    let mut two: Vec<_> = two.into_iter().flatten().collect();
    two.sort_by_key(|attempt| attempt.arrived);
    assert_eq!(verdict(Rule::Backoff, two), Verdict::NotEnoughData);
}

#[test]
fn the_backoff_of_random_delays_grows() {
    for jitter in [
        Jitter::Full,
        Jitter::Equal,
        Jitter::Decorrelated,
        Jitter::Percent(0.5),
    ] {
        let judgement = simulated(
            Strategy::Exponential,
            jitter,
            50,
            &[SimulatedStep::Status(503)],
        );
        assert_eq!(
            rule_of(&judgement, Rule::Backoff).verdict,
            Verdict::Pass,
            "{jitter:?}"
        );
    }
    let linear = simulated(
        Strategy::Linear,
        Jitter::None,
        5,
        &[SimulatedStep::Status(503)],
    );
    assert_eq!(rule_of(&linear, Rule::Backoff).verdict, Verdict::Pass);
}

#[test]
fn delays_after_a_stated_time_say_nothing_about_the_backoff() {
    for value in ["1", "-1", "soon"] {
        let attempts = delays(&[1_000, 1_000, 1_000]);
        let attempts = attempts
            .into_iter()
            .map(|attempt| attempt.header("retry-after", value));
        assert_eq!(
            verdict(Rule::Backoff, attempts),
            Verdict::NotEnoughData,
            "{value}"
        );
    }
}

#[test]
fn the_time_that_a_client_waits_for_a_response_is_no_delay() {
    let attempts = [get(0), get(1_000), get(2_000), get(3_000).got(200)];
    assert_eq!(verdict(Rule::Backoff, attempts), Verdict::NotEnoughData);
}

#[test]
fn one_operation_can_show_that_there_is_no_jitter() {
    for formula in [
        vec![1_000, 2_003, 4_001],
        vec![1_000, 1_001, 1_002],
        vec![1, 500, 1_002, 2_000],
    ] {
        assert_eq!(
            verdict(Rule::Jitter, delays(&formula)),
            Verdict::Warn,
            "{formula:?}"
        );
    }
    for unclear in [vec![1_000, 2_003], vec![1_000, 2_300, 3_900]] {
        assert_eq!(
            verdict(Rule::Jitter, delays(&unclear)),
            Verdict::NotEnoughData,
            "{unclear:?}"
        );
    }
}

#[test]
fn every_kind_of_jitter_is_recognised() {
    for (jitter, expected) in [
        (Jitter::None, Verdict::Warn),
        (Jitter::Added(millis(500)), Verdict::Pass),
        (Jitter::Proportional(0.2), Verdict::Pass),
        (Jitter::Percent(0.25), Verdict::Pass),
        (Jitter::Equal, Verdict::Pass),
        (Jitter::Full, Verdict::Pass),
        (Jitter::Decorrelated, Verdict::Pass),
    ] {
        for operations in [7, 50] {
            let steps = [SimulatedStep::Status(503)];
            let judgement = simulated(Strategy::Exponential, jitter, operations, &steps);
            let judged = rule_of(&judgement, Rule::Jitter);
            assert_eq!(judged.verdict, expected, "{jitter:?} {operations}");
        }
    }
}

#[test]
fn jitter_beyond_the_stated_time_counts_if_all_retries_have_one() {
    let exact = simulated(
        Strategy::Exponential,
        Jitter::Full,
        10,
        &[SimulatedStep::Seconds(429, 2)],
    );
    let judged = rule_of(&exact, Rule::Jitter);
    assert_eq!(judged.verdict, Verdict::Warn);
    assert_eq!(
        judged.summary,
        "Delay after a stated time has no jitter (30 retries)."
    );
    let random = (0..10).flat_map(|number| {
        let first = get(0).by(number).got(429).header("retry-after", "2");
        [
            first,
            get(2_001 + 50 * u64::from(number)).by(number).got(200),
        ]
    });
    let mut random: Vec<_> = random.collect();
    random.sort_by_key(|attempt| attempt.arrived);
    let judged = super::judged(Rule::Jitter, random);
    assert_eq!(judged.verdict, Verdict::Pass);
    assert_eq!(
        judged.summary,
        "Jitter present: retries arrive 0 ms to 450 ms after the stated time (10 retries)."
    );
}

#[test]
fn the_three_stated_waits_of_one_operation_show_that_there_is_no_jitter() {
    let attempts = delays(&[1_000, 1_003, 999]);
    let attempts = attempts
        .into_iter()
        .map(|attempt| attempt.header("retry-after", "1"));
    assert_eq!(verdict(Rule::Jitter, attempts), Verdict::Warn);
}

#[test]
fn a_client_without_jitter_that_ignores_stated_times_has_no_jitter() {
    let sender = Preset::Sender.policy();
    for step in [
        SimulatedStep::Seconds(429, 10),
        SimulatedStep::Date(429, 10),
    ] {
        let mut simulation = SimulatedClients::new(1);
        simulation.run(sender, Defect::None, &[step], 20, 3);
        let judgement = judge(&simulation.trace(), true);
        assert_eq!(
            rule_of(&judgement, Rule::Jitter).verdict,
            Verdict::Warn,
            "{step:?}"
        );
    }
}

#[test]
fn a_width_of_less_than_two_percent_of_the_delay_is_no_jitter() {
    let of = |step: u64| {
        let attempts = (0..8_u32).flat_map(|number| {
            let next = get(30_001 + step * u64::from(number)).by(number).got(200);
            [get(0).by(number).got(503), next]
        });
        let mut attempts: Vec<_> = attempts.collect();
        attempts.sort_by_key(|attempt| attempt.arrived);
        verdict(Rule::Jitter, attempts)
    };
    assert_eq!(of(50), Verdict::Warn);
    assert_eq!(of(150), Verdict::Pass);
}
