//! Tests of duplicate requests that arrive while the first request is in progress: they wait and get the same response.

use std::time::{Duration, Instant};

use tidegate::idempotency::RecordCounts;
use tokio::task::JoinHandle;

use super::{
    assert_execution, assert_problem, assert_replay_of, numbered_on_permit,
    numbered_on_permit_with, url,
};
use crate::support::raw_http;
use crate::support::redis::RedisServer;
use crate::support::{ClientResponse, Gateway, TEST_TIMEOUT, Upstream, eventually};

fn spawn_request(gateway: &Gateway) -> JoinHandle<ClientResponse> {
    tokio::spawn(gateway.client().post("/pay").key("k1").body("a").send())
}

/// Sends the first request, waits until upstream has received it, and sends `count` duplicate requests that wait for
/// its response.
async fn first_and_waiting(
    gateway: &Gateway,
    upstream: &Upstream,
    count: u32,
) -> (JoinHandle<ClientResponse>, Vec<JoinHandle<ClientResponse>>) {
    let sent = upstream.count();
    let first = spawn_request(gateway);
    eventually("upstream has the first request", async || {
        upstream.count() == sent + 1
    })
    .await;
    let waiting = (0..count).map(|_| spawn_request(gateway)).collect();
    gateway.wait_for_outcome("waited", count).await;
    (first, waiting)
}

#[tokio::test]
async fn waiting_duplicates_get_the_response_immediately() {
    let (upstream, permits) = numbered_on_permit();
    let gateway = Gateway::keyed("wait_timeout = \"10m\"")
        .admin()
        .upstream(&upstream)
        .start();
    let (first, waiting) = first_and_waiting(&gateway, &upstream, 20).await;
    assert!(waiting.iter().all(|waiter| !waiter.is_finished()));
    permits.add_permits(1);
    let responded_at = Instant::now();
    assert_execution(&first.await.expect("the request should get a response"), 1);
    for response in waiting {
        assert_replay_of(
            &response.await.expect("the request should get a response"),
            1,
        );
    }
    // The gateway must notify the waiting duplicate requests. If they polled for the response, they would take longer
    // than this limit.
    assert!(
        responded_at.elapsed() < TEST_TIMEOUT / 2,
        "{:?}",
        responded_at.elapsed()
    );
    assert_eq!(upstream.count(), 1);
    assert_replay_of(
        &spawn_request(&gateway)
            .await
            .expect("the request should get a response"),
        1,
    );
}

