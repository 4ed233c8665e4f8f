//! A store that fails again and again while requests are in flight.
//!
//! Clients send new keys all the time. The disk fills up, or writes and syncs fail, at random; the store is
//! closed and reopened each time. A request that was executed gets its response, except for at most one
//! for each reopening, and every key is replayed or reported as unknown afterwards, never executed again.

use std::fs::{self, OpenOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::campaign::number;
use crate::harness::{Answer, Client, Process, Upstream, eventually};
use crate::ledger::{KEY, Ledger, Print};
use crate::scene::{Scene, is_problem, is_unknown, kill, lines_with, metric, readyz};
use crate::small_disk::SmallDisk;

/// The gateway built with the tests: the only one that has failpoints.
const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

/// Clients that send at the same time.
const CLIENTS: usize = 16;

/// The longest time from the moment at which the disk has space again to an executed request.
const RECOVERY: Duration = Duration::from_secs(5);

/// The line that the gateway logs when the store works again.
const REOPENED: &str = "idempotency store reopened";

/// Executions whose outcome the client does not know.
const LOST: &str = "idempotency_executions_lost_total{route=\"all\"}";

/// What the clients have received.
#[derive(Default)]
struct Received {
    /// Keys whose response came.
    completed: Vec<String>,
    /// Keys that were executed and whose response did not come.
    lost: Vec<String>,
    /// Keys that were rejected and not executed.
    rejected: usize,
}

struct Load {
    received: Arc<Mutex<Received>>,
    over: Arc<AtomicBool>,
    clients: JoinSet<()>,
}

impl Load {
    /// Lets clients send new keys, one request after the other, until the load is stopped.
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
                    let answer = ask(&client, &key).await;
                    let rejected = is_problem(&answer, "store-unavailable");
                    {
                        let mut received = received.lock();
                        if Print::of(&answer).is_some() {
                            received.completed.push(key);
                        } else if rejected {
                            received.rejected += 1;
                        } else {
                            assert!(is_unknown(&answer), "{answer:?}");
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

async fn ask(client: &Client, key: &str) -> Answer {
    let asking = client.post("/work").header(KEY, key).body(key.to_owned());
    asking.send().await
}

/// Whether every key is as it was received, after the gateway was killed and started again.
async fn check(received: &Received, ledger: &Ledger, process: &mut Process, scene: &Scene) {
    let reopenings = reopenings(process);
    println!(
        "failing: {} executed, {} responses, {} lost, {} rejected, {reopenings} reopenings",
        ledger.count(),
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
    kill(process);
    *process = scene.restart();
    let mut connection = process.client().keep_alive().await;
    for key in received.completed.iter().chain(&received.lost) {
        let request = process.client().post("/work");
        let request = request.header(KEY, key).body(key.clone());
        let answer = connection.send(request).await;
        if is_unknown(&answer) {
            assert!(received.lost.contains(key), "{key} is unknown");
        } else {
            assert_eq!(answer.header("idempotent-replayed"), "true", "{key}");
            assert_eq!(Print::of(&answer), ledger.print(key), "{key}");
        }
    }
    assert_eq!(ledger.repeated(), [] as [String; 0]);
}

fn reopenings(process: &Process) -> usize {
    let lines = process.lines();
    lines.iter().filter(|line| line.contains(REOPENED)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_fills_up_at_random_loses_at_most_one_response_per_reopening() {
    let seed = number("CRASH_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("failing: CRASH_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let files = TempDir::new().unwrap();
    let ledger = Ledger::at(&files.path().join("ledger"));
    let upstream = ledger.upstream(seed);
    let disk = SmallDisk::mount();
    disk.remount("size=96m");
    let store = disk.path().join("store");
    let scene = Scene::with_store(TempDir::new().unwrap(), &store, &upstream.url());
    let mut process = scene.restart();
    let load = Load::start(&process.client());
    let mut slowest = Duration::ZERO;
    for _ in 0..5 {
        let before = load.completed();
        eventually("requests are executed", || load.completed() > before + 50).await;
        tokio::time::sleep(Duration::from_millis(random.u64(..300))).await;
        disk.fill();
        if random.bool() {
            // Nearly full: what is left holds some claims, and not all of their responses.
            disk.leave(random.u64(1 << 10..1 << 20));
        }
        tokio::time::sleep(Duration::from_millis(random.u64(500..3_000))).await;
        disk.empty();
        let (freed, before) = (Instant::now(), load.completed());
        eventually("requests are executed again", || {
            load.completed() > before + 2 * CLIENTS
        })
        .await;
        slowest = slowest.max(freed.elapsed());
    }
    println!(
        "failing: recovered after {} ms at most",
        slowest.as_millis()
    );
    assert!(slowest < RECOVERY, "{slowest:?}");
    let received = load.stop().await;
    check(&received, &ledger, &mut process, &scene).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_and_syncs_that_fail_at_random_lose_at_most_one_response_per_reopening() {
    let files = TempDir::new().unwrap();
    let ledger = Ledger::at(&files.path().join("ledger"));
    let upstream = ledger.upstream(1);
    let scene = Scene::before(&upstream.url());
    let failpoints = [("FAILPOINTS", "store-sync=1%return;store-write=1%return")];
    // The first write of all, when the store is opened, may fail too.
    let mut process = loop {
        let mut process = scene.start_as(TIDEGATE.as_ref(), &failpoints);
        let mut ended = false;
        eventually("it starts or ends", || {
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
    eventually("the store has been reopened 5 times", || {
        reopenings(&process) >= 5
    })
    .await;
    let received = load.stop().await;
    check(&received, &ledger, &mut process, &scene).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_hangs_ends_for_its_client_and_fails_the_store_until_it_returns() {
    let files = TempDir::new().unwrap();
    let ledger = Ledger::at(&files.path().join("ledger"));
    let upstream = ledger.upstream(1);
    let scene = Scene::before(&upstream.url());
    // Commits: one when the store is opened, claim and completion of the first key, claim of the second.
    let hang = [("FAILPOINTS", "store-stall=4*off->1*sleep(14000)->off")];
    let process = scene.start_as(TIDEGATE.as_ref(), &hang);
    let client = process.client();
    assert!(Print::of(&ask(&client, "first").await).is_some());

    let started = Instant::now();
    let received = ask(&client, "second").await;
    let took = started.elapsed();
    assert!(is_unknown(&received), "after {took:?}: {received:?}");
    assert!(took < Duration::from_secs(12), "{took:?}");

    // The store counts as failed: no further request waits for it.
    let started = Instant::now();
    let rejected = ask(&client, "third").await;
    assert!(is_problem(&rejected, "store-unavailable"), "{rejected:?}");
    assert!(started.elapsed() < Duration::from_secs(1));
    assert_eq!(ledger.times("third"), 0);
    assert!(is_unknown(&ask(&client, "second").await));
    let replayed = ask(&client, "first").await;
    assert_eq!(replayed.header("idempotent-replayed"), "true");
    let text = readyz(&process).await;
    assert_eq!(
        text,
        "ready, degraded: records: the disk does not respond\n"
    );
    assert_eq!(metric(&process, LOST).await, 1);

    // The write returns after 14 s, and the response is on disk.
    let deadline = Instant::now() + Duration::from_secs(8);
    loop {
        let answer = ask(&client, "second").await;
        if answer.header("idempotent-replayed") == "true" {
            assert_eq!(Print::of(&answer), ledger.print("second"));
            break;
        }
        assert!(is_unknown(&answer), "{answer:?}");
        assert!(Instant::now() < deadline, "never recorded");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(Print::of(&ask(&client, "third").await).is_some());
    assert_eq!(ledger.repeated(), [] as [String; 0]);
    assert_eq!(readyz(&process).await, "ready\n");
    assert_eq!(lines_with(&process, "idempotency store failed,"), 1);
    assert_eq!(lines_with(&process, "idempotency store responds again"), 1);
    assert_eq!(lines_with(&process, "ERROR"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_that_cannot_be_stored_for_10_s_is_withheld_and_replayed_once_it_is() {
    let files = TempDir::new().unwrap();
    let ledger = Ledger::at(&files.path().join("ledger"));
    let upstream: Upstream = ledger.upstream(1);
    let scene = Scene::before(&upstream.url());
    // The completion of the first key fails, and so does every attempt to reopen the store for 12 s or more.
    let failing = [("FAILPOINTS", "store-write=2*off->9*return->off")];
    let process = scene.start_as(TIDEGATE.as_ref(), &failing);
    let client = process.client();
    let first = tokio::spawn({
        let client = client.clone();
        async move { ask(&client, "first").await }
    });
    process.line_with("idempotency store failed");
    let other = ask(&client, "other").await;
    assert!(is_problem(&other, "store-unavailable"), "{other:?}");
    let text = readyz(&process).await;
    assert!(text.starts_with("ready, degraded: records: "), "{text}");
    assert_eq!(metric(&process, LOST).await, 0);
    let received = first.await.unwrap();
    assert!(is_unknown(&received), "{received:?}");
    assert!(is_unknown(&ask(&client, "first").await));
    // The retry is not another execution.
    assert_eq!(metric(&process, LOST).await, 1);

    process.line_with(REOPENED);
    let replayed = ask(&client, "first").await;
    assert_eq!(replayed.header("idempotent-replayed"), "true");
    assert_eq!(Print::of(&replayed), ledger.print("first"));
    assert!(Print::of(&ask(&client, "other").await).is_some());
    assert_eq!(ledger.times("first"), 1);
    assert_eq!(metric(&process, LOST).await, 1);
    assert_eq!(readyz(&process).await, "ready\n");
    // The attempts to reopen the store that failed are not logged.
    assert_eq!(lines_with(&process, "ERROR"), 1, "{:#?}", process.lines());
    assert_eq!(lines_with(&process, "WARN"), 0, "{:#?}", process.lines());
}

#[tokio::test]
async fn a_store_that_cannot_be_reopened_logs_no_line_per_request_or_attempt() {
    let files = TempDir::new().unwrap();
    let ledger = Ledger::at(&files.path().join("ledger"));
    let upstream = ledger.upstream(1);
    let scene = Scene::before(&upstream.url());
    // Commits: one when the store is opened, claim and completion of the first key. The next claim fails, and so
    // do the attempts to reopen the store for 3.75 s.
    let failing = "store-write=3*off->1*return->off;store-reopen=4*return->off";
    let process = scene.start_as(TIDEGATE.as_ref(), &[("FAILPOINTS", failing)]);
    let client = process.client();
    assert!(Print::of(&ask(&client, "first").await).is_some());
    let before = process.lines().len();
    let mut connection = client.keep_alive().await;
    let mut rejected = 0;
    while lines_with(&process, REOPENED) == 0 {
        let request = client.post("/work").header(KEY, "second");
        let answer = connection.send(request).await;
        if is_problem(&answer, "store-unavailable") {
            rejected += 1;
        }
        if rejected == 100 {
            let text = readyz(&process).await;
            assert!(text.starts_with("ready, degraded: records: "), "{text}");
        }
    }
    assert!(rejected > 1_000, "{rejected}");
    assert_eq!(readyz(&process).await, "ready\n");
    let lines = process.lines().split_off(before);
    assert_eq!(lines.len(), 2, "{} lines: {lines:#?}", lines.len());
}

/// A file of the engine that only a flush of its keyspace changes.
const MANIFEST: &str = "records/keyspaces/1/current";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failed_sync_the_files_are_written_again_before_anything_is_acknowledged() {
    let files = TempDir::new().unwrap();
    let ledger = Ledger::at(&files.path().join("ledger"));
    let upstream = ledger.upstream(1);
    let store = files.path().join("store");
    let scene = Scene::with_store(TempDir::new().unwrap(), &store, &upstream.url());
    // The sync of the first completion fails. After the restart, so does that of the next claim, and the
    // process is killed while the store cannot be reopened.
    let failing = [("FAILPOINTS", "store-sync=2*off->1*return->off")];
    let mut process = scene.start_as(TIDEGATE.as_ref(), &failing);
    let client = process.client();
    let manifest = store.join(MANIFEST);
    let long_ago = SystemTime::now() - Duration::from_hours(1);
    let make_old = || {
        let file = OpenOptions::new().write(true).open(&manifest).unwrap();
        file.set_modified(long_ago).unwrap();
    };
    let is_old = || fs::metadata(&manifest).unwrap().modified().unwrap() == long_ago;
    make_old();
    let received = ask(&client, "first").await;
    assert_eq!(Print::of(&received), ledger.print("first"), "{received:?}");
    assert!(!is_old(), "the files were not written again");

    // A process that starts without a failure before it leaves them alone.
    kill(&mut process);
    make_old();
    let failing = [("FAILPOINTS", "store-sync=1*off->return;store-reopen=return")];
    let mut process = scene.start_as(TIDEGATE.as_ref(), &failing);
    let rejected = ask(&process.client(), "second").await;
    assert!(is_problem(&rejected, "store-unavailable"), "{rejected:?}");
    assert!(is_old());
    kill(&mut process);

    // The page cache outlives the process, so the next one writes them again.
    let process = scene.restart();
    assert!(!is_old(), "the files were not written again at start");
    let client = process.client();
    let replayed = ask(&client, "first").await;
    assert_eq!(replayed.header("idempotent-replayed"), "true");
    assert_eq!(Print::of(&replayed), ledger.print("first"));
    // Its claim was written and not synced, and the process that knew it was not executed is gone.
    assert!(is_unknown(&ask(&client, "second").await));
    assert_eq!((ledger.times("first"), ledger.times("second")), (1, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failed_sync_at_start_the_next_process_writes_the_files_again() {
    let files = TempDir::new().unwrap();
    let ledger = Ledger::at(&files.path().join("ledger"));
    let upstream = ledger.upstream(1);
    let store = files.path().join("store");
    let scene = Scene::with_store(TempDir::new().unwrap(), &store, &upstream.url());
    let mut process = scene.restart();
    assert!(Print::of(&ask(&process.client(), "first").await).is_some());
    kill(&mut process);

    let failing = [("FAILPOINTS", "store-sync=1*return->off")];
    let mut process = scene.start_as(TIDEGATE.as_ref(), &failing);
    eventually("the gateway ends", || !process.is_running()).await;
    let manifest = store.join(MANIFEST);
    let long_ago = SystemTime::now() - Duration::from_hours(1);
    let file = OpenOptions::new().write(true).open(&manifest).unwrap();
    file.set_modified(long_ago).unwrap();

    let process = scene.restart();
    let modified = fs::metadata(&manifest).unwrap().modified().unwrap();
    assert!(modified > long_ago, "the files were not written again");
    let replayed = ask(&process.client(), "first").await;
    assert_eq!(Print::of(&replayed), ledger.print("first"));
    assert_eq!(ledger.times("first"), 1);
}
