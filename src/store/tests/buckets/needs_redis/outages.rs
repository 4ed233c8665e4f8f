//! Tests of rate limit decisions while Redis does not respond.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::store::BucketStore;
use crate::throttle::{ChargeOutcome, OnStoreError};
use tokio::time::sleep;

use crate::store::tests::buckets::fixture::{
    ADMITTED, HOUR, TestBucket, charge_all, gateway_of, rejection, request,
    short_timeout_gateway_at, short_timeout_gateway_of,
};
use crate::store::tests::redis::RedisServer;

fn bucket(burst: u32, on_store_error: OnStoreError) -> TestBucket {
    let mut bucket = TestBucket::new(HOUR, burst);
    bucket.limit.on_store_error = on_store_error;
    bucket
}

#[tokio::test]
async fn a_known_bucket_is_not_full_again_in_an_outage() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    let (known, unknown) = (
        bucket(3, OnStoreError::Local),
        bucket(1, OnStoreError::Local),
    );
    for _ in 0..3 {
        assert_eq!(known.request(&gateway).await, ADMITTED);
    }
    server.kill();
    // The gateway decides by the last state that Redis returned, in which one token is left.
    let decision = request(&gateway, &[&known]).await;
    assert_eq!(decision.outcome, ADMITTED);
    assert_eq!(decision.readings[0].remaining, 0);
    let (wait, _) = rejection(known.request(&gateway).await);
    assert!(wait <= HOUR);
    // The gateway has no state of this bucket, so it admits the complete quota.
    assert_eq!(unknown.request(&gateway).await, ADMITTED);
    assert_eq!(unknown.request(&gateway).await, ADMITTED);
    rejection(unknown.request(&gateway).await);
}

#[tokio::test]
async fn a_client_rejected_before_an_outage_is_rejected_during_the_outage() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    let bucket = bucket(0, OnStoreError::Local);
    assert_eq!(bucket.request(&gateway).await, ADMITTED);
    rejection(bucket.request(&gateway).await);
    server.kill();
    wait_until_down(&gateway).await;
    rejection(bucket.request(&gateway).await);
}

#[tokio::test]
async fn on_store_error_open_admits_and_closed_is_unavailable() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    let open = bucket(0, OnStoreError::Open);
    assert_eq!(open.request(&gateway).await, ADMITTED);
    rejection(open.request(&gateway).await);
    server.kill();
    wait_until_down(&gateway).await;
    for _ in 0..5 {
        let decision = request(&gateway, &[&open]).await;
        assert_eq!(decision.outcome, ADMITTED);
        assert_eq!(decision.readings[0].remaining, 1);
    }
    let closed = bucket(9, OnStoreError::Closed);
    assert_eq!(closed.request(&gateway).await, ChargeOutcome::Unavailable);
}

#[tokio::test]
async fn an_unavailable_decision_charges_nothing_and_readings_are_in_order_of_limits() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    server.kill();
    let (closed, local, open, tight) = (
        bucket(9, OnStoreError::Closed),
        bucket(2, OnStoreError::Local),
        bucket(5, OnStoreError::Open),
        bucket(0, OnStoreError::Local),
    );
    for _ in 0..5 {
        let outcome = request(&gateway, &[&local, &closed]).await.outcome;
        assert_eq!(outcome, ChargeOutcome::Unavailable);
    }
    let left = |decision: &crate::throttle::Decision| -> Vec<_> {
        decision.readings.iter().map(|it| it.remaining).collect()
    };
    let decision = request(&gateway, &[&open, &local, &tight]).await;
    assert_eq!(decision.outcome, ADMITTED);
    assert_eq!(left(&decision), [6, 2, 0]);
    let decision = request(&gateway, &[&open, &local, &tight]).await;
    assert_eq!(rejection(decision.outcome).1, 2);
    assert_eq!(left(&decision), [6, 2, 0]);
}

#[tokio::test]
async fn shadow_limits_are_counted_during_an_outage() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    server.kill();
    let shadow = bucket(1, OnStoreError::Closed);
    for request in 0..4 {
        let result = charge_all(&gateway, &[], &[&shadow]).await;
        assert_eq!(result.decision.outcome, ADMITTED);
        assert_eq!(result.exceeded.is_empty(), request < 2);
    }
}

