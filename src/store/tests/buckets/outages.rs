//! What each limit does while Redis cannot be asked.

use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::store::BucketStore;
use crate::throttle::{ChargeOutcome, OnStoreError};
use tokio::time::sleep;

use super::bench::{
    AT_ONCE, HOUR, Tap, draw, gateway_of, impatient_gateway_at, impatient_gateway_of, judge,
    refused,
};
use crate::store::tests::redis::RedisServer;

fn tap(burst: u32, on_store_error: OnStoreError) -> Tap {
    let mut tap = Tap::new(HOUR, burst);
    tap.limit.on_store_error = on_store_error;
    tap
}

#[tokio::test]
async fn an_outage_hands_nobody_a_fresh_burst() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    let (known, unknown) = (tap(3, OnStoreError::Local), tap(1, OnStoreError::Local));
    for _ in 0..3 {
        assert_eq!(known.draw(&gateway).await, AT_ONCE);
    }
    server.kill();
    // What Redis told is known here: one is left.
    let verdict = draw(&gateway, &[&known]).await;
    assert_eq!(verdict.outcome, AT_ONCE);
    assert_eq!(verdict.readings[0].remaining, 0);
    let (wait, _) = refused(known.draw(&gateway).await);
    assert!(wait <= HOUR);
    // And who was never seen has what the quota says, of this gateway.
    assert_eq!(unknown.draw(&gateway).await, AT_ONCE);
    assert_eq!(unknown.draw(&gateway).await, AT_ONCE);
    refused(unknown.draw(&gateway).await);
}

#[tokio::test]
async fn whoever_was_refused_before_an_outage_still_is() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    let tap = tap(0, OnStoreError::Local);
    assert_eq!(tap.draw(&gateway).await, AT_ONCE);
    refused(tap.draw(&gateway).await);
    server.kill();
    down(&gateway).await;
    refused(tap.draw(&gateway).await);
}

#[tokio::test]
async fn an_open_limit_is_passed_over_and_a_closed_one_is_not() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    let open = tap(0, OnStoreError::Open);
    assert_eq!(open.draw(&gateway).await, AT_ONCE);
    refused(open.draw(&gateway).await);
    server.kill();
    down(&gateway).await;
    for _ in 0..5 {
        let verdict = draw(&gateway, &[&open]).await;
        assert_eq!(verdict.outcome, AT_ONCE);
        assert_eq!(verdict.readings[0].remaining, 1);
    }
    let closed = tap(9, OnStoreError::Closed);
    assert_eq!(closed.draw(&gateway).await, ChargeOutcome::Unavailable);
}

#[tokio::test]
async fn what_is_not_available_charges_nothing_and_readings_keep_their_order() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    server.kill();
    let (closed, local, open, tight) = (
        tap(9, OnStoreError::Closed),
        tap(2, OnStoreError::Local),
        tap(5, OnStoreError::Open),
        tap(0, OnStoreError::Local),
    );
    for _ in 0..5 {
        let outcome = draw(&gateway, &[&local, &closed]).await.outcome;
        assert_eq!(outcome, ChargeOutcome::Unavailable);
    }
    let left = |verdict: &crate::throttle::Decision| -> Vec<_> {
        verdict.readings.iter().map(|it| it.remaining).collect()
    };
    let verdict = draw(&gateway, &[&open, &local, &tight]).await;
    assert_eq!(verdict.outcome, AT_ONCE);
    assert_eq!(left(&verdict), [6, 2, 0]);
    let verdict = draw(&gateway, &[&open, &local, &tight]).await;
    assert_eq!(refused(verdict.outcome).1, 2);
    assert_eq!(left(&verdict), [6, 2, 0]);
}

#[tokio::test]
async fn watched_limits_go_on_being_counted() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    server.kill();
    let watched = tap(1, OnStoreError::Closed);
    for request in 0..4 {
        let judgement = judge(&gateway, &[], &[&watched]).await;
        assert_eq!(judgement.decision.outcome, AT_ONCE);
        assert_eq!(judgement.exceeded.is_empty(), request < 2);
    }
}

#[tokio::test]
async fn a_redis_that_is_back_decides_again_and_a_full_one_does_not() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    let closed = tap(9, OnStoreError::Closed);
    assert_eq!(closed.draw(&gateway).await, AT_ONCE);
    server.kill();
    down(&gateway).await;
    server.restart();
    eventually(&gateway, AT_ONCE).await;
    server.fill();
    down(&gateway).await;
    server.unfill();
    eventually(&gateway, AT_ONCE).await;
}