#[tokio::test]
async fn a_duplicate_waits_at_most_wait_timeout() {
    let (upstream, permits) = numbered_on_permit();
    let gateway = Gateway::keyed("wait_timeout = \"200ms\"")
        .upstream(&upstream)
        .start();
    let first = spawn_request(&gateway);
    eventually("upstream has the first request", async || {
        upstream.count() == 1
    })
    .await;
    let started = Instant::now();
    let rejected = spawn_request(&gateway)
        .await
        .expect("the request should get a response");
    assert_problem(&rejected, 409, "idempotency-in-flight");
    assert_eq!(rejected.header("retry-after"), "1");
    // The upper bound is far below the default of `wait_timeout`, which is 10 s.
    let waited = started.elapsed();
    assert!((200..5_000).contains(&waited.as_millis()), "{waited:?}");
    permits.add_permits(1);
    assert_execution(&first.await.expect("the request should get a response"), 1);
    assert_replay_of(
        &spawn_request(&gateway)
            .await
            .expect("the request should get a response"),
        1,
    );
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_waiting_duplicate_that_disconnects_does_not_affect_the_others() {
    let (upstream, permits) = numbered_on_permit();
    let gateway = Gateway::keyed("wait_timeout = \"10m\"")
        .admin()
        .upstream(&upstream)
        .start();
    let (first, mut waiting) = first_and_waiting(&gateway, &upstream, 10).await;
    for waiter_to_abort in waiting.drain(..9) {
        waiter_to_abort.abort();
        assert!(
            waiter_to_abort
                .await
                .is_err_and(|error| error.is_cancelled())
        );
    }
    // The gateway must drop the duplicate requests of disconnected clients before the response arrives. Two connections
    // remain: that of the first request and that of the last duplicate request.
    gateway.wait_for_metric("connections", 2).await;
    permits.add_permits(1);
    assert_execution(&first.await.expect("the request should get a response"), 1);
    let remaining = waiting
        .pop()
        .expect("one duplicate request should still wait");
    assert_replay_of(
        &remaining.await.expect("the request should get a response"),
        1,
    );
    assert_replay_of(
        &spawn_request(&gateway)
            .await
            .expect("the request should get a response"),
        1,
    );
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn waiting_duplicates_get_the_response_if_the_first_client_disconnects() {
    let (upstream, permits) = numbered_on_permit();
    let gateway = Gateway::keyed("wait_timeout = \"10m\"")
        .admin()
        .upstream(&upstream)
        .start();
    let (first, waiting) = first_and_waiting(&gateway, &upstream, 5).await;
    first.abort();
    assert!(first.await.is_err());
    permits.add_permits(1);
    for response in waiting {
        assert_replay_of(
            &response.await.expect("the request should get a response"),
            1,
        );
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn waiting_duplicates_get_a_released_response_which_is_not_stored() {
    for (status, retry_after) in [
        (401, None),
        (403, None),
        (425, None),
        (429, Some("7")),
        (503, Some("7")),
        (408, Some("7")),
    ] {
        let (upstream, permits) = numbered_on_permit_with(status, retry_after);
        let gateway = Gateway::keyed("wait_timeout = \"10m\"")
            .admin()
            .upstream(&upstream)
            .start();
        let (first, waiting) = first_and_waiting(&gateway, &upstream, 5).await;
        permits.add_permits(1);
        for response in [first].into_iter().chain(waiting) {
            let response = response.await.expect("the request should get a response");
            // The response is not a replay, because the gateway stores no response with this status.
            assert_execution(&response, 1);
            assert_eq!(response.status, status);
            assert_eq!(
                response.header("retry-after"),
                retry_after.unwrap_or_default()
            );
        }
        assert_eq!(
            upstream.count(),
            1,
            "upstream received a duplicate request after status {status}"
        );
        assert_eq!(gateway.counts(), RecordCounts::default());
        permits.add_permits(1);
        assert_execution(
            &spawn_request(&gateway)
                .await
                .expect("the request should get a response"),
            2,
        );
    }
}

#[tokio::test]
async fn waiting_duplicates_get_409_immediately_if_the_outcome_is_unknown() {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let upstream = raw_http::RawUpstream::scripted(move |connection| {
        connection.request();
        let held = released
            .lock()
            .expect("no thread should panic while it holds the lock");
        let _ = held.recv();
        connection.reset_on_close();
    });
    let gateway = Gateway::keyed("wait_timeout = \"10m\"")
        .admin()
        .upstream_url(&url(upstream.address))
        .start();
    let sent = || upstream.received().matches("POST /pay").count();
    let first = spawn_request(&gateway);
    eventually("upstream has the first request", async || sent() == 1).await;
    let waiting: Vec<_> = (0..5).map(|_| spawn_request(&gateway)).collect();
    gateway.wait_for_outcome("waited", 5).await;
    release
        .send(())
        .expect("the upstream should still wait for the signal");
    let first = first.await.expect("the request should get a response");
    assert_problem(&first, 502, "upstream-unavailable");
    for response in waiting {
        let response = response.await.expect("the request should get a response");
        assert_problem(&response, 409, "idempotency-outcome-unknown");
    }
    let later = spawn_request(&gateway)
        .await
        .expect("the request should get a response");
    assert_problem(&later, 409, "idempotency-outcome-unknown");
    assert_eq!(sent(), 1);
    assert_eq!(gateway.counts().unknown, 1);
}

#[tokio::test]
async fn duplicates_on_one_http2_connection_wait_concurrently() {
    let (upstream, permits) = numbered_on_permit();
    let gateway = Gateway::keyed("wait_timeout = \"10m\"")
        .admin()
        .upstream(&upstream)
        .start();
    let client = gateway.client().h2();
    let connection = client.keep_alive().await;
    let started: Vec<_> = (0..50)
        .map(|_| {
            let (mut stream, request) = (connection.open_stream(), client.post("/pay").key("k1"));
            tokio::spawn(async move { stream.send(request).await })
        })
        .collect();
    gateway.wait_for_outcome("waited", 49).await;
    permits.add_permits(1);
    let mut replays = 0;
    for response in started {
        let response = response.await.expect("the request should get a response");
        assert_eq!(response.text(), "execution 1");
        replays += usize::from(response.is_replay());
    }
    assert_eq!((replays, upstream.count()), (49, 1));
}

#[tokio::test]
async fn duplicates_get_the_response_if_the_first_client_hangs_up_at_once() {
    let (directory, redis) = (tempfile::tempdir().unwrap(), RedisServer::start());
    let upstream = Upstream::replying(201);
    let keyed = || Gateway::keyed("").upstream(&upstream);
    let on_redis = format!("[store]\nbackend = \"redis\"\nurl = \"{}\"", redis.url());
    for gateway in [
        keyed(),
        keyed().on_disk(directory.path()),
        keyed().with_section(&on_redis),
    ] {
        let (gateway, before) = (gateway.start(), upstream.count());
        let request = |round: u64| {
            let key = format!("round-{round}");
            gateway.client().post("/pay").key(&key).body("a").send()
        };
        let mut executed = 0;
        for round in 0..100 {
            let first = tokio::spawn(request(round));
            let duplicates: Vec<_> = (0..11).map(|_| tokio::spawn(request(round))).collect();
            tokio::time::sleep(Duration::from_micros(round * 30)).await;
            first.abort();
            for duplicate in duplicates {
                let response = duplicate.await.expect("a response arrives");
                assert_eq!(response.status, 201, "round {round}: {}", response.text());
            }
            executed += 1;
            assert_eq!(upstream.count() - before, executed, "round {round}");
        }
    }
}
