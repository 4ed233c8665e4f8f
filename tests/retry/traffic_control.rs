//! Document 2: what is retried, how `Retry-After` is obeyed, and what becomes of a stampede.

use std::future::ready;
use std::num::NonZeroU32;
use std::time::Duration;

use http::StatusCode;
use tidegate::retry::{
    Backoff, FailedAttempt, Failure, GiveUp, Jitter, Policy, Preset, Retrying, Strategy,
};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Api;

/// Attempts that are made of a request whose every attempt fails like this.
async fn attempts(failure: Failure) -> u32 {
    let retrying = Retrying::new(Preset::TrafficControl.policy());
    let ended = retrying.run(async |_| Err::<(), _>(failure)).await;
    ended.unwrap_err().attempts
}

#[tokio::test(start_paused = true)]
async fn only_408_429_5xx_and_timeouts_are_retried_and_400_401_403_404_422_fail_at_once() {
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
async fn an_attempt_that_takes_too_long_is_retried() {
    let never = async |_| std::future::pending::<Result<(), Failure>>().await;
    let retrying = Retrying::new(Preset::TrafficControl.policy()).timeout(Duration::from_secs(1));
    assert_eq!(retrying.run(never).await.unwrap_err().attempts, 3);
}

#[tokio::test(start_paused = true)]
async fn what_fails_at_once_is_told_to_the_error_callback_with_the_reason() {
    let mut told = Vec::new();
    let callback = |setback: &FailedAttempt<'_>| told.push(format!("{setback:?}"));
    let retrying = Retrying::new(Preset::TrafficControl.policy()).observer(callback);
    let story = Api::answering(&[422]).called_by(retrying).await;
    assert_eq!(story.ended.unwrap_err().why, GiveUp::NotWorthIt);
    assert_eq!(
        told,
        ["attempt 1 of 3: 422 Unprocessable Entity, then GiveUp(NotWorthIt)"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_retry_after_in_seconds_or_as_a_date_is_waited_for_within_5_percent() {
    let tellings = [
        ("2", 2.0),
        ("30", 30.0),
        ("Wed, 21 Oct 2026 07:28:20 GMT", 20.0),
        ("Wednesday, 21-Oct-26 07:29:00 GMT", 60.0),
        ("Wed Oct 21 07:30:00 2026", 120.0),
    ];
    for (told, seconds) in tellings {
        let api = Api::answering(&[429, 200]).telling(told);
        let story = api.called(Preset::TrafficControl.policy(), 7).await;
        assert_eq!(story.ended.as_ref().unwrap(), &StatusCode::OK);
        assert!(
            story.waited(&[seconds], 0.05),
            "{told}: {:?}",
            story.waits()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_retry_after_the_wait_is_min_cap_base_times_2_to_the_attempt_plus_chance() {
    for seed in 0..200 {
        let api = Api::answering(&[429]);
        let waits = api
            .called(Preset::TrafficControl.policy(), seed)
            .await
            .waits();
        let [first, second] = waits[..] else {
            panic!("three attempts have two waits between them: {waits:?}");
        };
        assert!((0.5..=1.002).contains(&first), "{first}");
        assert!((1.0..=1.502).contains(&second), "{second}");
    }
}

const BUSY: Failure = Failure::Status(StatusCode::SERVICE_UNAVAILABLE);

const CLIENTS: u64 = 1_000;

/// The most calls in any tenth of a second when a thousand clients fail together and come back by this policy,
/// while the API goes on failing. Their first calls are not counted: those are what was together.
async fn peak(policy: Policy) -> usize {
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
            let ended = Retrying::new(policy).seed(seed).run(call).await;
            assert!(ended.is_err());
            arrivals
        });
    }
    let mut arrivals = clients.join_all().await.concat();
    arrivals.sort_unstable();
    let together = arrivals.chunk_by(|one, other| one == other).map(<[_]>::len);
    together.max().unwrap()
}

fn spread(jitter: Jitter) -> Policy {
    Policy {
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
async fn a_thousand_clients_that_fail_together_come_back_apart() {
    let none = peak(spread(Jitter::None)).await;
    assert_eq!(none, 1_000, "without jitter they come back as one");
    println!("peak of 1,000 clients that failed together, in calls per 100 ms");
    println!("{:<28}{none:>6}", "no jitter");
    // The first wait says how far: one spread over half a second leaves a fifth for each tenth at best.
    let policies = [
        ("full", spread(Jitter::Full), 0.80),
        ("decorrelated", spread(Jitter::Decorrelated), 0.80),
        (
            "added, up to 1 s",
            spread(Jitter::Added(Duration::from_secs(1))),
            0.80,
        ),
        ("equal", spread(Jitter::Equal), 0.70),
        ("traffic-control", Preset::TrafficControl.policy(), 0.70),
        ("authorization-api", Preset::AuthorizationApi.policy(), 0.70),
        ("standard", Preset::Standard.policy(), 0.60),
        ("batch", Preset::Batch.policy(), 0.80),
    ];
    for (name, policy, least) in policies {
        let peak = peak(policy).await;
        let fall = 1.0 - f64::from(u32::try_from(peak).unwrap()) / 1_000.0;
        println!("{name:<28}{peak:>6}, {:.0} % less", fall * 100.0);
        assert!(fall >= least, "{name}: {peak} at once");
    }
}