#[tokio::test]
async fn redis_decides_after_a_restart_but_not_while_it_is_out_of_memory() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    let closed = bucket(9, OnStoreError::Closed);
    assert_eq!(closed.request(&gateway).await, ADMITTED);
    server.kill();
    wait_until_down(&gateway).await;
    server.restart();
    wait_for(&gateway, ADMITTED).await;
    server.fill();
    wait_until_down(&gateway).await;
    server.unfill();
    wait_for(&gateway, ADMITTED).await;
}

#[tokio::test]
async fn a_frozen_redis_delays_only_the_first_requests() {
    let server = RedisServer::start();
    let gateway = short_timeout_gateway_of(&server);
    wait_for(&gateway, ADMITTED).await;
    let local = bucket(99, OnStoreError::Local);
    server.freeze();
    // The first requests wait until their timeout expires. Then the circuit breaker opens.
    for _ in 0..3 {
        wait_until_down(&gateway).await;
    }
    let began = Instant::now();
    for _ in 0..50 {
        assert_eq!(local.request(&gateway).await, ADMITTED);
    }
    assert!(began.elapsed() < Duration::from_secs(1));
    server.thaw();
    wait_for(&gateway, ADMITTED).await;
}

#[tokio::test]
async fn charges_made_while_redis_is_frozen_count_afterwards() {
    let server = RedisServer::start();
    let (gateway, other) = (short_timeout_gateway_of(&server), gateway_of(&server));
    wait_for(&gateway, ADMITTED).await;
    let bucket = bucket(9, OnStoreError::Local);
    let mut admitted = 0;
    for _ in 0..3 {
        for _ in 0..2 {
            admitted += usize::from(bucket.request(&gateway).await == ADMITTED);
        }
        server.freeze();
        wait_until_down(&gateway).await;
        for _ in 0..2 {
            admitted += usize::from(bucket.request(&gateway).await == ADMITTED);
        }
        server.thaw();
        wait_for(&gateway, ADMITTED).await;
    }
    assert!(admitted <= 10, "{admitted}");
    // The next request through this gateway reports the local charges to Redis. From then on, they also apply to other
    // gateways.
    rejection(bucket.request(&gateway).await);
    wait_for(&other, ADMITTED).await;
    rejection(bucket.request(&other).await);
}

/// Starts a proxy to `server`. A connection through it takes longer to open than the timeout of rate limit calls.
fn slow_proxy(server: &RedisServer) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let (here, there) = (listener.local_addr().unwrap().port(), server.port());
    std::thread::spawn(move || {
        for near in listener.incoming() {
            let near = near.unwrap();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(250));
                let Ok(far) = TcpStream::connect(("127.0.0.1", there)) else {
                    return;
                };
                let (mut back, mut to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut back, &mut to));
                // An error is ignored: when one side closes its connection, the proxy closes both connections.
                let _ = std::io::copy(&mut &near, &mut &far);
                let _ = far.shutdown(Shutdown::Both);
            });
        }
    });
    here
}

#[tokio::test]
async fn a_connection_that_opens_slower_than_the_timeout_of_limits_is_used() {
    let server = RedisServer::start();
    let gateway = short_timeout_gateway_at(slow_proxy(&server));
    wait_for(&gateway, ADMITTED).await;
    let bucket = bucket(0, OnStoreError::Closed);
    assert_eq!(bucket.request(&gateway).await, ADMITTED);
    rejection(bucket.request(&gateway_of(&server)).await);
}

/// Waits until the circuit breaker of the gateway is open.
async fn wait_until_down(gateway: &BucketStore) {
    wait_for(gateway, ChargeOutcome::Unavailable).await;
}

/// Waits until a request with `on_store_error = "closed"` has this outcome.
async fn wait_for(gateway: &BucketStore, outcome: ChargeOutcome) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while bucket(999, OnStoreError::Closed).request(gateway).await != outcome {
        assert!(Instant::now() < deadline, "never {outcome:?}");
        sleep(Duration::from_millis(5)).await;
    }
}
