//! Tests that the preset `sender` behaves as its document specifies: delays of 1, 2 and 4 s that ignore `Retry-After`,
//! and how many requests with transient failures succeed.

use std::future::ready;
use std::time::Duration;

use tidegate::retry::{Backoff, Failure, Preset, RetryPolicy, Retrying, Strategy};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Api;

#[tokio::test(start_paused = true)]
async fn the_sender_waits_1_2_and_4_s_and_ignores_retry_after() {
    for api in [
        Api::responding(&[503]),
        Api::responding(&[429]).with_retry_after("60"),
        Api::responding(&[504]).with_retry_after("0"),
    ] {
        let run = api.call_with_policy(Preset::Sender.policy(), 3).await;
        assert!(run.has_delays(&[1.0, 2.0, 4.0], 0.0), "{:?}", run.delays());
        let took = *run.calls.last().unwrap() - run.calls[0];
        assert_eq!(took, Duration::from_secs(7));
        assert!(run.result.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn the_sender_retries_the_documented_failures() {
    let statuses = [
        (429, 4),
        (500, 4),
        (502, 4),
        (503, 4),
        (504, 4),
        (400, 1),
        (401, 1),
        (403, 1),
        (404, 1),
        (501, 1),
    ];
    for (status, attempts) in statuses {
        let api = Api::responding(&[status]);
        let run = api.call_with_policy(Preset::Sender.policy(), 0).await;
        assert_eq!(run.calls.len(), attempts, "{status}");
    }
    for failure in [Failure::Refused, Failure::TimedOut, Failure::NotFound] {
        let retrying = Retrying::new(Preset::Sender.policy());
        let result = retrying.run(async |_| Err::<(), _>(failure)).await;
        assert_eq!(result.unwrap_err().attempts, 4, "{failure}");
    }
}

const REQUESTS: u64 = 10_000;

/// Returns the ratio of requests that succeed with `policy` if each one starts during an outage. The remaining time of
/// the outage is uniformly distributed between zero and `longest`.
async fn recovered_from_outages(longest: Duration, policy: RetryPolicy) -> f64 {
    let mut requests = JoinSet::new();
    for seed in 0..REQUESTS {
        let outage = longest.mul_f64(fastrand::Rng::with_seed(seed).f64());
        let ends = Instant::now() + outage;
        requests.spawn(Retrying::new(policy).seed(seed).run(move |attempt| {
            let over = attempt > 1 && Instant::now() >= ends;
            ready(over.then_some(()).ok_or(Failure::Refused))
        }));
    }
    recovered(requests).await
}

/// Returns the ratio of requests that succeed with `policy` if the first attempt always fails and each retry fails with
/// this probability.
async fn recovered_from_random_failures(probability: f64, policy: RetryPolicy) -> f64 {
    let mut requests = JoinSet::new();
    for seed in 0..REQUESTS {
        let mut random = fastrand::Rng::with_seed(seed);
        requests.spawn(Retrying::new(policy).seed(seed).run(move |attempt| {
            let succeeds = attempt > 1 && random.f64() >= probability;
            ready(succeeds.then_some(()).ok_or(Failure::Disconnected))
        }));
    }
    recovered(requests).await
}

async fn recovered<E: Send + 'static>(requests: JoinSet<Result<(), E>>) -> f64 {
    let results = requests.join_all().await;
    let recovered = results.iter().filter(|result| result.is_ok()).count();
    f64::from(u32::try_from(recovered).unwrap()) / f64::from(u32::try_from(REQUESTS).unwrap())
}

#[tokio::test(start_paused = true)]
async fn at_least_80_percent_of_transient_failures_recover() {
    let sender = Preset::Sender.policy();
    let outages = recovered_from_outages(Duration::from_secs(8), sender).await;
    let random = recovered_from_random_failures(0.5, sender).await;
    println!("outages of up to 8 s: {:.1} % recover", outages * 100.0);
    println!(
        "every second attempt fails: {:.1} % recover",
        random * 100.0
    );
    assert!(outages >= 0.8, "{outages}");
    assert!(random >= 0.8, "{random}");
}

#[tokio::test(start_paused = true)]
async fn three_retries_with_constant_delays_recover_less_than_half_of_the_outages() {
    let sender = Preset::Sender.policy();
    let constant = RetryPolicy {
        backoff: Backoff {
            strategy: Strategy::Constant,
            ..sender.backoff
        },
        ..sender
    };
    let outages = recovered_from_outages(Duration::from_secs(8), constant).await;
    println!(
        "constant, outages of up to 8 s: {:.1} % recover",
        outages * 100.0
    );
    assert!(outages < 0.5, "{outages}");
}
