//! One of three servers fails, and clients hardly notice.
//!
//! By default a circuit opens for connect failures and for an outlier's 502, 503, 504, timeouts and lost
//! connections. Other 5xx need a `[breaker]` section that lists them. Retries cover the first failures and the
//! probes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::harness::load::{Outcome, crowding};
use crate::harness::{Asking, Client, Gateway, Refusing, Upstream, empty};

/// Short waits between attempts.
const RETRY: &str = "retry = { attempts = 3, base = \"10ms\", cap = \"100ms\" }";

/// A gateway with retries to two healthy servers, and one at `failing`.
fn gateway(failing: &str, healthy: &[Upstream; 2]) -> Gateway {
    gateway_with(RETRY, failing, healthy)
}

/// The same with these lines under `[upstream.api]`.
fn gateway_with(api: &str, failing: &str, healthy: &[Upstream; 2]) -> Gateway {
    Gateway::before(3, api)
        .and("[server]\nworkers = 2")
        .upstream(&healthy[0])
        .upstream_url(failing)
        .upstream(&healthy[1])
        .admin()
        .start()
}

fn two() -> [Upstream; 2] {
    [Upstream::replying(200), Upstream::replying(200)]
}

/// Thirty-two callers for eight seconds.
async fn crowd(gateway: &Gateway, ask: fn(&Client) -> Asking) -> Vec<Outcome> {
    crowding(&gateway.client(), 32, Duration::from_secs(8), ask).await
}

fn failed(outcomes: &[Outcome]) -> usize {
    let failed = outcomes
        .iter()
        .filter(|outcome| outcome.status != Some(200));
    failed.count()
}

/// Holds that less than one request in a thousand failed after the first second, and that others made good
/// most of what the server that fails was `given`.
#[track_caller]
fn hardly_any_failed(what: &str, given: usize, outcomes: Vec<Outcome>) {
    let (first, later): (Vec<_>, Vec<_>) = outcomes
        .into_iter()
        .partition(|outcome| outcome.at < Duration::from_secs(1));
    println!(
        "one of three {what}, and was given {given} requests: {} of {} failed in the first second, \
         {} of {} after it",
        failed(&first),
        first.len(),
        failed(&later),
        later.len()
    );
    assert!(later.len() >= 1_000, "too few to tell");
    assert!(failed(&later) * 1_000 < later.len());
    // Enough to open its circuit, and a probe.
    assert!(given > 5, "it was there to be noticed");
    assert!(failed(&first) + failed(&later) < given / 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_answers_500_is_hardly_noticed() {
    let (healthy, failing) = (two(), Upstream::replying(500));
    let api = format!("{RETRY}\nbreaker = {{ failures = \"5xx\" }}");
    let gateway = gateway_with(&api, &failing.url(), &healthy);
    let outcomes = crowd(&gateway, |client| client.get("/")).await;
    hardly_any_failed("responds with 500", failing.count(), outcomes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_responds_with_503_is_hardly_noticed() {
    let (healthy, failing) = (two(), Upstream::replying(503));
    let gateway = gateway(&failing.url(), &healthy);
    let outcomes = crowd(&gateway, |client| client.get("/")).await;
    hardly_any_failed("responds with 503", failing.count(), outcomes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_turns_to_503_under_load_is_shut_off_within_a_second() {
    const TURN: Duration = Duration::from_secs(5);
    const SECOND: Duration = Duration::from_secs(1);
    let turned = Arc::new(OnceLock::<Instant>::new());
    // Requests that the server receives more than a second after it turns bad.
    let late = Arc::new(AtomicUsize::new(0));
    let failing = {
        let (turned, late) = (Arc::clone(&turned), Arc::clone(&late));
        Upstream::with(move |_| {
            let since = turned.get().map(Instant::elapsed);
            if since.is_some_and(|since| since > SECOND) {
                late.fetch_add(1, Ordering::SeqCst);
            }
            std::future::ready(empty(if since.is_some() { 503 } else { 200 }))
        })
    };
    let healthy = two();
    let gateway = gateway(&failing.url(), &healthy);
    let client = gateway.client();
    let turn = async {
        tokio::time::sleep(TURN).await;
        turned.set(Instant::now()).expect("turned once");
        failing.count()
    };
    let begun = Instant::now();
    let crowd = crowding(&client, 32, Duration::from_secs(9), |client| {
        client.get("/")
    });
    let (before, outcomes) = tokio::join!(turn, crowd);

    let turned = turned.get().expect("turned").duration_since(begun);
    let (given, late) = (failing.count() - before, late.load(Ordering::SeqCst));
    let outcomes = outcomes.into_iter();
    let later: Vec<_> = outcomes
        .filter(|outcome| outcome.at >= turned + SECOND)
        .collect();
    let circuit = gateway.servers().await[1]["circuit"].take();
    println!(
        "one of three turns to 503 after {before} requests, and receives {given}, {late} of them after the first \
         second: {} of {} failed after it; {circuit}",
        failed(&later),
        later.len()
    );
    assert!(before >= 500, "too few to outweigh a row of failures");
    // The probes after 1 and 3 s.
    assert!((1..=4).contains(&late), "{late}");
    // A row, the requests in flight with the last of it, and the probes.
    assert!(given <= 20 + 32 + 4, "{given}");
    assert!(later.len() >= 1_000, "too few to tell");
    assert!(failed(&later) * 1_000 < later.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_retries_clients_notice_a_server_until_it_is_shut_off_and_its_probes() {
    let (healthy, failing) = (two(), Upstream::replying(502));
    let gateway = gateway_with("", &failing.url(), &healthy);
    let outcomes = crowd(&gateway, |client| client.get("/")).await;
    let circuit = gateway.servers().await[1]["circuit"].take();
    println!(
        "one of three responds with 502, without retries: {} of {} requests failed; {circuit}",
        failed(&outcomes),
        outcomes.len()
    );
    let openings = circuit["openings"].as_u64().expect("a number");
    assert!((2..=4).contains(&openings), "probes after 1, 3 and 7 s");
    // Enough requests for a verdict, those in flight with the last of them, and the probes.
    assert!(failed(&outcomes) <= 100, "{}", failed(&outcomes));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_resets_every_connection_is_hardly_noticed() {
    let (healthy, failing) = (two(), Upstream::resetting());
    let gateway = gateway(&failing.url(), &healthy);
    let outcomes = crowd(&gateway, |client| client.get("/")).await;
    hardly_any_failed("resets its connections", failing.connections(), outcomes);
}

/// Holds that nobody notices a server that refuses connections, and that every request is carried out once.
async fn nobody_notices(ask: fn(&Client) -> Asking) {
    let (healthy, nobody) = (two(), Refusing::new());
    let gateway = gateway(&nobody.url(), &healthy);
    let outcomes = crowd(&gateway, ask).await;
    let carried_out = healthy[0].count() + healthy[1].count();
    let opened = gateway.servers().await[1]["circuit"]["openings"].take();
    println!(
        "one of three refuses connections: {} of {} requests failed, {carried_out} carried out, \
         its circuit opened {opened} times",
        failed(&outcomes),
        outcomes.len()
    );
    assert!(outcomes.len() >= 1_000, "too few to tell");
    assert_eq!(failed(&outcomes), 0);
    assert_eq!(carried_out, outcomes.len());
    // The first time, and by probes.
    assert!(opened.as_u64().is_some_and(|opened| opened > 1), "{opened}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_connections_is_not_noticed_at_all() {
    nobody_notices(|client| client.get("/")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_is_it_by_posts_of_which_none_is_sent_twice() {
    nobody_notices(|client| client.post("/").body("paid once")).await;
}