#[tokio::test]
async fn a_redis_that_hangs_holds_nobody_up_for_long() {
    let server = RedisServer::start();
    let gateway = impatient_gateway_of(&server);
    eventually(&gateway, AT_ONCE).await;
    let local = tap(99, OnStoreError::Local);
    server.freeze();
    // The first wait for as long as they may; after that nobody does.
    for _ in 0..3 {
        down(&gateway).await;
    }
    let began = Instant::now();
    for _ in 0..50 {
        assert_eq!(local.draw(&gateway).await, AT_ONCE);
    }
    assert!(began.elapsed() < Duration::from_secs(1));
    server.thaw();
    eventually(&gateway, AT_ONCE).await;
}

#[tokio::test]
async fn charges_made_while_redis_hangs_count_when_it_is_back() {
    let server = RedisServer::start();
    let (gateway, other) = (impatient_gateway_of(&server), gateway_of(&server));
    eventually(&gateway, AT_ONCE).await;
    let tap = tap(9, OnStoreError::Local);
    let mut admitted = 0;
    for _ in 0..3 {
        for _ in 0..2 {
            admitted += usize::from(tap.draw(&gateway).await == AT_ONCE);
        }
        server.freeze();
        down(&gateway).await;
        for _ in 0..2 {
            admitted += usize::from(tap.draw(&gateway).await == AT_ONCE);
        }
        server.thaw();
        eventually(&gateway, AT_ONCE).await;
    }
    assert!(admitted <= 10, "{admitted}");
    // The next request through this gateway reports them, and other gateways count them from then on.
    refused(tap.draw(&gateway).await);
    eventually(&other, AT_ONCE).await;
    refused(tap.draw(&other).await);
}

/// Redis responds for 500 ms and hangs for 1.5 s in turn, and a client sends as fast as it can.
#[tokio::test]
async fn a_redis_that_hangs_again_and_again_admits_no_more_than_the_quota() {
    const INTERVAL: Duration = Duration::from_millis(100);
    const BURST: u32 = 20;
    let server = RedisServer::start();
    let gateway = impatient_gateway_of(&server);
    eventually(&gateway, AT_ONCE).await;
    let tap = Tap::new(INTERVAL, BURST);
    let began = Instant::now();
    let mut admitted = 0;
    for _ in 0..3 {
        for (frozen, lasts) in [(false, 500), (true, 1_500)] {
            if frozen {
                server.freeze();
            } else {
                server.thaw();
            }
            let ends = Instant::now() + Duration::from_millis(lasts);
            while Instant::now() < ends {
                admitted += u128::from(tap.draw(&gateway).await == AT_ONCE);
                sleep(Duration::from_millis(2)).await;
            }
        }
    }
    let most = u128::from(BURST) + 1 + began.elapsed().as_nanos() / INTERVAL.as_nanos();
    eprintln!("{admitted} admitted, bound {most}");
    assert!(admitted <= most, "{admitted} of {most}");
    server.thaw();
}

/// A way to `server` on which it takes longer to get there than a decision may take.
fn long_way(server: &RedisServer) -> u16 {
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
                // Whoever leaves first ends it.
                let _ = std::io::copy(&mut &near, &mut &far);
                let _ = far.shutdown(Shutdown::Both);
            });
        }
    });
    here
}

#[tokio::test]
async fn a_connection_that_takes_long_to_make_is_made_all_the_same() {
    let server = RedisServer::start();
    let gateway = impatient_gateway_at(long_way(&server));
    eventually(&gateway, AT_ONCE).await;
    let tap = tap(0, OnStoreError::Closed);
    assert_eq!(tap.draw(&gateway).await, AT_ONCE);
    refused(tap.draw(&gateway_of(&server)).await);
}

/// Waits until it is known that Redis cannot be asked.
async fn down(gateway: &BucketStore) {
    eventually(gateway, ChargeOutcome::Unavailable).await;
}

/// Waits until a limit that stands and falls with Redis gives this.
async fn eventually(gateway: &BucketStore, outcome: ChargeOutcome) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while tap(999, OnStoreError::Closed).draw(gateway).await != outcome {
        assert!(Instant::now() < deadline, "never {outcome:?}");
        sleep(Duration::from_millis(5)).await;
    }
}
