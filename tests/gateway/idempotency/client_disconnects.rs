//! Clients that disconnect at any time: a started execution finishes, and an incomplete request is never executed.

use std::time::Duration;

use tidegate::idempotency::RecordCounts;

use super::{
    assert_execution, assert_problem, assert_replay_of, numbered_executions, numbered_on_permit,
};
use crate::harness::{Gateway, eventually};
use crate::raw_http;

const REQUEST: &str =
    "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k1\r\nContent-Length: 8\r\n\r\namount=1";

const CHUNKED: &str = "POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k1\r\n\
                       Transfer-Encoding: chunked\r\n\r\n4\r\namou\r\n4\r\nnt=1\r\n0\r\n\r\n";

/// Sends the same request again, on a new connection.
async fn retry(gateway: &Gateway) -> crate::harness::ClientResponse {
    let request = gateway.client().post("/pay").header("Host", "a").key("k1");
    request.body("amount=1").send().await
}

/// Sends requests that a gateway with one worker handles after everything it has received before.
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
    eventually("upstream has the request", || upstream.count() == 1).await;
    drop(client);
    wait_until_handled(&gateway).await;
    assert_eq!(gateway.counts().in_progress, 1);
    permits.add_permits(1);
    eventually("the response is recorded", || {
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
    eventually("upstream has the request", || upstream.count() == 1).await;
    first.abort();
    assert!(first.await.is_err_and(|error| error.is_cancelled()));
    // Further requests on the same connection are handled after the reset.
    for _ in 0..5 {
        let rejected = connection.send(client.post("/pay").key("no key")).await;
        assert_problem(&rejected, 400, "idempotency-key-invalid");
    }
    assert_eq!(gateway.counts().in_progress, 1);
    permits.add_permits(1);
    eventually("the response is recorded", || {
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
        let head = request.find("\r\n\r\n").expect("a head") + 4;
        let lengths = [1, 17, head - 2, head - 1, head, head + 1, request.len() - 4];
        for length in lengths.into_iter().chain([request.len() - 1]) {
            let mut client = raw_http::RawClient::connect(gateway.address());
            client.send(&request[..length]);
            drop(client);
        }
        // A single worker handles events in order, so it has handled the earlier connections before this request.
        let after = gateway.client().get("/after").send().await;
        assert_eq!(after.status, 201);
    }
    let deadline = std::time::Instant::now() + crate::harness::TEST_TIMEOUT;
    while gateway.metric("connections").await > 0.5 {
        assert!(
            std::time::Instant::now() < deadline,
            "connections are still open"
        );
    }
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
        eventually("upstream has the request", || upstream.count() == 1).await;
        let half_closed = client.stream.shutdown(std::net::Shutdown::Write);
        half_closed.expect("an open socket");
        permits.add_permits(1);
        eventually("the response is recorded", || {
            gateway.counts().completed == 1
        })
        .await;
        assert_replay_of(&retry(&gateway).await, 1);
        assert_eq!(upstream.count(), 1);
    }
}

#[tokio::test]
async fn a_response_whose_client_disconnects_while_reading_is_recorded() {
    // Much more than the socket buffers of both kernels can hold.
    let body = "x".repeat(24 << 20);
    let response_body = body.clone();
    let upstream = crate::harness::Upstream::with(move |_| {
        let body = response_body.clone();
        async move { crate::harness::full(body) }
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
    eventually("upstream has the request", || upstream.count() == 1).await;
    first.abort();
    assert!(first.await.is_err());
    gateway.drain();
    let client = gateway.client();
    let ended = tokio::task::spawn_blocking(move || gateway.wait_for_exit());
    let deadline = std::time::Instant::now() + crate::harness::TEST_TIMEOUT;
    while client.connect().await.is_ok() {
        assert!(
            std::time::Instant::now() < deadline,
            "the gateway still accepts connections"
        );
    }
    assert!(!ended.is_finished());
    permits.add_permits(1);
    let counts = ended.await.expect("no panic");
    assert_eq!(
        (counts.completed, counts.unknown, counts.in_progress),
        (1, 0, 0)
    );
}

#[tokio::test]
async fn an_execution_beyond_shutdown_grace_becomes_unknown_on_disk() {
    let directory = tempfile::tempdir().expect("a directory");
    let (upstream, _permits) = numbered_on_permit();
    let builder = || {
        Gateway::keyed("")
            .with_section("[server]\nshutdown_grace = \"100ms\"")
            .on_disk(directory.path())
            .upstream(&upstream)
    };
    let gateway = builder().start();
    let first = tokio::spawn(gateway.client().post("/pay").key("k1").try_send());
    eventually("upstream has the request", || upstream.count() == 1).await;
    gateway.drain();
    let counts = tokio::task::spawn_blocking(move || gateway.wait_for_exit()).await;
    let counts = counts.expect("no panic");
    assert_eq!(counts.completed, 0);
    // The client did not get a response that looks like a result.
    let result = first.await.expect("no panic");
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
    eventually("upstream has the request", || upstream.count() == 1).await;
    gateway.drain();
    let ended = tokio::task::spawn_blocking(move || gateway.wait_for_exit());
    let counts = tokio::time::timeout(Duration::from_secs(20), ended).await;
    let counts = counts.expect("the drain ends").expect("no panic");
    assert_eq!((counts.in_progress, counts.unknown), (0, 1));
    drop(first);
}
