//! Tests that the preset `traffic-control` behaves as its document specifies: retried failures, `Retry-After`, and the
//! retries of many clients whose requests fail at the same time.

use std::future::ready;
use std::num::NonZeroU32;
use std::time::Duration;

use http::StatusCode;
use tidegate::retry::{
    Backoff, FailedAttempt, Failure, GiveUp, Jitter, Preset, RetryPolicy, Retrying, Strategy,
};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Api;

/// Makes a request whose attempts all fail with `failure`. Returns the number of attempts.
async fn attempts(failure: Failure) -> u32 {
    let retrying = Retrying::new(Preset::TrafficControl.policy());
    let result = retrying.run(async |_| Err::<(), _>(failure)).await;
    result.unwrap_err().attempts
}

#[tokio::test(start_paused = true)]
async fn only_408_429_5xx_timeouts_and_lost_connections_are_retried() {
    let retried = [408, 429].into_iter().chain(500..600);
    for status in retried {
        let failure = StatusCode::from_u16(status).unwrap().into();
        assert_eq!(attempts(failure).await, 3, "{status}");
    }
    for failure in [Failure::TimedOut, Failure::Disconnected, Failure::Refused] {
        assert_eq!(attempts(failure).await, 3, "{failure}");
    }
    assert_eq!(attempts(Failure::NotFound).await, 1, "an unknown host");
    for status in (400..500).filter(|status| ![408, 429].contains(status)) {
        let failure = StatusCode::from_u16(status).unwrap().into();
        assert_eq!(attempts(failure).await, 1, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_exceeds_its_timeout_is_retried() {
    let never = async |_| std::future::pending::<Result<(), Failure>>().await;
    let retrying = Retrying::new(Preset::TrafficControl.policy()).timeout(Duration::from_secs(1));
    assert_eq!(retrying.run(never).await.unwrap_err().attempts, 3);
}

#[tokio::test(start_paused = true)]
async fn the_error_callback_receives_a_failure_that_is_not_retried() {
    let mut failures = Vec::new();
    let callback = |failed: &FailedAttempt<'_>| failures.push(format!("{failed:?}"));
    let retrying = Retrying::new(Preset::TrafficControl.policy()).observer(callback);
    let run = Api::responding(&[422]).call_with(retrying).await;
    assert_eq!(run.result.unwrap_err().why, GiveUp::NotWorthIt);
    assert_eq!(
        failures,
        ["attempt 1 of 3: 422 Unprocessable Entity, then GiveUp(NotWorthIt)"]
    );
}

#[tokio::test(start_paused = true)]
async fn the_delay_matches_retry_after_in_seconds_or_as_a_date_within_5_percent() {
    let values = [
        ("2", 2.0),
        ("30", 30.0),
        ("Wed, 21 Oct 2026 07:28:20 GMT", 20.0),
        ("Wednesday, 21-Oct-26 07:29:00 GMT", 60.0),
        ("Wed Oct 21 07:30:00 2026", 120.0),
    ];
    for (value, seconds) in values {
        let api = Api::responding(&[429, 200]).with_retry_after(value);
        let run = api
            .call_with_policy(Preset::TrafficControl.policy(), 7)
            .await;
        assert_eq!(run.result.as_ref().unwrap(), &StatusCode::OK);
        assert!(
            run.has_delays(&[seconds], 0.05),
            "{value}: {:?}",
            run.delays()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn without_retry_after_the_delay_is_exponential_with_added_jitter() {
    for seed in 0..200 {
        let api = Api::responding(&[429]);
        let delays = api
            .call_with_policy(Preset::TrafficControl.policy(), seed)
            .await
            .delays();
        let [first, second] = delays[..] else {
            panic!("three attempts have two delays between them: {delays:?}");
        };
        assert!((0.5..=1.002).contains(&first), "{first}");
        assert!((1.0..=1.502).contains(&second), "{second}");
    }
}

const BUSY: Failure = Failure::Status(StatusCode::SERVICE_UNAVAILABLE);

const CLIENTS: u64 = 1_000;

/// Simulates 1,000 clients that fail at the same time and retry with `policy`. All calls of the API fail. Returns the
/// highest number of calls within 100 ms. The first call of each client is not counted, because the first calls are
/// simultaneous.
async fn peak(policy: RetryPolicy) -> usize {
    let began = Instant::now();
    let mut clients = JoinSet::new();
    for seed in 0..CLIENTS {
        clients.spawn(async move {
            let mut arrivals = Vec::new();
            let call = |attempt| {
                if attempt > 1 {
                    arrivals.push(began.elapsed().as_millis() / 100);
                }
                ready(Err::<(), _>(BUSY))
            };
            let result = Retrying::new(policy).seed(seed).run(call).await;
            assert!(result.is_err());
            arrivals
        });
    }
    let mut arrivals = clients.join_all().await.concat();
    arrivals.sort_unstable();
    let simultaneous = arrivals.chunk_by(|one, other| one == other).map(<[_]>::len);
    simultaneous.max().unwrap()
}

fn policy_with(jitter: Jitter) -> RetryPolicy {
    RetryPolicy {
        backoff: Backoff {
            strategy: Strategy::Exponential,
            base: Duration::from_secs(1),
            cap: Duration::from_secs(20),
            factor: 2.0,
            jitter,
        },
        attempts: NonZeroU32::new(4).unwrap(),
        ..Preset::TrafficControl.policy()
    }
}

#[tokio::test(start_paused = true)]
async fn jitter_spreads_the_retries_of_a_thousand_clients_that_failed_together() {
    let none = peak(policy_with(Jitter::None)).await;
    assert_eq!(
        none, 1_000,
        "without jitter all clients retry at the same time"
    );
    println!("peak of 1,000 clients that failed together, in calls per 100 ms");
    println!("{:<28}{none:>6}", "no jitter");
    // The last column is the required reduction of the peak, as a fraction of the peak without jitter. The possible
    // reduction depends on the range of the first delay. For example, if this range is 0.5 s wide, some interval of
    // 0.1 s contains at least a fifth of the calls, so a reduction by more than 0.8 is impossible. The required
    // reduction is less than the possible one.
    let policies = [
        ("full", policy_with(Jitter::Full), 0.80),
        ("decorrelated", policy_with(Jitter::Decorrelated), 0.80),
        (
            "added, up to 1 s",
            policy_with(Jitter::Added(Duration::from_secs(1))),
            0.80,
        ),
        ("equal", policy_with(Jitter::Equal), 0.70),
        ("traffic-control", Preset::TrafficControl.policy(), 0.70),
        ("authorization-api", Preset::AuthorizationApi.policy(), 0.70),
        ("standard", Preset::Standard.policy(), 0.60),
        ("batch", Preset::Batch.policy(), 0.80),
    ];
    for (name, policy, least) in policies {
        let peak = peak(policy).await;
        let fall = 1.0 - f64::from(u32::try_from(peak).unwrap()) / 1_000.0;
        println!("{name:<28}{peak:>6}, {:.0} % less", fall * 100.0);
        assert!(fall >= least, "{name}: {peak} calls within 100 ms");
    }
}
