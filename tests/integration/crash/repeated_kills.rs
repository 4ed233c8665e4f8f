//! Repeated kills of a gateway under load. All gateway processes use the same store directory.
//!
//! In each round, 48 clients send requests with new idempotency keys, with keys in flight and with used keys. The
//! gateway is killed at a random time and restarted. In about 20 % of the rounds, the gateway is also killed once while
//! it starts. Then every key of the round is sent again, and a sample of the keys of earlier rounds.
//!
//! [`KeyTracker`] checks three guarantees. A response that a client received is replayed byte for byte. A request that
//! was executed but has no record receives "outcome unknown". No request is executed twice.
//!
//! The environment variable `CRASH_ROUNDS` sets the number of rounds. `CRASH_SEED` sets the seed of the random choices,
//! and `CRASH_TIDEGATE` sets the path of the gateway binary. Runs with the same seed still differ in timing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::crash::execution_log::ExecutionLog;
use crate::crash::key_tracker::{KeyState, KeyTracker, Phase, StateBeforeSend};
use crate::crash::setup::{disk_gateway, work_request};
use crate::support::{Client, ClientResponse, Process, ProcessBuilder, env_number};

const DEFAULT_ROUNDS: u64 = 25;

/// Number of clients that send requests at the same time.
const CLIENTS: usize = 48;

/// Maximum time under load before the gateway is killed, in milliseconds.
const MAX_LOAD_MILLIS: u64 = 300;

/// If a round kills the gateway while it starts: maximum time between its start and the kill, in milliseconds.
const MAX_START_MILLIS: u64 = 40;

/// Number of idempotency keys of earlier rounds that are sent again in each round.
const SAMPLE: usize = 300;

/// Maximum time until a response. It is much longer than the time for which a duplicate request waits for the first
/// execution.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// State that outlives each gateway process of the test.
struct KillTest {
    setup: ProcessBuilder,
    executions: Arc<ExecutionLog>,
    tracker: Arc<Mutex<KeyTracker>>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_killed_at_random_times_replays_its_responses_and_executes_no_key_twice() {
    let rounds = env_number("CRASH_ROUNDS").unwrap_or(DEFAULT_ROUNDS);
    let seed = env_number("CRASH_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("crash: CRASH_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);

    let files = tempfile::TempDir::new().unwrap();
    let executions = ExecutionLog::at(&files.path().join("executions"));
    let upstream = executions.upstream(seed);
    let test = KillTest {
        setup: disk_gateway(&upstream.url()),
        executions,
        tracker: Arc::default(),
    };

    let mut process = test.setup.restart();
    let mut slowest = Duration::ZERO;
    let mut done = 0;
    for round in 1..=rounds {
        let before = test.tracker.lock().keys().len();
        test.load(&mut process, round, &mut random).await;
        if random.u8(..) < 50 {
            let mut starting = test.setup.start();
            tokio::time::sleep(Duration::from_millis(random.u64(..MAX_START_MILLIS))).await;
            starting.kill();
        }
        let started = Instant::now();
        process = test.setup.restart();
        slowest = slowest.max(started.elapsed());
        test.review(&process, before, SAMPLE, &mut random).await;
        done = round;
        if !test.tracker.lock().violations.is_empty() {
            break;
        }
    }
    process.kill();
    process = test.setup.restart();
    test.review(&process, 0, 0, &mut random).await;

    let repeated = test.executions.repeated();
    let tracker = test.tracker.lock();
    println!(
        "crash: {done} rounds, {} requests, {} keys, {} executions, {} replays, {} unknown outcomes, {} violations; \
         slowest start {} ms",
        tracker.requests,
        tracker.keys().len(),
        test.executions.count(),
        tracker.replays,
        tracker.unknowns,
        tracker.violations.len() + repeated.len(),
        slowest.as_millis()
    );
    assert!(
        repeated.is_empty(),
        "executed twice: {repeated:?}, seed {seed}"
    );
    assert!(
        tracker.violations.is_empty(),
        "seed {seed}: {:#?}",
        tracker.violations
    );
    // The run must contain replays and unknown outcomes, because a run without them would have checked nothing.
    assert!(tracker.replays > 0 && tracker.unknowns > 0);
}

impl KillTest {
    /// Puts the gateway under load, kills it at a random time, and waits until all clients have stopped.
    async fn load(&self, process: &mut Process, round: u64, random: &mut fastrand::Rng) {
        let over = Arc::new(AtomicBool::new(false));
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let load_client = LoadClient {
                client: process.client(),
                name: format!("{round}-{client}"),
                executions: Arc::clone(&self.executions),
                tracker: Arc::clone(&self.tracker),
                random: random.fork(),
            };
            clients.spawn(load_client.send_until(Arc::clone(&over)));
        }
        tokio::time::sleep(Duration::from_millis(random.u64(10..=MAX_LOAD_MILLIS))).await;
        process.kill();
        over.store(true, Ordering::Relaxed);
        clients.join_all().await;
    }

