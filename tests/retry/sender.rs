//! Document 4: 1, 2, 4 s, no `Retry-After`, and how many transient failures that outlasts.

use std::future::ready;
use std::time::Duration;

use tidegate::retry::{Backoff, Failure, Policy, Preset, Retrying, Strategy};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Api;

#[tokio::test(start_paused = true)]
async fn the_sender_waits_1_2_and_4_s_and_7_s_in_all_whatever_it_is_told() {
    for api in [
        Api::answering(&[503]),
        Api::answering(&[429]).telling("60"),
        Api::answering(&[504]).telling("0"),
    ] {
        let story = api.called(Preset::Sender.policy(), 3).await;
        assert!(story.waited(&[1.0, 2.0, 4.0], 0.0), "{:?}", story.waits());
        let took = *story.calls.last().unwrap() - story.calls[0];
        assert_eq!(took, Duration::from_secs(7));
        assert!(story.ended.is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn the_sender_retries_what_its_record_names() {
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
        let api = Api::answering(&[status]);
        let story = api.called(Preset::Sender.policy(), 0).await;
        assert_eq!(story.calls.len(), attempts, "{status}");
    }
    for failure in [Failure::Refused, Failure::TimedOut, Failure::NotFound] {
        let retrying = Retrying::new(Preset::Sender.policy());
        let ended = retrying.run(async |_| Err::<(), _>(failure)).await;
        assert_eq!(ended.unwrap_err().attempts, 4, "{failure}");
    }
}

const REQUESTS: u64 = 10_000;

/// The part of the requests that succeed by `policy` when each meets an outage as it is sent; how long those
/// last is spread evenly from nothing to this.
async fn outlasting(longest: Duration, policy: Policy) -> f64 {
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

/// The part that succeeds when each attempt fails by chance this often, and the first always.
async fn out_of_luck(chance: f64, policy: Policy) -> f64 {
    let mut requests = JoinSet::new();
    for seed in 0..REQUESTS {
        let mut luck = fastrand::Rng::with_seed(seed);
        requests.spawn(Retrying::new(policy).seed(seed).run(move |attempt| {
            let lucky = attempt > 1 && luck.f64() >= chance;
            ready(lucky.then_some(()).ok_or(Failure::Disconnected))
        }));
    }
    recovered(requests).await
}

async fn recovered<E: Send + 'static>(requests: JoinSet<Result<(), E>>) -> f64 {
    let ended = requests.join_all().await;
    let recovered = ended.iter().filter(|ended| ended.is_ok()).count();
    f64::from(u32::try_from(recovered).unwrap()) / f64::from(u32::try_from(REQUESTS).unwrap())
}

#[tokio::test(start_paused = true)]
async fn at_least_80_percent_of_transient_failures_recover() {
    let sender = Preset::Sender.policy();
    let outages = outlasting(Duration::from_secs(8), sender).await;
    let luck = out_of_luck(0.5, sender).await;
    println!("outages of up to 8 s: {:.1} % recover", outages * 100.0);
    println!("every second attempt fails: {:.1} % recover", luck * 100.0);
    assert!(outages >= 0.8, "{outages}");
    assert!(luck >= 0.8, "{luck}");
}

#[tokio::test(start_paused = true)]
async fn three_retries_a_second_apart_would_not_outlast_as_much() {
    let sender = Preset::Sender.policy();
    let constant = Policy {
        backoff: Backoff {
            strategy: Strategy::Constant,
            ..sender.backoff
        },
        ..sender
    };
    let outages = outlasting(Duration::from_secs(8), constant).await;
    println!(
        "constant, outages of up to 8 s: {:.1} % recover",
        outages * 100.0
    );
    assert!(outages < 0.5, "{outages}");
}
