//! Crashes of the gateway at each step of one request with an idempotency key.

use std::os::unix::process::ExitStatusExt as _;

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::crash::execution_log::{ExecutionLog, KEY, ResponseDigest};
use crate::crash::setup::disk_gateway;
use crate::support::{Client, ClientResponse, Process, ProcessBuilder, eventually, is_unknown};

/// State of the idempotency key on disk after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StateOnDisk {
    /// Nothing is on disk for the idempotency key, so a retry is executed.
    Absent,
    /// A claim is on disk, so a retry receives "outcome unknown".
    Claim,
    /// A record is on disk, so a retry receives the stored response.
    Record,
}

/// Duplicate requests that are sent before the crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Duplicates {
    None,
    /// Two duplicate requests are sent at the same time as the first request.
    Concurrent,
    /// Two duplicate requests wait for the first request, which is in flight upstream.
    Waiting,
}

async fn post_work(client: Client) -> Option<ClientResponse> {
    let request = client.post("/work").header(KEY, "one").body("one");
    request.try_send().await.ok()
}

/// Returns whether two duplicate requests wait for the first request, according to the metrics.
async fn duplicates_wait(process: &Process) -> bool {
    let metrics = process.admin().get("/metrics").send().await.text();
    let waited = |line: &str| line.contains("outcome=\"waited\"") && line.ends_with(" 2");
    metrics.lines().any(waited)
}

/// Sends a request to a gateway that crashes at `failpoint`. Returns the responses that clients received before the
/// crash.
async fn crash(
    setup: &ProcessBuilder,
    failpoint: &str,
    duplicates: Duplicates,
    gate: &watch::Sender<bool>,
) -> Vec<ClientResponse> {
    let failpoints = format!("{failpoint}=return");
    let mut process = setup.start_failing(&failpoints);
    let mut clients = JoinSet::new();
    clients.spawn(post_work(process.client()));
    if duplicates != Duplicates::None {
        clients.spawn(post_work(process.client()));
        clients.spawn(post_work(process.client()));
    }
    if duplicates == Duplicates::Waiting {
        eventually("two duplicates wait", async || {
            duplicates_wait(&process).await
        })
        .await;
    }
    gate.send_replace(true);
    let received = clients.join_all().await.into_iter().flatten().collect();
    let status = process.wait_for_exit();
    assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()), "{status}");
    process.wait_for_line(&format!("failpoint {failpoint}: aborting the process"));
    received
}

/// Crashes a gateway at `failpoint` and restarts it. Checks that two retries receive the responses that the state
/// `expected` requires.
async fn crash_at(failpoint: &str, duplicates: Duplicates, expected: StateOnDisk) {
    let files = TempDir::new().unwrap();
    let executions = ExecutionLog::at(&files.path().join("executions"));
    let gate = watch::Sender::new(duplicates != Duplicates::Waiting);
    let upstream = executions.gated_upstream(1, "one", &gate.subscribe());
    let setup = disk_gateway(&upstream.url());
    let received = crash(&setup, failpoint, duplicates, &gate).await;
    // A waiting duplicate request can receive the response as soon as the record is on disk. No other request can
    // receive one before the crash.
    let may_receive = duplicates == Duplicates::Waiting && expected == StateOnDisk::Record;
    assert!(
        received.is_empty() || may_receive,
        "{failpoint}: {received:?}"
    );

    let process = setup.restart();
    let client = process.client();
    let first = post_work(client.clone()).await.unwrap();
    let second = post_work(client).await.unwrap();
    let replayed = |response: &ClientResponse| response.header("idempotent-replayed") == "true";
    if expected == StateOnDisk::Claim {
        assert!(is_unknown(&first), "{failpoint}: {first:?}");
        assert!(is_unknown(&second), "{failpoint}: {second:?}");
        // At the failpoint `after-claim`, the gateway has not sent the request to the upstream yet. At all later
        // failpoints it has sent the request, but the upstream has possibly not received it yet.
        let is_sent = failpoint != "after-claim";
        if is_sent {
            eventually("the request arrives", async || {
                executions.count_of("one") == 1
            })
            .await;
        }
        assert_eq!(executions.count_of("one"), usize::from(is_sent));
        return;
    }
    assert_eq!(
        replayed(&first),
        expected == StateOnDisk::Record,
        "{failpoint}: {first:?}"
    );
    assert!(replayed(&second), "{failpoint}: {second:?}");
    let digest = executions.digest("one");
    assert!(digest.is_some());
    assert_eq!(ResponseDigest::of(&first), digest);
    assert_eq!(ResponseDigest::of(&second), digest);
    assert_eq!(first.body, second.body);
    for received in received {
        assert!(replayed(&received));
        assert_eq!(ResponseDigest::of(&received), digest);
    }
    assert_eq!(executions.count_of("one"), 1);
}

#[tokio::test]
async fn a_retry_is_executed_after_a_crash_before_the_claim() {
    crash_at("before-claim", Duplicates::None, StateOnDisk::Absent).await;
    crash_at("before-claim", Duplicates::Concurrent, StateOnDisk::Absent).await;
}

#[tokio::test]
async fn the_outcome_is_unknown_and_the_request_not_sent_after_a_crash_after_the_claim() {
    crash_at("after-claim", Duplicates::None, StateOnDisk::Claim).await;
    crash_at("after-claim", Duplicates::Concurrent, StateOnDisk::Claim).await;
}

#[tokio::test]
async fn the_outcome_is_unknown_after_a_crash_while_the_response_is_received() {
    crash_at("mid-upstream", Duplicates::None, StateOnDisk::Claim).await;
    crash_at("mid-upstream", Duplicates::Waiting, StateOnDisk::Claim).await;
}

#[tokio::test]
async fn the_outcome_is_unknown_after_a_crash_before_the_response_is_recorded() {
    crash_at("after-upstream", Duplicates::None, StateOnDisk::Claim).await;
    crash_at("after-upstream", Duplicates::Waiting, StateOnDisk::Claim).await;
}

#[tokio::test]
async fn a_retry_receives_the_response_after_a_crash_after_it_is_recorded() {
    crash_at("after-commit", Duplicates::None, StateOnDisk::Record).await;
}

#[tokio::test]
async fn a_retry_receives_the_response_after_a_crash_while_it_is_sent() {
    crash_at("mid-reply", Duplicates::None, StateOnDisk::Record).await;
}

#[tokio::test]
async fn waiting_duplicates_receive_the_recorded_response_or_none_at_a_crash() {
    crash_at("after-commit", Duplicates::Waiting, StateOnDisk::Record).await;
    crash_at("mid-reply", Duplicates::Waiting, StateOnDisk::Record).await;
}