    /// Sends the idempotency keys with an index of at least `from` again, and a random sample of the earlier keys.
    /// Checks the responses.
    async fn review(
        &self,
        process: &Process,
        from: usize,
        sample: usize,
        random: &mut fastrand::Rng,
    ) {
        let mut keys = {
            let tracker = self.tracker.lock();
            let mut keys = tracker.keys()[from..].to_vec();
            let earlier = &tracker.keys()[..from];
            keys.extend((0..sample).filter_map(|_| random.choice(earlier).cloned()));
            keys
        };
        keys.sort();
        keys.dedup();
        random.shuffle(&mut keys);
        let mut reviewers = JoinSet::new();
        for keys in keys.chunks(keys.len().div_ceil(CLIENTS).max(1)) {
            let keys = keys.to_vec();
            let client = process.client();
            let (executions, tracker) = (Arc::clone(&self.executions), Arc::clone(&self.tracker));
            reviewers.spawn(async move {
                let mut connection = client.keep_alive().await;
                for key in keys {
                    let before = tracker.lock().send(&key, &executions);
                    let response = connection.try_send(work_request(&client, &key));
                    match tokio::time::timeout(RESPONSE_TIMEOUT, response).await {
                        Ok(Ok(response)) => {
                            let mut tracker = tracker.lock();
                            tracker.receive(&key, &before, &response, Phase::Review, &executions);
                        }
                        Ok(Err(error)) => {
                            let what = format!("no response: {error}");
                            tracker.lock().violate(&key, Phase::Review, &what);
                            connection = client.keep_alive().await;
                        }
                        Err(_) => {
                            tracker.lock().violate(&key, Phase::Review, "timed out");
                            connection = client.keep_alive().await;
                        }
                    }
                }
            });
        }
        reviewers.join_all().await;
    }
}

/// A client that sends requests until the gateway is killed.
struct LoadClient {
    client: Client,
    name: String,
    executions: Arc<ExecutionLog>,
    tracker: Arc<Mutex<KeyTracker>>,
    random: fastrand::Rng,
}

impl LoadClient {
    /// Sends one request after the other until the connection fails or `over` is `true`.
    async fn send_until(mut self, over: Arc<AtomicBool>) {
        let Ok(mut connection) = self.client.try_keep_alive().await else {
            return;
        };
        for number in 0.. {
            let key = self.pick(number);
            let before = self.tracker.lock().send(&key, &self.executions);
            let response = connection.try_send(work_request(&self.client, &key));
            match tokio::time::timeout(RESPONSE_TIMEOUT, response).await {
                Ok(Ok(response)) => self.receive(&key, &before, &response),
                Ok(Err(_)) => return,
                Err(_) => {
                    let mut tracker = self.tracker.lock();
                    return tracker.violate(&key, Phase::Load, "timed out");
                }
            }
            if over.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    fn receive(&self, key: &str, before: &StateBeforeSend, response: &ClientResponse) {
        let mut tracker = self.tracker.lock();
        tracker.receive(key, before, response, Phase::Load, &self.executions);
    }

    /// Returns a new idempotency key in 75 % of the calls. The others return one of the most recent keys (15 %) or any
    /// earlier key (10 %).
    fn pick(&mut self, number: u64) -> String {
        let tracker = self.tracker.lock();
        let keys = tracker.keys();
        let known = match self.random.u8(..100) {
            0..15 => self
                .random
                .choice(&keys[keys.len().saturating_sub(CLIENTS)..]),
            15..25 => self.random.choice(keys),
            _ => None,
        };
        match known {
            Some(key) => key.clone(),
            None => format!("{}-{number}", self.name),
        }
    }
}

/// The environment variable `FAILPOINTS` must have no effect on a production build.
#[tokio::test]
#[ignore = "needs a production build in CRASH_TIDEGATE; `make crash` provides one"]
async fn a_production_build_has_no_failpoints() {
    assert!(
        std::env::var_os("CRASH_TIDEGATE").is_some(),
        "set CRASH_TIDEGATE to a gateway built without the feature `failpoints`"
    );
    let files = tempfile::TempDir::new().unwrap();
    let executions = ExecutionLog::at(&files.path().join("executions"));
    let upstream = executions.upstream(0);
    let setup = disk_gateway(&upstream.url());
    let all = "before-claim=return;after-claim=return;mid-upstream=return;after-upstream=return;\
               after-commit=return;mid-reply=return";
    let mut process = setup.env("FAILPOINTS", all).start();
    let client = process.client();
    let mut tracker = KeyTracker::default();
    for _ in 0..2 {
        let before = tracker.send("one", &executions);
        let response = work_request(&client, "one").send().await;
        tracker.receive("one", &before, &response, Phase::Load, &executions);
    }
    assert_eq!(tracker.violations, [] as [String; 0]);
    assert!(matches!(tracker.state("one"), Some(KeyState::Completed(_))));
    assert_eq!(tracker.replays, 1);
    assert!(process.is_running());
}
