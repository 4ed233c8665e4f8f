//! Duplicates that come while the first is running: they wait for it and get what it got.

use std::time::{Duration, Instant};

use tidegate::idempotency::RecordCounts;
use tokio::task::JoinHandle;

use super::{held, held_with, is_execution, is_problem, is_replay_of, url};
use crate::harness::{Answer, Gateway, PATIENCE, Upstream, eventually};
use crate::wire_raw;

fn ask(gateway: &Gateway) -> JoinHandle<Answer> {
    tokio::spawn(gateway.client().post("/pay").key("k1").body("a").send())
}

/// The first under its key, once it runs, and `count` that wait for it.
async fn first_and_waiting(
    gateway: &Gateway,
    upstream: &Upstream,
    count: u32,
) -> (JoinHandle<Answer>, Vec<JoinHandle<Answer>>) {
    let sent = upstream.count();
    let first = ask(gateway);
    eventually("the first is running", || upstream.count() == sent + 1).await;
    let waiting = (0..count).map(|_| ask(gateway)).collect();
    gateway.has_counted("waited", count).await;
    (first, waiting)
}

#[tokio::test]
async fn those_who_wait_get_the_answer_as_soon_as_it_is_there() {
    let (upstream, permits) = held();
    let gateway = Gateway::keyed("wait_timeout = \"10m\"")
        .admin()
        .upstream(&upstream)
        .start();
    let (first, waiting) = first_and_waiting(&gateway, &upstream, 20).await;
    assert!(waiting.iter().all(|one| !one.is_finished()));
    permits.add_permits(1);
    let told = Instant::now();
    is_execution(&first.await.expect("an answer"), 1);
    for answer in waiting {
        is_replay_of(&answer.await.expect("an answer"), 1);
    }
    // Whoever only looked now and then would not do it twenty times within this.
    assert!(told.elapsed() < PATIENCE / 2, "{:?}", told.elapsed());
    assert_eq!(upstream.count(), 1);
    is_replay_of(&ask(&gateway).await.expect("an answer"), 1);
}

#[tokio::test]
async fn a_duplicate_does_not_wait_for_ever() {
    let (upstream, permits) = held();
    let gateway = Gateway::keyed("wait_timeout = \"200ms\"")
        .upstream(&upstream)
        .start();
    let first = ask(&gateway);
    eventually("the first is running", || upstream.count() == 1).await;
    let asked = Instant::now();
    let refused = ask(&gateway).await.expect("an answer");
    is_problem(&refused, 409, "idempotency-in-flight");
    assert_eq!(refused.header("retry-after"), "1");
    assert!(asked.elapsed() >= Duration::from_millis(200));
    permits.add_permits(1);
    is_execution(&first.await.expect("an answer"), 1);
    is_replay_of(&ask(&gateway).await.expect("an answer"), 1);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn one_who_hangs_up_while_waiting_costs_nobody_anything() {
    let (upstream, permits) = held();
    let gateway = Gateway::keyed("wait_timeout = \"10m\"")
        .admin()
        .upstream(&upstream)
        .start();
    let (first, mut waiting) = first_and_waiting(&gateway, &upstream, 10).await;
    for gone in waiting.drain(..9) {
        gone.abort();
        assert!(gone.await.is_err_and(|error| error.is_cancelled()));
    }
    // They are let go at once, and not when there is an answer for them.
    let deadline = Instant::now() + PATIENCE;
    while gateway.metric("connections").await > 2.5 {
        assert!(Instant::now() < deadline, "their connections are kept");
    }
    permits.add_permits(1);
    is_execution(&first.await.expect("an answer"), 1);
    let stayed = waiting.pop().expect("one is left");
    is_replay_of(&stayed.await.expect("an answer"), 1);
    is_replay_of(&ask(&gateway).await.expect("an answer"), 1);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn the_first_hanging_up_does_not_take_the_answer_from_those_who_wait() {
    let (upstream, permits) = held();
    let gateway = Gateway::keyed("wait_timeout = \"10m\"")
        .admin()
        .upstream(&upstream)
        .start();
    let (first, waiting) = first_and_waiting(&gateway, &upstream, 5).await;
    first.abort();
    assert!(first.await.is_err());
    permits.add_permits(1);
    for answer in waiting {
        is_replay_of(&answer.await.expect("an answer"), 1);
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn an_answer_that_says_not_done_is_told_to_all_who_wait_and_not_kept() {
    for (status, retry_after) in [
        (401, None),
        (403, None),
        (425, None),
        (429, Some("7")),
        (503, Some("7")),
        (408, Some("7")),
    ] {
        let (upstream, permits) = held_with(status, retry_after);
        let gateway = Gateway::keyed("wait_timeout = \"10m\"")
            .admin()
            .upstream(&upstream)
            .start();
        let (first, waiting) = first_and_waiting(&gateway, &upstream, 5).await;
        permits.add_permits(1);
        for answer in [first].into_iter().chain(waiting) {
            let answer = answer.await.expect("an answer");
            // Not a replay: nothing was kept that could be.
            is_execution(&answer, 1);
            assert_eq!(answer.status, status);
            assert_eq!(
                answer.header("retry-after"),
                retry_after.unwrap_or_default()
            );
        }
        assert_eq!(upstream.count(), 1, "no stampede after {status}");
        assert_eq!(gateway.counts(), RecordCounts::default());
        permits.add_permits(1);
        is_execution(&ask(&gateway).await.expect("an answer"), 2);
    }
}

#[tokio::test]
async fn where_the_outcome_is_lost_those_who_wait_are_told_at_once() {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let upstream = wire_raw::Upstream::scripted(move |conversation| {
        conversation.request();
        let held = released.lock().expect("no test panics holding it");
        let _ = held.recv();
        conversation.will_reset();
    });
    let gateway = Gateway::keyed("wait_timeout = \"10m\"")
        .admin()
        .upstream_url(&url(upstream.address))
        .start();
    let sent = || upstream.received().matches("POST /pay").count();
    let first = ask(&gateway);
    eventually("the first is running", || sent() == 1).await;
    let waiting: Vec<_> = (0..5).map(|_| ask(&gateway)).collect();
    gateway.has_counted("waited", 5).await;
    release.send(()).expect("an upstream that waits");
    let first = first.await.expect("an answer");
    is_problem(&first, 502, "upstream-unavailable");
    for answer in waiting {
        let answer = answer.await.expect("an answer");
        is_problem(&answer, 409, "idempotency-outcome-unknown");
    }
    let later = ask(&gateway).await.expect("an answer");
    is_problem(&later, 409, "idempotency-outcome-unknown");
    assert_eq!(sent(), 1);
    assert_eq!(gateway.counts().unknown, 1);
}

#[tokio::test]
async fn duplicates_on_one_http2_connection_wait_beside_each_other() {
    let (upstream, permits) = held();
    let gateway = Gateway::keyed("wait_timeout = \"10m\"")
        .admin()
        .upstream(&upstream)
        .start();
    let client = gateway.client().h2();
    let connection = client.keep_alive().await;
    let asked: Vec<_> = (0..50)
        .map(|_| {
            let (mut stream, asking) = (connection.stream_beside(), client.post("/pay").key("k1"));
            tokio::spawn(async move { stream.send(asking).await })
        })
        .collect();
    gateway.has_counted("waited", 49).await;
    permits.add_permits(1);
    let mut replays = 0;
    for answer in asked {
        let answer = answer.await.expect("an answer");
        assert_eq!(answer.text(), "execution 1");
        replays += usize::from(answer.is_replay());
    }
    assert_eq!((replays, upstream.count()), (49, 1));
}
