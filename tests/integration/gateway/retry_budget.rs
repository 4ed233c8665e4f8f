//! Tests of the retry budget of an upstream when every attempt fails.

use std::time::Duration;

use crate::support::load::{RequestOutcome, constant_rate};
use crate::support::{Gateway, Upstream};

const PER_SECOND: u32 = 50;

/// Retry policy with three attempts and almost no backoff.
const RETRY: &str = "retry = { attempts = 3, base = \"1ms\", cap = \"5ms\" }";

/// Retry policy with three attempts, almost no backoff, and a budget window of 2 s instead of the default of 10 s.
const SHORT_WINDOW: &str =
    "retry = { attempts = 3, base = \"1ms\", cap = \"5ms\", budget = { window = \"2s\" } }";

fn rejected_retries(reason: &str) -> String {
    format!("upstream_retries_rejected_total{{upstream=\"api\",reason=\"{reason}\"}}")
}

#[tokio::test]
async fn retries_of_a_failing_upstream_are_at_most_a_tenth_of_the_requests() {
    let upstream = Upstream::replying(503);
    let api = format!("{SHORT_WINDOW}\nbreaker = {{ enabled = false }}");
    let gateway = Gateway::with_servers(1, &api)
        .upstream(&upstream)
        .admin()
        .start();
    // The test covers six budget windows of 2 s. It ends at 11.6 s, so that the last retries are also within 12 s.
    let duration = Duration::from_millis(11_600);
    let outcomes = constant_rate(&gateway.client(), PER_SECOND, duration, |client| {
        client.get("/")
    })
    .await;
    let view = gateway
        .admin()
        .get("/admin/v1/upstreams/api")
        .send()
        .await
        .json();

    let (offered, seen) = (outcomes.len(), upstream.count());
    let allowed = offered + offered / 10 + 3 * 12;
    let over_budget = gateway.metric(&rejected_retries("budget")).await;
    println!(
        "clients sent {offered} requests, the server received {seen} attempts (at most {allowed} allowed), \
         the retry budget rejected {over_budget} retries: {}",
        view["retries"]
    );
    let is_503 = |outcome: &RequestOutcome| outcome.status == Some(503);
    assert!(outcomes.iter().all(is_503), "{outcomes:?}");
    assert!(seen <= allowed);
    assert!(
        seen >= offered + offered / 20,
        "the retries used too little of the retry budget"
    );

    let assert_count = |found: f64, wanted: usize| {
        let wanted = f64::from(u32::try_from(wanted).expect("the number should fit in 32 bits"));
        assert!(
            (found - wanted).abs() < 0.1,
            "the metric is {found}, expected {wanted}"
        );
    };
    let retries = gateway
        .metric("upstream_retries_total{upstream=\"api\"}")
        .await;
    assert_count(retries, seen - offered);
    // The gateway rejects one retry of each request, either because of the retry budget or because of the number of
    // attempts.
    let exhausted = gateway.metric(&rejected_retries("attempts")).await;
    assert_count(over_budget + exhausted, offered);
    assert!(over_budget > exhausted);
    let shown = view["retries"]["refused"]
        .as_f64()
        .expect("the value should be a number");
    assert!(
        (shown - over_budget).abs() < 0.1,
        "the admin API shows {shown} rejected retries, expected {over_budget}"
    );
    let in_window = view["retries"]["requests"]
        .as_u64()
        .expect("the value should be a number");
    assert!(
        (1..=2 * u64::from(PER_SECOND)).contains(&in_window),
        "{view}"
    );
}

#[tokio::test]
async fn a_failing_upstream_with_a_breaker_gets_only_probes() {
    let upstream = Upstream::replying(503);
    let gateway = Gateway::with_servers(1, &format!("{RETRY}\nbreaker = {{}}"))
        .upstream(&upstream)
        .admin()
        .start();
    let duration = Duration::from_secs(5);
    let outcomes = constant_rate(&gateway.client(), PER_SECOND, duration, |client| {
        client.get("/")
    })
    .await;
    let (offered, seen) = (outcomes.len(), upstream.count());
    println!("clients sent {offered} requests, the server received {seen} attempts");
    assert!(outcomes.iter().all(|outcome| outcome.status == Some(503)));
    assert!(offered > 100, "{offered}");
    // The server gets five failing requests until the circuit breaker opens, and probes 1 s and 3 s later. The rest of
    // the range is for requests that were in flight when the breaker opened.
    assert!((5..=25).contains(&seen), "{seen}");
    let circuit_open = "upstream_failures_total{upstream=\"api\",reason=\"circuit_open\"}";
    assert!(gateway.metric(circuit_open).await > 50.0);
}
