//! The client gone at any instant: what was begun is finished, what was not begun never happens.

use std::time::Duration;

use tidegate::idempotency::RecordCounts;

use super::{held, is_execution, is_problem, is_replay_of, numbering};
use crate::harness::{Gateway, eventually};
use crate::wire_raw;

const REQUEST: &str =
    "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k1\r\nContent-Length: 8\r\n\r\namount=1";

const CHUNKED: &str = "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k1\r\n\
                       Transfer-Encoding: chunked\r\n\r\n4\r\namou\r\n4\r\nnt=1\r\n0\r\n\r\n";

/// The same request again, on a connection of its own.
async fn retry(gateway: &Gateway) -> crate::harness::Answer {
    let asking = gateway.client().post("/pay").header("Host", "a").key("k1");
    asking.body("amount=1").send().await
}

/// Has a gateway of one worker do something that comes after all that has reached it.
async fn has_noticed(gateway: &Gateway) {
    for _ in 0..5 {
        let refused = gateway.client().post("/pay").key("no key").send().await;
        is_problem(&refused, 400, "idempotency-key-invalid");
    }
}

const ONE_WORKER: &str = "[server]\nworkers = 1";

#[tokio::test]
async fn an_execution_whose_client_has_gone_is_finished_and_recorded() {
    let (upstream, permits) = held();
    let gateway = Gateway::keyed("")
        .and(ONE_WORKER)
        .upstream(&upstream)
        .start();
    let mut client = wire_raw::Client::connect(gateway.address());
    client.send(REQUEST);
    eventually("upstream has the request", || upstream.count() == 1).await;
    drop(client);
    has_noticed(&gateway).await;
    assert_eq!(gateway.counts().in_progress, 1);
    permits.add_permits(1);
    eventually("it is recorded", || gateway.counts().completed == 1).await;
    is_replay_of(&retry(&gateway).await, 1);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_stream_that_is_reset_does_not_stop_its_execution() {
    let (upstream, permits) = held();
    let gateway = Gateway::keyed("")
        .and(ONE_WORKER)
        .upstream(&upstream)
        .start();
    let client = gateway.client().h2();
    let mut connection = client.keep_alive().await;
    let mut stream = connection.stream_beside();
    let asking = client.post("/pay").key("k1");
    let first = tokio::spawn(async move { stream.send(asking).await });
    eventually("upstream has the request", || upstream.count() == 1).await;
    first.abort();
    assert!(first.await.is_err_and(|error| error.is_cancelled()));
    // What follows on the same connection comes after the reset.
    for _ in 0..5 {
        let refused = connection.send(client.post("/pay").key("no key")).await;
        is_problem(&refused, 400, "idempotency-key-invalid");
    }
    assert_eq!(gateway.counts().in_progress, 1);
    permits.add_permits(1);
    eventually("it is recorded", || gateway.counts().completed == 1).await;
    is_replay_of(&client.post("/pay").key("k1").send().await, 1);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn nothing_is_carried_out_until_the_request_is_complete() {
    let upstream = numbering();
    let gateway = Gateway::keyed("")
        .and(ONE_WORKER)
        .admin()
        .upstream(&upstream)
        .start();
    for request in [REQUEST, CHUNKED] {
        let head = request.find("\r\n\r\n").expect("a head") + 4;
        let cuts = [1, 17, head - 2, head - 1, head, head + 1, request.len() - 4];
        for cut in cuts.into_iter().chain([request.len() - 1]) {
            let mut client = wire_raw::Client::connect(gateway.address());
            client.send(&request[..cut]);
            drop(client);
        }
        // A worker does things in order, and these have come before this.
        let after = gateway.client().get("/after").send().await;
        assert_eq!(after.status, 201);
    }
    let deadline = std::time::Instant::now() + crate::harness::PATIENCE;
    while gateway.metric("connections").await > 0.5 {
        assert!(std::time::Instant::now() < deadline, "they are kept open");
    }
    let sent = upstream.requests();
    assert!(sent.iter().all(|request| request.method == "GET"));
    assert_eq!(gateway.counts(), RecordCounts::default());
    is_execution(&retry(&gateway).await, 3);
    is_replay_of(&retry(&gateway).await, 3);
}

#[tokio::test]
async fn a_client_that_only_stops_sending_gets_its_answer_or_finds_it_recorded() {
    for request in [REQUEST, CHUNKED] {
        let (upstream, permits) = held();
        let gateway = Gateway::keyed("").upstream(&upstream).start();
        let mut client = wire_raw::Client::connect(gateway.address());
        client.send(request);
        eventually("upstream has the request", || upstream.count() == 1).await;
        let half = client.stream.shutdown(std::net::Shutdown::Write);
        half.expect("an open socket");
        permits.add_permits(1);
        eventually("it is recorded", || gateway.counts().completed == 1).await;
        is_replay_of(&retry(&gateway).await, 1);
        assert_eq!(upstream.count(), 1);
    }
}

#[tokio::test]
async fn a_client_that_goes_while_it_is_answered_finds_the_answer_recorded() {
    // Far more than the buffers of two kernels hold.
    let body = "x".repeat(24 << 20);
    let kept = body.clone();
    let upstream = crate::harness::Upstream::with(move |_| {
        let body = kept.clone();
        async move { crate::harness::full(body) }
    });
    let gateway = Gateway::keyed("max_response = \"32MiB\"")
        .upstream(&upstream)
        .start();
    let mut client = wire_raw::Client::connect(gateway.address());
    client.send(REQUEST);
    client.until(b"HTTP/1.1 200 ");
    drop(client);
    let replay = retry(&gateway).await;
    assert!(replay.is_replay() && replay.body == body);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_drain_waits_for_an_execution_whose_client_has_gone() {
    let (upstream, permits) = held();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let first = tokio::spawn(gateway.client().post("/pay").key("k1").send());
    eventually("upstream has the request", || upstream.count() == 1).await;
    first.abort();
    assert!(first.await.is_err());
    gateway.drain();
    let client = gateway.client();
    let ended = tokio::task::spawn_blocking(move || gateway.ended());
    let deadline = std::time::Instant::now() + crate::harness::PATIENCE;
    while client.connect().await.is_ok() {
        assert!(std::time::Instant::now() < deadline, "it takes connections");
    }
    assert!(!ended.is_finished());
    permits.add_permits(1);
    let left = ended.await.expect("an end");
    assert_eq!((left.completed, left.unknown, left.in_progress), (1, 0, 0));
}

#[tokio::test]
async fn what_outlasts_the_grace_of_a_drain_is_unknown() {
    let directory = tempfile::tempdir().expect("a directory");
    let (upstream, _permits) = held();
    let plan = || {
        Gateway::keyed("")
            .and("[server]\nshutdown_grace = \"100ms\"")
            .on_disk(directory.path())
            .upstream(&upstream)
    };
    let gateway = plan().start();
    let first = tokio::spawn(gateway.client().post("/pay").key("k1").try_send());
    eventually("upstream has the request", || upstream.count() == 1).await;
    gateway.drain();
    let left = tokio::task::spawn_blocking(move || gateway.ended()).await;
    let left = left.expect("an end");
    assert_eq!(left.completed, 0);
    // Its caller got no answer that could be taken for one.
    let told = first.await.expect("no panic");
    assert!(told.is_err() || told.is_ok_and(|answer| answer.status == 409));

    let gateway = plan().start();
    for _ in 0..2 {
        let asking = gateway.client().post("/pay").key("k1");
        is_problem(&asking.send().await, 409, "idempotency-outcome-unknown");
    }
    assert_eq!(upstream.count(), 1);
    assert_eq!(gateway.counts().unknown, 1);
}

#[tokio::test]
async fn in_memory_too_what_outlasts_the_grace_is_unknown() {
    let (upstream, _permits) = held();
    let gateway = Gateway::keyed("")
        .and("[server]\nshutdown_grace = \"100ms\"")
        .upstream(&upstream)
        .start();
    let first = tokio::spawn(gateway.client().post("/pay").key("k1").try_send());
    eventually("upstream has the request", || upstream.count() == 1).await;
    gateway.drain();
    let ended = tokio::task::spawn_blocking(move || gateway.ended());
    let left = tokio::time::timeout(Duration::from_secs(20), ended).await;
    let left = left.expect("the grace is bounded").expect("an end");
    assert_eq!((left.in_progress, left.unknown), (0, 1));
    drop(first);
}
