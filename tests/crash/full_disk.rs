//! A disk that is full, and one that can no longer be written.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::sync::watch;

use crate::harness::{Answer, Client, Process, Upstream, eventually};
use crate::ledger::{KEY, Ledger, Print};
use crate::scene::{Scene, is_problem, kill, lines_with, metric, readyz};
use crate::small_disk::SmallDisk;

/// How long a gateway may take to work again when it could.
const RECOVERY: Duration = Duration::from_secs(5);

async fn ask(client: &Client, key: &str) -> Answer {
    let asking = client.post("/work").header(KEY, key).body(key.to_owned());
    asking.send().await
}

/// Asks under new keys until one is carried out; that must not take long.
async fn works_again(client: &Client, prefix: &str) {
    let deadline = Instant::now() + RECOVERY;
    for number in 0.. {
        let answer = ask(client, &format!("{prefix}-{number}")).await;
        if Print::of(&answer).is_some() {
            return;
        }
        assert!(is_problem(&answer, "store-unavailable"), "{answer:?}");
        assert!(Instant::now() < deadline, "still refused: {answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Sends new keys until one is rejected because the disk is full. Returns the keys that were executed.
async fn until_refused(client: &Client, prefix: &str, ledger: &Ledger) -> Vec<String> {
    let mut done = Vec::new();
    for number in 0..10_000 {
        let key = format!("{prefix}-{number}");
        let answer = ask(client, &key).await;
        if answer.status == 503 {
            assert!(is_problem(&answer, "store-unavailable"), "{answer:?}");
            assert!(answer.retry_after() > 0);
            assert_eq!(ledger.times(&key), 0);
            return done;
        }
        assert!(Print::of(&answer).is_some(), "{answer:?}");
        done.push(key);
    }
    panic!("the disk is never full");
}

/// Whether every one of these keys is answered as it was.
async fn all_replayed(client: &Client, keys: &[String], ledger: &Ledger) {
    for key in keys {
        let answer = ask(client, key).await;
        assert_eq!(
            answer.header("idempotent-replayed"),
            "true",
            "{key}: {answer:?}"
        );
        assert_eq!(Print::of(&answer), ledger.print(key), "{key}");
        assert_eq!(ledger.times(key), 1, "{key}");
    }
}

struct Stage {
    ledger: Arc<Ledger>,
    gate: watch::Sender<bool>,
    process: Process,
    client: Client,
    scene: Scene,
    disk: SmallDisk,
    /// Dropped last.
    _upstream: Upstream,
    _files: TempDir,
}

/// A gateway with its store on a small disk.
fn stage() -> Stage {
    let files = TempDir::new().unwrap();
    let ledger = Ledger::at(&files.path().join("ledger"));
    let gate = watch::Sender::new(true);
    let upstream = ledger.gated_upstream(3, "caught", &gate.subscribe());
    let disk = SmallDisk::mount();
    let store = disk.path().join("store");
    let scene = Scene::with_store(TempDir::new().unwrap(), &store, &upstream.url());
    let process = scene.restart();
    let client = process.client();
    Stage {
        ledger,
        gate,
        process,
        client,
        scene,
        disk,
        _upstream: upstream,
        _files: files,
    }
}

#[tokio::test]
async fn on_a_full_disk_keys_are_refused_the_rest_is_served_and_space_is_all_it_takes() {
    let mut stage = stage();
    let (client, ledger) = (&stage.client, &stage.ledger);
    let mut done: Vec<String> = Vec::new();
    for number in 0..50 {
        let key = format!("early-{number}");
        assert!(Print::of(&ask(client, &key).await).is_some());
        done.push(key);
    }

    for round in ["first", "second"] {
        stage.disk.fill();
        done.extend(until_refused(client, round, ledger).await);
        let reason = stage.process.line_with("idempotency store failed");
        assert!(reason.contains("No space left on device"), "{reason}");

        // What needs no store is served, and what is in memory is replayed.
        let unkeyed = client.post("/work").body("no key").send().await;
        assert!(Print::of(&unkeyed).is_some(), "{unkeyed:?}");
        let refused = format!("{round}-refused");
        let before = ledger.count();
        for _ in 0..20 {
            let answer = ask(client, &refused).await;
            assert!(is_problem(&answer, "store-unavailable"), "{answer:?}");
        }
        assert_eq!(ledger.count(), before, "a refused request was carried out");

        stage.disk.empty();
        works_again(client, &format!("{round}-after")).await;
        all_replayed(client, &done, ledger).await;
        let answer = ask(client, &refused).await;
        assert!(Print::of(&answer).is_some(), "{answer:?}");
        assert!(!answer.has("idempotent-replayed"));
        done.push(refused);
    }

    kill(&mut stage.process);
    let process = stage.scene.restart();
    all_replayed(&process.client(), &done, ledger).await;
    assert_eq!(
        ledger.repeated(),
        [""],
        "only requests without a key are repeated"
    );
}

/// Requests that are rejected while the disk is full.
const REJECTED: usize = 3_000;

const DEGRADED: &str = "store_degraded{part=\"records\"}";

#[tokio::test]
async fn a_full_disk_is_logged_when_it_begins_and_ends_and_reported_in_between() {
    let mut stage = stage();
    let (client, ledger) = (&stage.client, &stage.ledger);
    assert!(Print::of(&ask(client, "early").await).is_some());
    assert_eq!(readyz(&stage.process).await, "ready\n");
    assert_eq!(metric(&stage.process, DEGRADED).await, 0);
    let before = stage.process.lines().len();

    stage.disk.fill();
    until_refused(client, "full", ledger).await;
    let mut connection = client.keep_alive().await;
    for number in 0..REJECTED {
        let request = client.post("/work").header(KEY, &format!("no-{number}"));
        let rejected = connection.send(request).await;
        assert!(is_problem(&rejected, "store-unavailable"), "{rejected:?}");
    }
    let lines = stage.process.lines().split_off(before);
    // The failure, and perhaps that of a snapshot.
    assert!(lines.len() <= 2, "{} lines: {lines:#?}", lines.len());
    let text = readyz(&stage.process).await;
    assert!(text.starts_with("ready, degraded: records: "), "{text}");
    assert!(text.contains("No space left on device"), "{text}");
    assert_eq!(metric(&stage.process, DEGRADED).await, 1);
    let errors = "idempotency_store_errors_total{route=\"all\"}";
    assert!(metric(&stage.process, errors).await >= REJECTED as u64);
    let failures = "store_failures_total{part=\"records\"}";
    assert!(metric(&stage.process, failures).await > 0);

    stage.disk.empty();
    works_again(client, "after").await;
    assert_eq!(readyz(&stage.process).await, "ready\n");
    assert_eq!(metric(&stage.process, DEGRADED).await, 0);
    let lines = stage.process.lines().split_off(before);
    assert!(lines.len() <= 4, "{lines:#?}");
    assert_eq!(lines_with(&stage.process, "idempotency store failed,"), 1);
    assert_eq!(lines_with(&stage.process, "idempotency store reopened"), 1);

    // A gateway that starts on a full disk reports it as well. It opens its store in the space of the reserve.
    kill(&mut stage.process);
    stage.disk.fill();
    let process = stage.scene.restart();
    let reason = process.line_with("idempotency store failed,");
    assert!(reason.contains("No space left on device"), "{reason}");
    let text = readyz(&process).await;
    assert!(text.starts_with("ready, degraded: records: "), "{text}");
    assert_eq!(metric(&process, DEGRADED).await, 1);
    stage.disk.empty();
    works_again(&process.client(), "restarted").await;
    assert_eq!(readyz(&process).await, "ready\n");
    assert_eq!(metric(&process, DEGRADED).await, 0);
    assert_eq!(lines_with(&process, "idempotency store failed,"), 1);
}

#[tokio::test]
async fn an_execution_in_flight_when_the_disk_fills_up_records_its_response_in_the_reserve() {
    let mut stage = stage();
    let (client, ledger) = (&stage.client, &stage.ledger);
    assert!(Print::of(&ask(client, "early").await).is_some());

    stage.gate.send_replace(false);
    let first = tokio::spawn({
        let client = client.clone();
        async move { ask(&client, "caught").await }
    });
    eventually("it is executed", || ledger.times("caught") == 1).await;
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { ask(&client, "caught").await }
    });
    stage.disk.fill();
    let done = until_refused(client, "full", ledger).await;
    stage.gate.send_replace(true);
    for received in [first.await.unwrap(), waiting.await.unwrap()] {
        assert_eq!(Print::of(&received), ledger.print("caught"), "{received:?}");
    }
    // Without space for more, no other request is executed, however long the disk stays full.
    for number in 0..20 {
        let rejected = ask(client, &format!("more-{number}")).await;
        assert!(is_problem(&rejected, "store-unavailable"), "{rejected:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    all_replayed(client, &["caught".into()], ledger).await;

    stage.disk.empty();
    works_again(client, "after").await;
    kill(&mut stage.process);
    let process = stage.scene.restart();
    all_replayed(&process.client(), &done, ledger).await;
    all_replayed(&process.client(), &["caught".into()], ledger).await;
}

/// What fills the disk here is the store, and so what fails first may be the engine's own housekeeping.
#[tokio::test]
async fn a_disk_that_the_answers_themselves_fill_loses_none_of_them() {
    let mut stage = stage();
    stage.disk.remount("size=40m");
    let (client, ledger) = (stage.client.clone(), Arc::clone(&stage.ledger));
    let mut done = Vec::new();
    for worker in 0..8 {
        let (client, ledger) = (client.clone(), Arc::clone(&ledger));
        done.push(tokio::spawn(async move {
            until_refused(&client, &format!("large-{worker}"), &ledger).await
        }));
    }
    let mut keys = Vec::new();
    for worker in done {
        keys.extend(worker.await.unwrap());
    }
    assert!(keys.len() > 500, "the disk was full after {}", keys.len());

    stage.disk.remount("size=200m");
    works_again(&client, "after").await;
    all_replayed(&client, &keys, &ledger).await;
    kill(&mut stage.process);
    let process = stage.scene.restart();
    all_replayed(&process.client(), &keys, &ledger).await;
    assert_eq!(ledger.repeated(), [] as [String; 0]);
}

/// A file system does not turn read-only by command while a gateway has files on it open for writing, so
/// it does so between two gateways.
#[tokio::test]
async fn a_gateway_whose_store_is_read_only_does_not_start_and_says_what_to_do() {
    let mut stage = stage();
    assert!(Print::of(&ask(&stage.client, "early").await).is_some());
    kill(&mut stage.process);

    stage.disk.remount("ro");
    let mut refused = stage.scene.start(&[]);
    assert!(!refused.end().success());
    let reason = refused.line_with("cannot use the store directory");
    assert!(reason.contains("Read-only file system"), "{reason}");
    assert!(reason.contains("name another"), "{reason}");

    stage.disk.remount("rw");
    let process = stage.scene.restart();
    all_replayed(&process.client(), &["early".into()], &stage.ledger).await;
}
