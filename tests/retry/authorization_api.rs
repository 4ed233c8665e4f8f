//! Document 3: the three cases that must be reproducible, and what they write.

use std::time::Duration;

use http::StatusCode;
use tidegate::retry::environment::Settings;
use tidegate::retry::events::Console;
use tidegate::retry::{Backoff, GiveUp, Jitter, Policy, Preset, Retrying};

use super::Api;

/// `HTTP_RETRY_ATTEMPTS=5`, as is recommended.
fn five_attempts() -> Policy {
    let lookup = |name: &str| (name == "HTTP_RETRY_ATTEMPTS").then(|| "5".to_owned());
    Settings::authorization_api(lookup).unwrap().policy
}

/// The same without jitter, so that waits are those the document writes down.
fn to_the_letter() -> Policy {
    let policy = five_attempts();
    Policy {
        backoff: Backoff {
            jitter: Jitter::None,
            ..policy.backoff
        },
        ..policy
    }
}

#[tokio::test(start_paused = true)]
async fn three_429s_and_a_200_succeed_after_waits_of_1_2_and_4_s() {
    let api = || Api::answering(&[429, 429, 429, 200]);
    let story = api().called(to_the_letter(), 0).await;
    assert_eq!(story.ended.as_ref().unwrap(), &StatusCode::OK);
    assert!(story.waited(&[1.0, 2.0, 4.0], 0.0), "{:?}", story.waits());
    for seed in 0..200 {
        let story = api().called(five_attempts(), seed).await;
        assert!(story.waited(&[1.0, 2.0, 4.0], 0.25), "{:?}", story.waits());
    }
}

#[tokio::test(start_paused = true)]
async fn a_429_with_retry_after_10_and_a_200_succeed_after_10_s() {
    for told in ["10", "Wed, 21 Oct 2026 07:28:10 GMT"] {
        let api = Api::answering(&[429, 200]).telling(told);
        let story = api.called(five_attempts(), 1).await;
        assert_eq!(story.ended.as_ref().unwrap(), &StatusCode::OK);
        assert!(story.waited(&[10.0], 0.0), "{told}: {:?}", story.waits());
    }
}

#[tokio::test(start_paused = true)]
async fn five_429s_are_given_up_with_rate_limit_exceeded() {
    let story = Api::answering(&[429]).called(to_the_letter(), 0).await;
    assert!(story.waited(&[1.0, 2.0, 4.0, 8.0], 0.0));
    let gave_up = story.ended.unwrap_err();
    assert_eq!((gave_up.why, gave_up.attempts), (GiveUp::Exhausted, 5));
    assert_eq!(
        gave_up.to_string(),
        "rate limit exceeded: gave up after 5 attempts"
    );
}

#[tokio::test(start_paused = true)]
async fn waits_double_from_1_s_to_32_s_and_no_further() {
    let policy = Policy {
        attempts: 8.try_into().unwrap(),
        ..to_the_letter()
    };
    let story = Api::answering(&[503]).called(policy, 0).await;
    let waits = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 32.0];
    assert!(story.waited(&waits, 0.0), "{:?}", story.waits());
}

#[tokio::test(start_paused = true)]
async fn a_408_is_not_retried_and_a_500_is() {
    for (status, attempts) in [(408, 1), (500, 3), (501, 3)] {
        let policy = Preset::AuthorizationApi.policy();
        let story = Api::answering(&[status]).called(policy, 0).await;
        assert_eq!(story.calls.len(), attempts, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_has_as_long_as_http_timeout_says() {
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
async fn a_person_is_told_before_every_wait() {
    let mut page = Vec::new();
    let retrying = Retrying::new(to_the_letter()).observer(Console::new(&mut page));
    let story = Api::answering(&[429]).called_by(retrying).await;
    assert!(story.ended.is_err());
    assert_eq!(
        String::from_utf8(page).unwrap(),
        "Rate limit hit (attempt 1/5), retrying in 1s...\n\
         Rate limit hit (attempt 2/5), retrying in 2s...\n\
         Rate limit hit (attempt 3/5), retrying in 4s...\n\
         Rate limit hit (attempt 4/5), retrying in 8s...\n"
    );
}
