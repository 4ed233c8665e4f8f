//! Tests with clients that disconnect at any time: an execution that has started finishes, and an incomplete request is
//! never executed.

use std::time::Duration;

use tidegate::idempotency::RecordCounts;

use super::{
    assert_execution, assert_problem, assert_replay_of, numbered_executions, numbered_on_permit,
};
use crate::support::raw_http;
use crate::support::{Gateway, eventually};

const REQUEST: &str =
    "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k1\r\nContent-Length: 8\r\n\r\namount=1";

const CHUNKED: &str = "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k1\r\n\
                       Transfer-Encoding: chunked\r\n\r\n4\r\namou\r\n4\r\nnt=1\r\n0\r\n\r\n";

/// Sends the request of [`REQUEST`] again on a new connection.
async fn retry(gateway: &Gateway) -> crate::support::ClientResponse {
    let request = gateway.client().post("/pay").header("Host", "a").key("k1");
    request.body("amount=1").send().await
}

/// Waits until the gateway has handled all events before this call, for example a closed connection. The gateway must
/// have one worker, which handles the requests of this function after those events.
async fn wait_until_handled(gateway: &Gateway) {
    for _ in 0..5 {
        let rejected = gateway.client().post("/pay").key("no key").send().await;
        assert_problem(&rejected, 400, "idempotency-key-invalid");
    }
}

const ONE_WORKER: &str = "[server]\nworkers = 1";

