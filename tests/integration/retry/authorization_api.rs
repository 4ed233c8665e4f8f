//! Tests that the preset `authorization-api` behaves as its document specifies: the three documented cases, and their
//! console output.

use std::time::Duration;

use http::StatusCode;
use tidegate::retry::environment::Settings;
use tidegate::retry::events::Console;
use tidegate::retry::{Backoff, GiveUp, Jitter, Preset, RetryPolicy, Retrying};

use super::Api;

/// Returns the policy of the preset if `HTTP_RETRY_ATTEMPTS` is 5, as the document of the preset recommends.
fn five_attempts() -> RetryPolicy {
    let lookup = |name: &str| (name == "HTTP_RETRY_ATTEMPTS").then(|| "5".to_owned());
    Settings::authorization_api(lookup).unwrap().policy
}

/// Returns the policy with five attempts and without jitter, so that delays are exactly those of the document.
fn without_jitter() -> RetryPolicy {
    let policy = five_attempts();
    RetryPolicy {
        backoff: Backoff {
            jitter: Jitter::None,
            ..policy.backoff
        },
        ..policy
    }
}

#[tokio::test(start_paused = true)]
async fn three_429s_and_a_200_succeed_after_delays_of_1_2_and_4_s() {
    let api = || Api::responding(&[429, 429, 429, 200]);
    let run = api().call_with_policy(without_jitter(), 0).await;
    assert_eq!(run.result.as_ref().unwrap(), &StatusCode::OK);
    assert!(run.has_delays(&[1.0, 2.0, 4.0], 0.0), "{:?}", run.delays());
    for seed in 0..200 {
        let run = api().call_with_policy(five_attempts(), seed).await;
        assert!(run.has_delays(&[1.0, 2.0, 4.0], 0.25), "{:?}", run.delays());
    }
}

#[tokio::test(start_paused = true)]
async fn a_429_with_retry_after_10_and_a_200_succeed_after_10_s() {
    for value in ["10", "Wed, 21 Oct 2026 07:28:10 GMT"] {
        let api = Api::responding(&[429, 200]).with_retry_after(value);
        let run = api.call_with_policy(five_attempts(), 1).await;
        assert_eq!(run.result.as_ref().unwrap(), &StatusCode::OK);
        assert!(run.has_delays(&[10.0], 0.0), "{value}: {:?}", run.delays());
    }
}

#[tokio::test(start_paused = true)]
async fn five_429s_end_with_rate_limit_exceeded() {
    let run = Api::responding(&[429])
        .call_with_policy(without_jitter(), 0)
        .await;
    assert!(run.has_delays(&[1.0, 2.0, 4.0, 8.0], 0.0));
    let gave_up = run.result.unwrap_err();
    assert_eq!((gave_up.why, gave_up.attempts), (GiveUp::Exhausted, 5));
    assert_eq!(
        gave_up.to_string(),
        "rate limit exceeded: gave up after 5 attempts"
    );
}

#[tokio::test(start_paused = true)]
async fn delays_double_from_1_s_up_to_32_s() {
    let policy = RetryPolicy {
        attempts: 8.try_into().unwrap(),
        ..without_jitter()
    };
    let run = Api::responding(&[503]).call_with_policy(policy, 0).await;
    let delays = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 32.0];
    assert!(run.has_delays(&delays, 0.0), "{:?}", run.delays());
}

#[tokio::test(start_paused = true)]
async fn a_408_is_not_retried_and_a_500_is() {
    for (status, attempts) in [(408, 1), (500, 3), (501, 3)] {
        let policy = Preset::AuthorizationApi.policy();
        let run = Api::responding(&[status]).call_with_policy(policy, 0).await;
        assert_eq!(run.calls.len(), attempts, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn http_timeout_bounds_each_attempt() {
    let lookup = |name: &str| (name == "HTTP_TIMEOUT").then(|| "250".to_owned());
    let settings = Settings::authorization_api(lookup).unwrap();
    let slow = async |_| {
        tokio::time::sleep(Duration::from_millis(251)).await;
        Ok::<_, tidegate::retry::Failure>(())
    };
    let gave_up = Retrying::from(settings).run(slow).await.unwrap_err();
    assert_eq!(gave_up.attempts, 3);
}

#[tokio::test(start_paused = true)]
async fn the_console_shows_a_line_before_every_delay() {
    let mut written = Vec::new();
    let retrying = Retrying::new(without_jitter()).observer(Console::new(&mut written));
    let run = Api::responding(&[429]).call_with(retrying).await;
    assert!(run.result.is_err());
    assert_eq!(
        String::from_utf8(written).unwrap(),
        "Rate limit hit (attempt 1/5), retrying in 1s...\n\
         Rate limit hit (attempt 2/5), retrying in 2s...\n\
         Rate limit hit (attempt 3/5), retrying in 4s...\n\
         Rate limit hit (attempt 4/5), retrying in 8s...\n"
    );
}
