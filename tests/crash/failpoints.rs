//! The gateway dead at each step of one keyed request.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::harness::{Answer, Client, Process, eventually};
use crate::ledger::{KEY, Ledger, Print};
use crate::scene::{Scene, is_unknown};

/// The gateway built with the tests: the only one that has failpoints.
const TIDEGATE: &str = env!("CARGO_BIN_EXE_tidegate");

/// What a retry finds after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// Nothing: it is carried out now.
    Nothing,
    /// A claim.
    Claim,
    /// The answer of the only execution.
    Record,
}

/// Others with the same key at the time of the crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    None,
    /// They come at the same time.
    Beside,
    /// They wait for the first, which is upstream.
    Waiting,
}

async fn ask(client: Client) -> Option<Answer> {
    let asking = client.post("/work").header(KEY, "one").body("one");
    asking.try_send().await.ok()
}

async fn waits(process: &Process) -> bool {
    let metrics = process.admin().get("/metrics").send().await.text();
    let waited = |line: &str| line.contains("outcome=\"waited\"") && line.ends_with(" 2");
    metrics.lines().any(waited)
}

/// Sends the key to a gateway that dies of `failpoint`; the answers that came all the same.
async fn crash(
    scene: &Scene,
    failpoint: &str,
    others: Others,
    gate: &watch::Sender<bool>,
) -> Vec<Answer> {
    let failpoints = format!("{failpoint}=return");
    let mut process = scene.start_as(Path::new(TIDEGATE), &[("FAILPOINTS", &failpoints)]);
    let mut clients = JoinSet::new();
    clients.spawn(ask(process.client()));
    if others != Others::None {
        clients.spawn(ask(process.client()));
        clients.spawn(ask(process.client()));
    }
    if others == Others::Waiting {
        let deadline = std::time::Instant::now() + crate::harness::PATIENCE;
        while !waits(&process).await {
            assert!(std::time::Instant::now() < deadline, "nobody waits");
        }
    }
    gate.send_replace(true);
    let told = clients.join_all().await.into_iter().flatten().collect();
    let status = process.end();
    assert_eq!(status.signal(), Some(Signal::ABORT.as_raw()), "{status}");
    process.line_with(&format!("failpoint {failpoint}: the process dies here"));
    told
}

async fn dies(failpoint: &str, others: Others, left: Left) {
    let files = TempDir::new().unwrap();
    let ledger = Ledger::at(&files.path().join("ledger"));
    let gate = watch::Sender::new(others != Others::Waiting);
    let upstream = ledger.gated_upstream(1, "one", &gate.subscribe());
    let scene = Scene::before(&upstream.url());
    let told = crash(&scene, failpoint, others, &gate).await;
    // Those who wait learn of a record at the same moment as the first; nobody else is told anything.
    let may_be_told = others == Others::Waiting && left == Left::Record;
    assert!(told.is_empty() || may_be_told, "{failpoint}: {told:?}");

    let process = scene.restart();
    let client = process.client();
    let first = ask(client.clone()).await.unwrap();
    let second = ask(client).await.unwrap();
    let replayed = |answer: &Answer| answer.header("idempotent-replayed") == "true";
    if left == Left::Claim {
        assert!(is_unknown(&first), "{failpoint}: {first:?}");
        assert!(is_unknown(&second), "{failpoint}: {second:?}");
        // A request that was on its way when the gateway died may arrive late, once.
        let may_arrive = failpoint != "after-claim";
        if may_arrive {
            eventually("the request arrives", || ledger.times("one") == 1).await;
        }
        assert_eq!(ledger.times("one"), usize::from(may_arrive));
        return;
    }
    assert_eq!(
        replayed(&first),
        left == Left::Record,
        "{failpoint}: {first:?}"
    );
    assert!(replayed(&second), "{failpoint}: {second:?}");
    let print = ledger.print("one");
    assert!(print.is_some());
    assert_eq!(Print::of(&first), print);
    assert_eq!(Print::of(&second), print);
    assert_eq!(first.body, second.body);
    for told in told {
        assert!(replayed(&told));
        assert_eq!(Print::of(&told), print);
    }
    assert_eq!(ledger.times("one"), 1);
}

#[tokio::test]
async fn a_crash_before_the_claim_leaves_nothing_and_the_retry_is_carried_out() {
    dies("before-claim", Others::None, Left::Nothing).await;
    dies("before-claim", Others::Beside, Left::Nothing).await;
}

#[tokio::test]
async fn a_crash_after_the_claim_leaves_the_key_unknown_and_nothing_was_carried_out() {
    dies("after-claim", Others::None, Left::Claim).await;
    dies("after-claim", Others::Beside, Left::Claim).await;
}

#[tokio::test]
async fn a_crash_with_the_answer_on_its_way_leaves_the_key_unknown() {
    dies("mid-upstream", Others::None, Left::Claim).await;
    dies("mid-upstream", Others::Waiting, Left::Claim).await;
}

#[tokio::test]
async fn a_crash_with_the_answer_there_and_not_recorded_leaves_the_key_unknown() {
    dies("after-upstream", Others::None, Left::Claim).await;
    dies("after-upstream", Others::Waiting, Left::Claim).await;
}

#[tokio::test]
async fn a_crash_after_the_record_leaves_the_answer_for_the_retry() {
    dies("after-commit", Others::None, Left::Record).await;
}

#[tokio::test]
async fn a_crash_halfway_through_the_reply_leaves_the_answer_for_the_retry() {
    dies("mid-reply", Others::None, Left::Record).await;
}

#[tokio::test]
async fn those_who_waited_for_a_record_and_lived_to_be_told_were_told_the_same() {
    dies("after-commit", Others::Waiting, Left::Record).await;
    dies("mid-reply", Others::Waiting, Left::Record).await;
}
