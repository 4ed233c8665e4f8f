//! Repeated failures of the disk store while requests are in flight.
//!
//! Clients continuously send requests with new idempotency keys. At random times, the disk fills up, or writes and
//! syncs fail. Each time, the gateway closes and reopens the store. Every executed request receives its response,
//! except for at most one per reopening. After a restart of the gateway, a retry with each key receives a replay or
//! "outcome unknown", and no request is executed again.

use std::fs::{self, OpenOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::crash::execution_log::{ExecutionLog, KEY, ResponseDigest};
use crate::crash::setup::{disk_gateway, disk_gateway_at, post_work, work_request};
use crate::support::small_disk::SmallDisk;
use crate::support::{
    Client, Process, ProcessBuilder, Upstream, env_number, eventually, is_problem, is_unknown,
};

/// Number of clients that send requests at the same time.
const CLIENTS: usize = 16;

/// Maximum time between the moment at which disk space becomes free and the next execution.
const MAX_RECOVERY: Duration = Duration::from_secs(5);

/// Log message of a gateway that has reopened its store.
const REOPENED: &str = "idempotency store reopened";

/// Metric that counts executed requests whose response the gateway could not deliver.
const LOST: &str = "idempotency_executions_lost_total{route=\"all\"}";

/// Idempotency keys, grouped by the response that a client received.
#[derive(Default)]
struct Received {
    /// Idempotency keys whose requests received the response of the upstream.
    completed: Vec<String>,
    /// Idempotency keys whose requests received "outcome unknown".
    lost: Vec<String>,
    /// Number of requests that were rejected and not executed.
    rejected: usize,
}

struct Load {
    received: Arc<Mutex<Received>>,
    over: Arc<AtomicBool>,
    clients: JoinSet<()>,
}

impl Load {
    /// Starts clients that send requests with new idempotency keys. Each client sends one request after the other until
    /// the load is stopped.
    fn start(client: &Client) -> Self {
        let received = Arc::<Mutex<Received>>::default();
        let over = Arc::new(AtomicBool::new(false));
        let mut clients = JoinSet::new();
        for name in 0..CLIENTS {
            let (client, received) = (client.clone(), Arc::clone(&received));
            let over = Arc::clone(&over);
            clients.spawn(async move {
                for number in 0.. {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    let key = format!("load-{name}-{number}");
                    let response = post_work(&client, &key).await;
                    let rejected = is_problem(&response, "store-unavailable");
                    {
                        let mut received = received.lock();
                        if ResponseDigest::of(&response).is_some() {
                            received.completed.push(key);
                        } else if rejected {
                            received.rejected += 1;
                        } else {
                            assert!(is_unknown(&response), "{response:?}");
                            received.lost.push(key);
                        }
                    }
                    if rejected {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
            });
        }
        Self {
            received,
            over,
            clients,
        }
    }

    fn completed(&self) -> usize {
        self.received.lock().completed.len()
    }

    async fn stop(self) -> Received {
        self.over.store(true, Ordering::Relaxed);
        self.clients.join_all().await;
        std::mem::take(&mut self.received.lock())
    }
}

/// Kills and restarts the gateway. Checks the response to a retry with every idempotency key.
async fn check(
    received: &Received,
    executions: &ExecutionLog,
    process: &mut Process,
    setup: &ProcessBuilder,
) {
    let reopenings = process.count_lines(REOPENED);
    println!(
        "write failures: {} executed, {} responses, {} lost, {} rejected, {reopenings} reopenings",
        executions.count(),
        received.completed.len(),
        received.lost.len(),
        received.rejected,
    );
    assert!(reopenings > 0, "{:#?}", process.lines());
    assert!(
        received.lost.len() <= reopenings,
        "{} responses were lost in {reopenings} reopenings",
        received.lost.len()
    );
    process.kill();
    *process = setup.restart();
    let mut connection = process.client().keep_alive().await;
    for key in received.completed.iter().chain(&received.lost) {
        let response = connection.send(work_request(&process.client(), key)).await;
        if is_unknown(&response) {
            assert!(received.lost.contains(key), "{key} is unknown");
        } else {
            assert_eq!(response.header("idempotent-replayed"), "true", "{key}");
            assert_eq!(
                ResponseDigest::of(&response),
                executions.digest(key),
                "{key}"
            );
        }
    }
    assert_eq!(executions.repeated(), [] as [String; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_fills_up_at_random_loses_at_most_one_response_per_reopening() {
    let seed = env_number("CRASH_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("write failures: CRASH_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let files = TempDir::new().unwrap();
    let executions = ExecutionLog::at(&files.path().join("executions"));
    let upstream = executions.upstream(seed);
    let disk = SmallDisk::mount();
    disk.remount("size=96m");
    let store = disk.path().join("store");
    let setup = disk_gateway_at(&store, &upstream.url());
    let mut process = setup.restart();
    let load = Load::start(&process.client());
    let mut slowest = Duration::ZERO;
    for _ in 0..5 {
        let before = load.completed();
        eventually("requests are executed", async || {
            load.completed() > before + 50
        })
        .await;
        tokio::time::sleep(Duration::from_millis(random.u64(..300))).await;
        disk.fill();
        if random.bool() {
            // The free space is enough for some claims, but not for all of their responses.
            disk.free(random.u64(1 << 10..1 << 20));
        }
        tokio::time::sleep(Duration::from_millis(random.u64(500..3_000))).await;
        disk.empty();
        let (freed, before) = (Instant::now(), load.completed());
        eventually("requests are executed again", async || {
            load.completed() > before + 2 * CLIENTS
        })
        .await;
        slowest = slowest.max(freed.elapsed());
    }
    println!(
        "write failures: recovered after {} ms at most",
        slowest.as_millis()
    );
    assert!(slowest < MAX_RECOVERY, "{slowest:?}");
    let received = load.stop().await;
    check(&received, &executions, &mut process, &setup).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_and_syncs_that_fail_at_random_lose_at_most_one_response_per_reopening() {
    let files = TempDir::new().unwrap();
    let executions = ExecutionLog::at(&files.path().join("executions"));
    let upstream = executions.upstream(1);
    let setup = disk_gateway(&upstream.url());
    let failpoints = "store-sync=1%return;store-write=1%return";
    // The first write of the gateway, when it opens the store, can fail too. The gateway then exits, so the loop starts
    // it again.
    let mut process = loop {
        let mut process = setup.start_failing(failpoints);
        let mut ended = false;
        eventually("the gateway starts or exits", async || {
            ended = !process.is_running();
            let lines = process.lines();
            ended || lines.iter().any(|line| line.contains("admin listening"))
        })
        .await;
        if !ended {
            break process;
        }
    };
    let load = Load::start(&process.client());
    eventually("the store has been reopened 5 times", async || {
        process.count_lines(REOPENED) >= 5
    })
    .await;
    let received = load.stop().await;
    check(&received, &executions, &mut process, &setup).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_hangs_times_out_and_degrades_the_store_until_it_returns() {
    let files = TempDir::new().unwrap();
    let executions = ExecutionLog::at(&files.path().join("executions"));
    let upstream = executions.upstream(1);
    let setup = disk_gateway(&upstream.url());
    // 4 commits succeed: the opening of the store, the claim and completion of the first request, and the claim of the
    // second. The fifth commit, the completion of the second request, hangs for 14 s.
    let hang = "store-stall=4*off->1*sleep(14000)->off";
    let process = setup.start_failing(hang);
    let client = process.client();
    assert!(ResponseDigest::of(&post_work(&client, "first").await).is_some());

    let started = Instant::now();
    let received = post_work(&client, "second").await;
    let took = started.elapsed();
    assert!(is_unknown(&received), "after {took:?}: {received:?}");
    assert!(took < Duration::from_secs(12), "{took:?}");

    // After the timeout, the store is reported as failed, and further requests do not wait for it.
    let started = Instant::now();
    let rejected = post_work(&client, "third").await;
    assert!(is_problem(&rejected, "store-unavailable"), "{rejected:?}");
    assert!(started.elapsed() < Duration::from_secs(1));
    assert_eq!(executions.count_of("third"), 0);
    assert!(is_unknown(&post_work(&client, "second").await));
    let replayed = post_work(&client, "first").await;
    assert_eq!(replayed.header("idempotent-replayed"), "true");
    let text = process.readyz().await;
    assert_eq!(
        text,
        "ready, degraded: records: the disk does not respond\n"
    );
    assert_eq!(process.metric(LOST).await, 1);

    // The write returns after 14 s. From then on, the response is on disk, and a retry receives it.
    let deadline = Instant::now() + Duration::from_secs(8);
    loop {
        let response = post_work(&client, "second").await;
        if response.header("idempotent-replayed") == "true" {
            assert_eq!(ResponseDigest::of(&response), executions.digest("second"));
            break;
        }
        assert!(is_unknown(&response), "{response:?}");
        assert!(Instant::now() < deadline, "the response is not recorded");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(ResponseDigest::of(&post_work(&client, "third").await).is_some());
    assert_eq!(executions.repeated(), [] as [String; 0]);
    assert_eq!(process.readyz().await, "ready\n");
    assert_eq!(process.count_lines("idempotency store failed,"), 1);
    assert_eq!(process.count_lines("idempotency store responds again"), 1);
    assert_eq!(process.count_lines("ERROR"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_not_stored_within_10_s_is_withheld_and_replayed_once_it_is_stored() {
    let files = TempDir::new().unwrap();
    let executions = ExecutionLog::at(&files.path().join("executions"));
    let upstream: Upstream = executions.upstream(1);
    let setup = disk_gateway(&upstream.url());
    // The completion of the first request fails, and so do the first eight attempts to reopen the store. The ninth
    // attempt succeeds after backoffs of 0.25 s, 0.5 s, 1 s and six times 2 s. The sum is 13.75 s, which is longer than
    // the 10 s for which the gateway waits until a response is stored.
    let failing = "store-write=2*off->9*return->off";
    let process = setup.start_failing(failing);
    let client = process.client();
    // At startup, the gateway warns about the route without `scope`.
    let warnings = process.count_lines("WARN");
    let first = tokio::spawn({
        let client = client.clone();
        async move { post_work(&client, "first").await }
    });
    process.wait_for_line("idempotency store failed");
    let other = post_work(&client, "other").await;
    assert!(is_problem(&other, "store-unavailable"), "{other:?}");
    let text = process.readyz().await;
    assert!(text.starts_with("ready, degraded: records: "), "{text}");
    assert_eq!(process.metric(LOST).await, 0);
    let received = first.await.unwrap();
    assert!(is_unknown(&received), "{received:?}");
    assert!(is_unknown(&post_work(&client, "first").await));
    // The retry is not counted as another lost execution.
    assert_eq!(process.metric(LOST).await, 1);

    process.wait_for_line(REOPENED);
    let replayed = post_work(&client, "first").await;
    assert_eq!(replayed.header("idempotent-replayed"), "true");
    assert_eq!(ResponseDigest::of(&replayed), executions.digest("first"));
    assert!(ResponseDigest::of(&post_work(&client, "other").await).is_some());
    assert_eq!(executions.count_of("first"), 1);
    assert_eq!(process.metric(LOST).await, 1);
    assert_eq!(process.readyz().await, "ready\n");
    // The failed attempts to reopen the store are logged only at the level DEBUG.
    assert_eq!(process.count_lines("ERROR"), 1, "{:#?}", process.lines());
    let log = process.lines();
    assert_eq!(process.count_lines("WARN"), warnings, "{log:#?}");
}

#[tokio::test]
async fn a_store_that_cannot_be_reopened_logs_no_line_per_request_or_attempt() {
    let files = TempDir::new().unwrap();
    let executions = ExecutionLog::at(&files.path().join("executions"));
    let upstream = executions.upstream(1);
    let setup = disk_gateway(&upstream.url());
    // 3 commits succeed: the opening of the store, and the claim and completion of the first request. The claim of the
    // next request fails, and so do the first four attempts to reopen the store.
    let failing = "store-write=3*off->1*return->off;store-reopen=4*return->off";
    let process = setup.start_failing(failing);
    let client = process.client();
    assert!(ResponseDigest::of(&post_work(&client, "first").await).is_some());
    let before = process.lines().len();
    let mut connection = client.keep_alive().await;
    let mut rejected = 0;
    while process.count_lines(REOPENED) == 0 {
        let request = client.post("/work").header(KEY, "second");
        let response = connection.send(request).await;
        if is_problem(&response, "store-unavailable") {
            rejected += 1;
        }
        if rejected == 100 {
            let text = process.readyz().await;
            assert!(text.starts_with("ready, degraded: records: "), "{text}");
        }
    }
    assert!(rejected > 1_000, "{rejected}");
    assert_eq!(process.readyz().await, "ready\n");
    let lines = process.lines().split_off(before);
    assert_eq!(lines.len(), 2, "{} lines: {lines:#?}", lines.len());
}

/// Path of a file of the storage engine. The engine changes this file only when it writes records from memory to a
/// table file.
const MANIFEST: &str = "records/keyspaces/1/current";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failed_sync_the_files_are_rewritten_before_a_request_is_acknowledged() {
    let files = TempDir::new().unwrap();
    let executions = ExecutionLog::at(&files.path().join("executions"));
    let upstream = executions.upstream(1);
    let store = files.path().join("store");
    let setup = disk_gateway_at(&store, &upstream.url());
    // The sync of the first completion fails, and the gateway reopens the store.
    let failing = "store-sync=2*off->1*return->off";
    let mut process = setup.start_failing(failing);
    let client = process.client();
    let manifest = store.join(MANIFEST);
    let long_ago = SystemTime::now() - Duration::from_hours(1);
    let make_old = || {
        let file = OpenOptions::new().write(true).open(&manifest).unwrap();
        file.set_modified(long_ago).unwrap();
    };
    let is_old = || fs::metadata(&manifest).unwrap().modified().unwrap() == long_ago;
    make_old();
    let received = post_work(&client, "first").await;
    assert_eq!(
        ResponseDigest::of(&received),
        executions.digest("first"),
        "{received:?}"
    );
    assert!(!is_old(), "the files were not rewritten");

    // The second process does not rewrite the files when it starts, because the store has worked since it was reopened.
    // In the second process, the sync of the first claim fails. The process is killed while it cannot reopen the store.
    process.kill();
    make_old();
    let failing = "store-sync=1*off->return;store-reopen=return";
    let mut process = setup.start_failing(failing);
    let rejected = post_work(&process.client(), "second").await;
    assert!(is_problem(&rejected, "store-unavailable"), "{rejected:?}");
    assert!(is_old());
    process.kill();

    // The third process rewrites the files when it starts, because the store has failed in the second one.
    let process = setup.restart();
    assert!(!is_old(), "the files were not rewritten at start");
    let client = process.client();
    let replayed = post_work(&client, "first").await;
    assert_eq!(replayed.header("idempotent-replayed"), "true");
    assert_eq!(ResponseDigest::of(&replayed), executions.digest("first"));
    // The third process finds the claim, because the second one wrote it, although the sync failed. Only the second
    // process knew that the request was not executed, so the outcome is unknown now.
    assert!(is_unknown(&post_work(&client, "second").await));
    assert_eq!(
        (executions.count_of("first"), executions.count_of("second")),
        (1, 0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failed_sync_at_start_the_next_process_rewrites_the_files() {
    let files = TempDir::new().unwrap();
    let executions = ExecutionLog::at(&files.path().join("executions"));
    let upstream = executions.upstream(1);
    let store = files.path().join("store");
    let setup = disk_gateway_at(&store, &upstream.url());
    let mut process = setup.restart();
    assert!(ResponseDigest::of(&post_work(&process.client(), "first").await).is_some());
    process.kill();

    let failing = "store-sync=1*return->off";
    let mut process = setup.start_failing(failing);
    eventually("the gateway exits", async || !process.is_running()).await;
    let manifest = store.join(MANIFEST);
    let long_ago = SystemTime::now() - Duration::from_hours(1);
    let file = OpenOptions::new().write(true).open(&manifest).unwrap();
    file.set_modified(long_ago).unwrap();

    let process = setup.restart();
    let modified = fs::metadata(&manifest).unwrap().modified().unwrap();
    assert!(modified > long_ago, "the files were not rewritten");
    let replayed = post_work(&process.client(), "first").await;
    assert_eq!(ResponseDigest::of(&replayed), executions.digest("first"));
    assert_eq!(executions.count_of("first"), 1);
}
