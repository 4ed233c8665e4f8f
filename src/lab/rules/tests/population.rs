//! Populations of simulated clients: clients that follow a preset fail no rule, and broken clients fail the right one.

use super::*;
use crate::lab::simulated::{Defect, SimulatedClients, SimulatedStep};
use crate::retry::{Preset, RetryPolicy};

const OPERATIONS: u32 = 10_000;
const CLIENTS: u32 = 100;

/// Scenarios without a stated time.
const WITHOUT_RETRY_AFTER: [&[SimulatedStep]; 7] = [
    &[SimulatedStep::Status(503)],
    &[
        SimulatedStep::Status(429),
        SimulatedStep::Status(500),
        SimulatedStep::Status(200),
    ],
    &[SimulatedStep::Reset, SimulatedStep::Status(200)],
    &[SimulatedStep::Reset],
    &[SimulatedStep::Status(400)],
    &[SimulatedStep::Status(422)],
    &[SimulatedStep::Status(502), SimulatedStep::Status(409)],
];

/// Scenarios with stated times in both forms, short and long.
const WITH_RETRY_AFTER: [&[SimulatedStep]; 6] = [
    &[SimulatedStep::Seconds(429, 10), SimulatedStep::Status(200)],
    &[SimulatedStep::Date(503, 9)],
    &[
        SimulatedStep::Seconds(429, 8),
        SimulatedStep::Date(429, 7),
        SimulatedStep::Status(200),
    ],
    &[
        SimulatedStep::Status(503),
        SimulatedStep::Seconds(503, 20),
        SimulatedStep::Status(200),
    ],
    &[SimulatedStep::Seconds(429, 130), SimulatedStep::Status(200)],
    &[SimulatedStep::Date(429, 130), SimulatedStep::Status(200)],
];

/// Judges simulated clients that follow a policy in these scenarios.
fn population(policy: RetryPolicy, scenarios: &[&[SimulatedStep]]) -> Judgement {
    let mut simulation = SimulatedClients::new(1);
    let number = OPERATIONS / u32::try_from(scenarios.len()).unwrap() + 1;
    for steps in scenarios {
        simulation.run(policy, Defect::None, steps, number, CLIENTS);
    }
    let judgement = judge(&simulation.trace(), true);
    assert!(judgement.operations.len() >= OPERATIONS as usize);
    assert!(judgement.unattributed.is_empty());
    judgement
}

#[test]
fn clients_that_follow_a_preset_fail_no_rule_without_retry_after() {
    for preset in Preset::ALL {
        let judgement = population(preset.policy(), &WITHOUT_RETRY_AFTER);
        assert_eq!(
            fails(&judgement),
            [""; 0],
            "{preset}: {:?}",
            judgement.rules
        );
        for rule in [
            Rule::Retries,
            Rule::Retryable,
            Rule::FinalResponse,
            Rule::Stops,
            Rule::Backoff,
            Rule::SameKey,
            Rule::SameBody,
            Rule::NewKey,
            Rule::Amplification,
            Rule::ConnectionReuse,
        ] {
            let judged = rule_of(&judgement, rule);
            assert_eq!(
                judged.verdict,
                Verdict::Pass,
                "{preset} {}: {}",
                rule.id(),
                judged.summary
            );
        }
        let expected = if preset == Preset::Sender {
            Verdict::Warn
        } else {
            Verdict::Pass
        };
        assert_eq!(
            rule_of(&judgement, Rule::Jitter).verdict,
            expected,
            "{preset}"
        );
    }
}

#[test]
fn clients_that_follow_a_preset_fail_no_rule_with_retry_after_unless_they_ignore_it() {
    for preset in Preset::ALL {
        let judgement = population(preset.policy(), &WITH_RETRY_AFTER);
        if preset == Preset::Sender {
            assert_eq!(fails(&judgement), ["retry-after", "long-retry-after"]);
            continue;
        }
        assert_eq!(
            fails(&judgement),
            [""; 0],
            "{preset}: {:?}",
            judgement.rules
        );
        let judged = rule_of(&judgement, Rule::RetryAfter);
        assert_eq!(judged.verdict, Verdict::Pass);
        assert!(
            judged
                .summary
                .ends_with("(form of the header: seconds, date)."),
            "{}",
            judged.summary
        );
        assert_eq!(
            rule_of(&judgement, Rule::LongRetryAfter).verdict,
            Verdict::Pass
        );
    }
}

/// Judges 200 operations of a broken client.
fn broken(policy: RetryPolicy, defect: Defect, steps: &[SimulatedStep]) -> Judgement {
    let mut simulation = SimulatedClients::new(2);
    for number in 0..200 {
        // The operations of a client do not overlap.
        let start = Duration::from_mins(number / 5);
        let address = client(u32::try_from(number % 5).unwrap());
        simulation.operation(address, start, policy, defect, steps);
    }
    judge(&simulation.trace(), true)
}

#[test]
fn each_broken_client_fails_exactly_the_rule_that_it_breaks() {
    let standard = Preset::Standard.policy();
    let recovering = [
        SimulatedStep::Status(503),
        SimulatedStep::Status(503),
        SimulatedStep::Status(200),
    ];
    let dates = [SimulatedStep::Date(429, 3), SimulatedStep::Status(200)];
    let seconds = [SimulatedStep::Seconds(429, 3), SimulatedStep::Status(200)];
    let cases: [(Defect, &[SimulatedStep], &str); 7] = [
        (
            Defect::RetriesBadRequest,
            &[SimulatedStep::Status(400), SimulatedStep::Status(200)],
            "retryable-only",
        ),
        (Defect::ChangesBody, &recovering, "same-body"),
        (Defect::EarlyOnDates, &dates, "retry-after"),
        (Defect::EarlyOnSeconds, &seconds, "retry-after"),
        (Defect::OmitsKey, &recovering, "post-without-key"),
        (Defect::ChangesKey, &recovering, "same-key"),
        (Defect::ReusesKey, &recovering, "new-key"),
    ];
    for (defect, steps, rule) in cases {
        let judgement = broken(standard, defect, steps);
        assert_eq!(
            fails(&judgement),
            [rule],
            "{defect:?}: {:?}",
            judgement.rules
        );
        let sound = broken(standard, Defect::None, steps);
        let expected: &[&str] = &[];
        assert_eq!(fails(&sound), expected, "{defect:?}");
    }
}

#[test]
fn retries_of_concurrent_identical_requests_are_not_enough_data() {
    let first = (0..1_000)
        .map(|number| post(number % 10, None, "a").ended(Some(503), ResponseEnd::Complete, 50));
    let retries = (0..1_000).map(|number| post(1_000 + number % 10, None, "a").got(200));
    let mut attempts: Vec<_> = first.chain(retries).collect();
    attempts.sort_by_key(|attempt| attempt.arrived);
    let judgement = judge(&trace_of(attempts), true);
    assert_eq!(judgement.unattributed.len(), 2_000);
    assert_eq!(judgement.verdict(), Verdict::NotEnoughData);
}
