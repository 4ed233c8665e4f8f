//! The retries of all requests together, when every attempt fails.

use std::time::Duration;

use crate::harness::load::{Outcome, steadily};
use crate::harness::{Gateway, Upstream};

const A_SECOND: u32 = 50;

/// Three attempts, with next to no time between them.
const RETRY: &str = "retry = { attempts = 3, base = \"1ms\", cap = \"5ms\" }";

/// The same, with a budget that is counted over 2 s instead of 10 s.
const SHORT_WINDOW: &str =
    "retry = { attempts = 3, base = \"1ms\", cap = \"5ms\", budget = { window = \"2s\" } }";

fn retries_refused(reason: &str) -> String {
    format!("upstream_retries_refused_total{{upstream=\"api\",reason=\"{reason}\"}}")
}

#[tokio::test]
async fn an_upstream_that_always_fails_gets_a_tenth_more_requests_and_no_more() {
    let upstream = Upstream::replying(503);
    let api = format!("{SHORT_WINDOW}\nbreaker = {{ enabled = false }}");
    let gateway = Gateway::before(1, &api).upstream(&upstream).admin().start();
    // Six windows. They move by slots of 200 ms: 11.6 s and the last retries lie within 60 slots.
    let lasting = Duration::from_millis(11_600);
    let outcomes = steadily(&gateway.client(), A_SECOND, lasting, |client| {
        client.get("/")
    })
    .await;
    let view = gateway.admin().get("/upstreams/api").send().await.json();

    let (offered, seen) = (outcomes.len(), upstream.count());
    let allowed = offered + offered / 10 + 3 * 12;
    let refused = gateway.metric(&retries_refused("budget")).await;
    println!(
        "{offered} requests offered, {seen} seen by the server, at most {allowed} allowed; \
         {refused} retries refused; {}",
        view["retries"]
    );
    let passed_on = |outcome: &Outcome| outcome.status == Some(503);
    assert!(outcomes.iter().all(passed_on), "{outcomes:?}");
    assert!(seen <= allowed);
    assert!(seen >= offered + offered / 20, "it is there to be used");

    let exactly = |found: f64, wanted: usize| {
        let wanted = f64::from(u32::try_from(wanted).expect("not that many"));
        assert!((found - wanted).abs() < 0.1, "{found}, not {wanted}");
    };
    let retries = gateway
        .metric("upstream_retries_total{upstream=\"api\"}")
        .await;
    exactly(retries, seen - offered);
    // Each request ended with a retry that was refused, for one reason or the other.
    let exhausted = gateway.metric(&retries_refused("attempts")).await;
    exactly(refused + exhausted, offered);
    assert!(refused > exhausted);
    let shown = view["retries"]["refused"].as_f64().expect("a number");
    assert!((shown - refused).abs() < 0.1, "{shown}, not {refused}");
    let in_window = view["retries"]["requests"].as_u64().expect("a number");
    assert!((1..=2 * u64::from(A_SECOND)).contains(&in_window), "{view}");
}

#[tokio::test]
async fn with_a_breaker_it_gets_probes_alone() {
    let upstream = Upstream::replying(503);
    let gateway = Gateway::before(1, &format!("{RETRY}\nbreaker = {{}}"))
        .upstream(&upstream)
        .admin()
        .start();
    let lasting = Duration::from_secs(5);
    let outcomes = steadily(&gateway.client(), A_SECOND, lasting, |client| {
        client.get("/")
    })
    .await;
    let (offered, seen) = (outcomes.len(), upstream.count());
    println!("{offered} requests offered, {seen} seen by the server");
    assert!(outcomes.iter().all(|outcome| outcome.status == Some(503)));
    assert!(offered > 100, "{offered}");
    // Five failures, a few that were underway with the fifth, and a probe after one second and three.
    assert!((5..=25).contains(&seen), "{seen}");
    let kept_away = "upstream_failures_total{upstream=\"api\",reason=\"circuit_open\"}";
    assert!(gateway.metric(kept_away).await > 50.0);
}
