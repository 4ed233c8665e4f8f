//! Tests of duplicate requests that arrive while the first request is in progress: they wait and get the same response.

use std::time::Duration;

use tokio::task::JoinHandle;

use super::{assert_execution, assert_replay_of, numbered_on_permit};
use crate::support::redis::RedisServer;
use crate::support::{ClientResponse, Gateway, Upstream, eventually};

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
