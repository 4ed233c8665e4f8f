//! Tests that almost no client request fails while one of three servers fails.
//!
//! By default, connect failures open the circuit of a server. If the server is an outlier, 502, 503, 504, timeouts and
//! lost connections also open it. The requests that fail before the circuit opens, and the probes, succeed by a retry on
//! another server.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::support::load::{RequestOutcome, closed_loop};
use crate::support::{Client, ClientRequest, Gateway, RefusingPort, Upstream, empty};

/// Upstream settings: up to three attempts with a short backoff.
const RETRY: &str = "retry = { attempts = 3, base = \"10ms\", cap = \"100ms\" }";

/// Starts a gateway with retries in front of two healthy servers and the failing server at the URL `failing`.
fn gateway(failing: &str, healthy: &[Upstream; 2]) -> Gateway {
    Gateway::with_servers(3, RETRY)
        .with_section("[server]\nworkers = 2")
        .upstream(&healthy[0])
        .upstream_url(failing)
        .upstream(&healthy[1])
        .admin()
        .start()
}

fn two_healthy() -> [Upstream; 2] {
    [Upstream::replying(200), Upstream::replying(200)]
}

/// Sends requests from 32 clients for four seconds and returns the outcome of each request.
async fn run_load(gateway: &Gateway, build: fn(&Client) -> ClientRequest) -> Vec<RequestOutcome> {
    closed_loop(&gateway.client(), 32, Duration::from_secs(4), build).await
}

fn failed(outcomes: &[RequestOutcome]) -> usize {
    let failed = outcomes
        .iter()
        .filter(|outcome| outcome.status != Some(200));
    failed.count()
}

/// Asserts that less than one request in a thousand failed after the first second. `given` is the number of requests
/// that the failing server received. Asserts that more than half of them succeeded by a retry on another server.
#[track_caller]
fn assert_few_failed(failure: &str, given: usize, outcomes: Vec<RequestOutcome>) {
    let (first, later): (Vec<_>, Vec<_>) = outcomes
        .into_iter()
        .partition(|outcome| outcome.at < Duration::from_secs(1));
    println!(
        "one of three servers {failure} and received {given} requests: {} of {} client requests failed in the \
         first second, {} of {} after that second",
        failed(&first),
        first.len(),
        failed(&later),
        later.len()
    );
    assert!(
        later.len() >= 1_000,
        "the load was too low to measure one failure in a thousand requests"
    );
    assert!(failed(&later) * 1_000 < later.len());
    // The failing server gets at least the five requests that open its circuit and one probe.
    assert!(given > 5, "the failing server got only {given} requests");
    assert!(failed(&first) + failed(&later) < given / 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_server_that_responds_with_503_few_requests_fail() {
    let (healthy, failing) = (two_healthy(), Upstream::replying(503));
    let gateway = gateway(&failing.url(), &healthy);
    let outcomes = run_load(&gateway, |client| client.get("/")).await;
    assert_few_failed("responds with 503", failing.count(), outcomes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_circuit_of_a_server_that_starts_to_send_503_under_load_opens_within_a_second() {
    const FAILURE_START: Duration = Duration::from_secs(2);
    const SECOND: Duration = Duration::from_secs(1);
    let failing_since = Arc::new(OnceLock::<Instant>::new());
    // Number of requests that the server receives more than a second after it starts to fail.
    let late = Arc::new(AtomicUsize::new(0));
    let failing = {
        let (failing_since, late) = (Arc::clone(&failing_since), Arc::clone(&late));
        Upstream::with(move |_| {
            let since = failing_since.get().map(Instant::elapsed);
            if since.is_some_and(|since| since > SECOND) {
                late.fetch_add(1, Ordering::SeqCst);
            }
            std::future::ready(empty(if since.is_some() { 503 } else { 200 }))
        })
    };
    let healthy = two_healthy();
    let gateway = gateway(&failing.url(), &healthy);
    let client = gateway.client();
    let start_failing = async {
        tokio::time::sleep(FAILURE_START).await;
        failing_since
            .set(Instant::now())
            .expect("the time is set only once");
        failing.count()
    };
    let started = Instant::now();
    let run_load = closed_loop(&client, 32, Duration::from_secs(6), |client| {
        client.get("/")
    });
    let (before, outcomes) = tokio::join!(start_failing, run_load);

    let failing_since = failing_since
        .get()
        .expect("the server has started to fail")
        .duration_since(started);
    let (given, late) = (failing.count() - before, late.load(Ordering::SeqCst));
    let outcomes = outcomes.into_iter();
    let later: Vec<_> = outcomes
        .filter(|outcome| outcome.at >= failing_since + SECOND)
        .collect();
    let circuit = gateway.servers().await[1]["circuit"].take();
    println!(
        "one of three servers fails with 503 after {before} requests and receives {given} more, {late} of them \
         after the first second: {} of {} client requests failed after that second; {circuit}",
        failed(&later),
        later.len()
    );
    assert!(
        before >= 500,
        "the server received only {before} requests before it failed"
    );
    // After its circuit opens, the server gets only probes. Two probes are expected, 1 s and 3 s after the opening.
    // The test accepts one to four.
    assert!(
        (1..=4).contains(&late),
        "the server received {late} requests more than a second after it started to fail"
    );
    // The server gets at most the 20 requests of an outlier decision, the 32 requests in flight at that time, and four
    // probes.
    assert!(
        given <= 20 + 32 + 4,
        "the server received {given} requests after it started to fail"
    );
    assert!(
        later.len() >= 1_000,
        "the load was too low to measure one failure in a thousand requests"
    );
    assert!(failed(&later) * 1_000 < later.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_server_that_resets_every_connection_few_requests_fail() {
    let (healthy, failing) = (two_healthy(), Upstream::resetting());
    let gateway = gateway(&failing.url(), &healthy);
    let outcomes = run_load(&gateway, |client| client.get("/")).await;
    assert_few_failed("resets its connections", failing.connections(), outcomes);
}

/// Asserts that no request fails although one server refuses connections, and that each request is executed once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_a_server_that_refuses_connections_no_post_fails_or_is_sent_twice() {
    let (healthy, unreachable) = (two_healthy(), RefusingPort::new());
    let gateway = gateway(&unreachable.url(), &healthy);
    let outcomes = run_load(&gateway, |client| client.post("/").body("paid once")).await;
    let executed = healthy[0].count() + healthy[1].count();
    let opened = gateway.servers().await[1]["circuit"]["openings"].take();
    println!(
        "one of three servers refuses connections: {} of {} requests failed, {executed} executed, \
         its circuit opened {opened} times",
        failed(&outcomes),
        outcomes.len()
    );
    assert!(
        outcomes.len() >= 1_000,
        "the load was too low to measure one failure in a thousand requests"
    );
    assert_eq!(failed(&outcomes), 0);
    assert_eq!(executed, outcomes.len());
    // The circuit opens after the first connect failures and again after each failed probe.
    assert!(
        opened.as_u64().is_some_and(|opened| opened > 1),
        "the circuit opened {opened} times"
    );
}
