//! Tests that the delays of the presets `standard`, `interactive` and `batch` match the table in the handbook.

use tidegate::retry::{Preset, RetryPolicy};

use super::{Api, TICK};

/// Makes 2,000 requests whose attempts all fail. Returns the shortest and the longest delay before each retry, in
/// seconds.
async fn extremes(policy: RetryPolicy) -> Vec<(f64, f64)> {
    let retries = policy.attempts.get() as usize - 1;
    let mut extremes = vec![(f64::MAX, 0.0_f64); retries];
    for seed in 0..2_000 {
        let run = Api::responding(&[503]).call_with_policy(policy, seed).await;
        for (extreme, wait) in extremes.iter_mut().zip(run.delays()) {
            *extreme = (extreme.0.min(wait), extreme.1.max(wait));
        }
    }
    extremes
}

/// Asserts that the shortest and the longest delay before each retry are within the range in `table` and close to its
/// ends. The shortest delay must be in the first hundredth of the range, and the longest delay in the last hundredth.
fn assert_fills(extremes: &[(f64, f64)], table: &[(f64, f64)]) {
    assert_eq!(extremes.len(), table.len());
    for ((least, most), (from, to)) in extremes.iter().zip(table) {
        let near = (to - from) / 100.0 + TICK;
        assert!((*from..=from + near).contains(least), "{least} for {from}");
        assert!((to - near..=to + TICK).contains(most), "{most} for {to}");
    }
}

#[tokio::test(start_paused = true)]
async fn delays_with_base_1s_max_30s_and_jitter_03_match_the_table() {
    let policy = RetryPolicy {
        attempts: 7.try_into().unwrap(),
        ..Preset::Standard.policy()
    };
    let table = [
        (1.0, 1.3),
        (2.0, 2.6),
        (4.0, 5.2),
        (8.0, 10.4),
        (16.0, 20.8),
        (30.0, 39.0),
    ];
    assert_fills(&extremes(policy).await, &table);
}

#[tokio::test(start_paused = true)]
async fn interactive_delays_are_tenths_of_seconds_and_batch_delays_are_minutes() {
    let interactive = extremes(Preset::Interactive.policy()).await;
    assert_fills(&interactive, &[(0.1, 0.12), (0.2, 0.24)]);
    let batch = extremes(Preset::Batch.policy()).await;
    assert_fills(&batch[..2], &[(5.0, 7.5), (10.0, 15.0)]);
    assert_fills(&batch[6..], &[(300.0, 450.0); 3]);
}