#[tokio::test]
async fn an_execution_whose_client_disconnected_is_finished_and_recorded() {
    let (upstream, permits) = numbered_on_permit();
    let gateway = Gateway::keyed("")
        .with_section(ONE_WORKER)
        .upstream(&upstream)
        .start();
    let mut client = raw_http::RawClient::connect(gateway.address());
    client.send(REQUEST);
    eventually("upstream has the request", async || upstream.count() == 1).await;
    drop(client);
    wait_until_handled(&gateway).await;
    assert_eq!(gateway.counts().in_progress, 1);
    permits.add_permits(1);
    eventually("the response is recorded", async || {
        gateway.counts().completed == 1
    })
    .await;
    assert_replay_of(&retry(&gateway).await, 1);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_stream_that_is_reset_does_not_stop_its_execution() {
    let (upstream, permits) = numbered_on_permit();
    let gateway = Gateway::keyed("")
        .with_section(ONE_WORKER)
        .upstream(&upstream)
        .start();
    let client = gateway.client().h2();
    let mut connection = client.keep_alive().await;
    let mut stream = connection.open_stream();
    let request = client.post("/pay").key("k1");
    let first = tokio::spawn(async move { stream.send(request).await });
    eventually("upstream has the request", async || upstream.count() == 1).await;
    first.abort();
    assert!(first.await.is_err_and(|error| error.is_cancelled()));
    // The gateway handles frames of a connection in order, so it has handled the stream reset when it responds to these
    // requests.
    for _ in 0..5 {
        let rejected = connection.send(client.post("/pay").key("no key")).await;
        assert_problem(&rejected, 400, "idempotency-key-invalid");
    }
    assert_eq!(gateway.counts().in_progress, 1);
    permits.add_permits(1);
    eventually("the response is recorded", async || {
        gateway.counts().completed == 1
    })
    .await;
    assert_replay_of(&client.post("/pay").key("k1").send().await, 1);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn an_incomplete_request_is_not_executed() {
    let upstream = numbered_executions();
    let gateway = Gateway::keyed("")
        .with_section(ONE_WORKER)
        .admin()
        .upstream(&upstream)
        .start();
    for request in [REQUEST, CHUNKED] {
        let head = request
            .find("\r\n\r\n")
            .expect("the message should contain a complete head")
            + 4;
        let lengths = [1, 17, head - 2, head - 1, head, head + 1, request.len() - 4];
        for length in lengths.into_iter().chain([request.len() - 1]) {
            let mut client = raw_http::RawClient::connect(gateway.address());
            client.send(&request[..length]);
            drop(client);
        }
        // A single worker handles events in order, so it has handled the connections above when it responds to this
        // request.
        let after = gateway.client().get("/after").send().await;
        assert_eq!(after.status, 201);
    }
    gateway.wait_for_metric("connections", 0).await;
    let sent = upstream.requests();
    assert!(sent.iter().all(|request| request.method == "GET"));
    assert_eq!(gateway.counts(), RecordCounts::default());
    assert_execution(&retry(&gateway).await, 3);
    assert_replay_of(&retry(&gateway).await, 3);
}

#[tokio::test]
async fn the_execution_of_a_client_that_half_closes_is_recorded() {
    for request in [REQUEST, CHUNKED] {
        let (upstream, permits) = numbered_on_permit();
        let gateway = Gateway::keyed("").upstream(&upstream).start();
        let mut client = raw_http::RawClient::connect(gateway.address());
        client.send(request);
        eventually("upstream has the request", async || upstream.count() == 1).await;
        let half_closed = client.stream.shutdown(std::net::Shutdown::Write);
        half_closed.expect("the socket should be open");
        permits.add_permits(1);
        eventually("the response is recorded", async || {
            gateway.counts().completed == 1
        })
        .await;
        assert_replay_of(&retry(&gateway).await, 1);
        assert_eq!(upstream.count(), 1);
    }
}

#[tokio::test]
async fn a_response_whose_client_disconnects_while_reading_is_recorded() {
    // The response body is much larger than all socket buffers, so the gateway cannot send it completely before the
    // client disconnects.
    let body = "x".repeat(24 << 20);
    let response_body = body.clone();
    let upstream = crate::support::Upstream::with(move |_| {
        let body = response_body.clone();
        async move { crate::support::full(body) }
    });
    let gateway = Gateway::keyed("max_response = \"32MiB\"")
        .upstream(&upstream)
        .start();
    let mut client = raw_http::RawClient::connect(gateway.address());
    client.send(REQUEST);
    client.read_until(b"HTTP/1.1 200 ");
    drop(client);
    let replay = retry(&gateway).await;
    assert!(replay.is_replay() && replay.body == body);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_drain_waits_for_an_execution_whose_client_disconnected() {
    let (upstream, permits) = numbered_on_permit();
    let gateway = Gateway::keyed("").upstream(&upstream).start();
    let first = tokio::spawn(gateway.client().post("/pay").key("k1").send());
    eventually("upstream has the request", async || upstream.count() == 1).await;
    first.abort();
    assert!(first.await.is_err());
    gateway.drain();
    let client = gateway.client();
    let ended = tokio::task::spawn_blocking(move || gateway.wait_for_exit());
    eventually("the gateway accepts no connections", async || {
        client.connect().await.is_err()
    })
    .await;
    assert!(!ended.is_finished());
    permits.add_permits(1);
    let counts = ended.await.expect("the task should not panic");
    assert_eq!(
        (counts.completed, counts.unknown, counts.in_progress),
        (1, 0, 0)
    );
}

#[tokio::test]
async fn an_execution_beyond_shutdown_grace_becomes_unknown_on_disk() {
    let directory = tempfile::tempdir().expect("the temporary directory should be created");
    let (upstream, _permits) = numbered_on_permit();
    let builder = || {
        Gateway::keyed("")
            .with_section("[server]\nshutdown_grace = \"100ms\"")
            .on_disk(directory.path())
            .upstream(&upstream)
    };
    let gateway = builder().start();
    let first = tokio::spawn(gateway.client().post("/pay").key("k1").try_send());
    eventually("upstream has the request", async || upstream.count() == 1).await;
    gateway.drain();
    let counts = tokio::task::spawn_blocking(move || gateway.wait_for_exit()).await;
    let counts = counts.expect("the task should not panic");
    assert_eq!(counts.completed, 0);
    // The client must not get a response that looks like the result of the execution.
    let result = first.await.expect("the task should not panic");
    assert!(result.is_err() || result.is_ok_and(|response| response.status == 409));

    let gateway = builder().start();
    for _ in 0..2 {
        let request = gateway.client().post("/pay").key("k1");
        assert_problem(&request.send().await, 409, "idempotency-outcome-unknown");
    }
    assert_eq!(upstream.count(), 1);
    assert_eq!(gateway.counts().unknown, 1);
}

#[tokio::test]
async fn an_execution_beyond_shutdown_grace_becomes_unknown_in_memory() {
    let (upstream, _permits) = numbered_on_permit();
    let gateway = Gateway::keyed("")
        .with_section("[server]\nshutdown_grace = \"100ms\"")
        .upstream(&upstream)
        .start();
    let first = tokio::spawn(gateway.client().post("/pay").key("k1").try_send());
    eventually("upstream has the request", async || upstream.count() == 1).await;
    gateway.drain();
    let ended = tokio::task::spawn_blocking(move || gateway.wait_for_exit());
    let counts = tokio::time::timeout(Duration::from_secs(20), ended).await;
    let counts = counts
        .expect("the drain should end within 20 seconds")
        .expect("the task should not panic");
    assert_eq!((counts.in_progress, counts.unknown), (0, 1));
    drop(first);
}
