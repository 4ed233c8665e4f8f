//! Tests of gateways whose store is on a full disk or on a read-only disk.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::sync::watch;

use crate::crash::execution_log::{ExecutionLog, KEY, ResponseDigest};
use crate::crash::setup::{disk_gateway_at, post_work};
use crate::support::small_disk::SmallDisk;
use crate::support::{Client, Process, ProcessBuilder, Upstream, eventually, is_problem};

/// Maximum time between the moment at which disk space becomes free and the next execution.
const MAX_RECOVERY: Duration = Duration::from_secs(5);

/// Sends requests with new idempotency keys until one is executed. Fails after [`MAX_RECOVERY`].
async fn wait_until_working(client: &Client, prefix: &str) {
    let deadline = Instant::now() + MAX_RECOVERY;
    for number in 0.. {
        let response = post_work(client, &format!("{prefix}-{number}")).await;
        if ResponseDigest::of(&response).is_some() {
            return;
        }
        assert!(is_problem(&response, "store-unavailable"), "{response:?}");
        assert!(Instant::now() < deadline, "still rejected: {response:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Sends requests with new idempotency keys until one is rejected because the disk is full. Returns the keys of the
/// executed requests.
async fn send_until_rejected(
    client: &Client,
    prefix: &str,
    executions: &ExecutionLog,
) -> Vec<String> {
    let mut done = Vec::new();
    for number in 0..10_000 {
        let key = format!("{prefix}-{number}");
        let response = post_work(client, &key).await;
        if response.status == 503 {
            assert!(is_problem(&response, "store-unavailable"), "{response:?}");
            assert!(response.retry_after() > 0);
            assert_eq!(executions.count_of(&key), 0);
            return done;
        }
        assert!(ResponseDigest::of(&response).is_some(), "{response:?}");
        done.push(key);
    }
    panic!("no request of 10,000 was rejected");
}

/// Sends a request with each idempotency key. Fails unless each receives a replay of the response of its only
/// execution.
async fn assert_all_replayed(client: &Client, keys: &[String], executions: &ExecutionLog) {
    for key in keys {
        let response = post_work(client, key).await;
        assert_eq!(
            response.header("idempotent-replayed"),
            "true",
            "{key}: {response:?}"
        );
        assert_eq!(
            ResponseDigest::of(&response),
            executions.digest(key),
            "{key}"
        );
        assert_eq!(executions.count_of(key), 1, "{key}");
    }
}

struct FullDiskFixture {
    executions: Arc<ExecutionLog>,
    gate: watch::Sender<bool>,
    process: Process,
    client: Client,
    setup: ProcessBuilder,
    disk: SmallDisk,
    /// Declared after `process`, so that the upstream is dropped after the gateway.
    _upstream: Upstream,
    _files: TempDir,
}

/// Starts a gateway whose store is on a small disk.
fn start() -> FullDiskFixture {
    let files = TempDir::new().unwrap();
    let executions = ExecutionLog::at(&files.path().join("executions"));
    let gate = watch::Sender::new(true);
    let upstream = executions.gated_upstream(3, "caught", &gate.subscribe());
    let disk = SmallDisk::mount();
    let store = disk.path().join("store");
    let setup = disk_gateway_at(&store, &upstream.url());
    let process = setup.restart();
    let client = process.client();
    FullDiskFixture {
        executions,
        gate,
        process,
        client,
        setup,
        disk,
        _upstream: upstream,
        _files: files,
    }
}

#[tokio::test]
async fn on_a_full_disk_new_keys_are_rejected_until_there_is_space_again() {
    let mut fixture = start();
    let (client, executions) = (&fixture.client, &fixture.executions);
    let mut done: Vec<String> = Vec::new();
    for number in 0..50 {
        let key = format!("early-{number}");
        assert!(ResponseDigest::of(&post_work(client, &key).await).is_some());
        done.push(key);
    }

    for round in ["first", "second"] {
        fixture.disk.fill();
        done.extend(send_until_rejected(client, round, executions).await);
        let reason = fixture.process.wait_for_line("idempotency store failed");
        assert!(reason.contains("No space left on device"), "{reason}");

        // Requests without an idempotency key are served while the disk is full.
        let unkeyed = client.post("/work").body("no key").send().await;
        assert!(ResponseDigest::of(&unkeyed).is_some(), "{unkeyed:?}");
        let rejected = format!("{round}-rejected");
        let before = executions.count();
        for _ in 0..20 {
            let response = post_work(client, &rejected).await;
            assert!(is_problem(&response, "store-unavailable"), "{response:?}");
        }
        assert_eq!(
            executions.count(),
            before,
            "a rejected request was executed"
        );

        fixture.disk.empty();
        wait_until_working(client, &format!("{round}-after")).await;
        assert_all_replayed(client, &done, executions).await;
        let response = post_work(client, &rejected).await;
        assert!(ResponseDigest::of(&response).is_some(), "{response:?}");
        assert!(!response.has("idempotent-replayed"));
        done.push(rejected);
    }

    fixture.process.kill();
    let process = fixture.setup.restart();
    assert_all_replayed(&process.client(), &done, executions).await;
    assert_eq!(
        executions.repeated(),
        [""],
        "only requests without a key execute more than once"
    );
}

/// Number of requests that are sent and rejected while the disk is full.
const REJECTED: usize = 3_000;

const DEGRADED: &str = "store_degraded{part=\"records\"}";

#[tokio::test]
async fn a_full_disk_is_logged_once_and_reported_by_readyz_and_metrics_until_it_ends() {
    let mut fixture = start();
    let (client, executions) = (&fixture.client, &fixture.executions);
    assert!(ResponseDigest::of(&post_work(client, "early").await).is_some());
    assert_eq!(fixture.process.readyz().await, "ready\n");
    assert_eq!(fixture.process.metric(DEGRADED).await, 0);
    let before = fixture.process.lines().len();

    fixture.disk.fill();
    send_until_rejected(client, "full", executions).await;
    let mut connection = client.keep_alive().await;
    for number in 0..REJECTED {
        let request = client.post("/work").header(KEY, &format!("no-{number}"));
        let rejected = connection.send(request).await;
        assert!(is_problem(&rejected, "store-unavailable"), "{rejected:?}");
    }
    let lines = fixture.process.lines().split_off(before);
    // One line reports the failure of the idempotency store. Another one is possible for the snapshot of rate limit
    // buckets.
    assert!(lines.len() <= 2, "{} lines: {lines:#?}", lines.len());
    let text = fixture.process.readyz().await;
    assert!(text.starts_with("ready, degraded: records: "), "{text}");
    assert!(text.contains("No space left on device"), "{text}");
    assert_eq!(fixture.process.metric(DEGRADED).await, 1);
    let errors = "idempotency_store_errors_total{route=\"all\"}";
    assert!(fixture.process.metric(errors).await >= REJECTED as u64);
    let failures = "store_failures_total{part=\"records\"}";
    assert!(fixture.process.metric(failures).await > 0);

    fixture.disk.empty();
    wait_until_working(client, "after").await;
    assert_eq!(fixture.process.readyz().await, "ready\n");
    assert_eq!(fixture.process.metric(DEGRADED).await, 0);
    let lines = fixture.process.lines().split_off(before);
    assert!(lines.len() <= 4, "{lines:#?}");
    assert_eq!(fixture.process.count_lines("idempotency store failed,"), 1);
    assert_eq!(fixture.process.count_lines("idempotency store reopened"), 1);

    // A gateway that starts on a full disk reports the failure too. It deletes the reserve file and opens its store in
    // the freed space.
    fixture.process.kill();
    fixture.disk.fill();
    let process = fixture.setup.restart();
    let reason = process.wait_for_line("idempotency store failed,");
    assert!(reason.contains("No space left on device"), "{reason}");
    let text = process.readyz().await;
    assert!(text.starts_with("ready, degraded: records: "), "{text}");
    assert_eq!(process.metric(DEGRADED).await, 1);
    fixture.disk.empty();
    wait_until_working(&process.client(), "restarted").await;
    assert_eq!(process.readyz().await, "ready\n");
    assert_eq!(process.metric(DEGRADED).await, 0);
    assert_eq!(process.count_lines("idempotency store failed,"), 1);
}

#[tokio::test]
async fn an_execution_in_flight_when_the_disk_fills_up_records_its_response_in_the_reserve() {
    let mut fixture = start();
    let (client, executions) = (&fixture.client, &fixture.executions);
    assert!(ResponseDigest::of(&post_work(client, "early").await).is_some());

    fixture.gate.send_replace(false);
    let first = tokio::spawn({
        let client = client.clone();
        async move { post_work(&client, "caught").await }
    });
    eventually("it is executed", async || {
        executions.count_of("caught") == 1
    })
    .await;
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { post_work(&client, "caught").await }
    });
    fixture.disk.fill();
    let done = send_until_rejected(client, "full", executions).await;
    fixture.gate.send_replace(true);
    for received in [first.await.unwrap(), waiting.await.unwrap()] {
        assert_eq!(
            ResponseDigest::of(&received),
            executions.digest("caught"),
            "{received:?}"
        );
    }
    // While the disk is full, no request with another idempotency key is executed.
    for number in 0..20 {
        let rejected = post_work(client, &format!("more-{number}")).await;
        assert!(is_problem(&rejected, "store-unavailable"), "{rejected:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_all_replayed(client, &["caught".into()], executions).await;

    fixture.disk.empty();
    wait_until_working(client, "after").await;
    fixture.process.kill();
    let process = fixture.setup.restart();
    assert_all_replayed(&process.client(), &done, executions).await;
    assert_all_replayed(&process.client(), &["caught".into()], executions).await;
}

/// The store itself fills the disk, so the write that fails first can come from a background thread of the storage
/// engine.
#[tokio::test]
async fn no_response_is_lost_when_responses_fill_the_disk() {
    let mut fixture = start();
    fixture.disk.remount("size=40m");
    let (client, executions) = (fixture.client.clone(), Arc::clone(&fixture.executions));
    let mut done = Vec::new();
    for worker in 0..8 {
        let (client, executions) = (client.clone(), Arc::clone(&executions));
        done.push(tokio::spawn(async move {
            send_until_rejected(&client, &format!("large-{worker}"), &executions).await
        }));
    }
    let mut keys = Vec::new();
    for worker in done {
        keys.extend(worker.await.unwrap());
    }
    assert!(keys.len() > 500, "the disk was full after {}", keys.len());

    fixture.disk.remount("size=200m");
    wait_until_working(&client, "after").await;
    assert_all_replayed(&client, &keys, &executions).await;
    fixture.process.kill();
    let process = fixture.setup.restart();
    assert_all_replayed(&process.client(), &keys, &executions).await;
    assert_eq!(executions.repeated(), [] as [String; 0]);
}

/// The test remounts the file system as read-only after it has killed the first gateway, because a file system cannot
/// become read-only while files are open for writing.
#[tokio::test]
async fn a_gateway_with_a_read_only_store_exits_with_a_remedy() {
    let mut fixture = start();
    assert!(ResponseDigest::of(&post_work(&fixture.client, "early").await).is_some());
    fixture.process.kill();

    fixture.disk.remount("ro");
    let mut rejected = fixture.setup.start();
    assert!(!rejected.wait_for_exit().success());
    let reason = rejected.wait_for_line("cannot use the store directory");
    assert!(reason.contains("Read-only file system"), "{reason}");
    assert!(reason.contains("another directory"), "{reason}");

    fixture.disk.remount("rw");
    let process = fixture.setup.restart();
    assert_all_replayed(&process.client(), &["early".into()], &fixture.executions).await;
}
