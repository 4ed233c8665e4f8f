//! What Redis is asked, what it keeps, and what is known without it.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::bench::{AT_ONCE, HOUR, Tap, draw, gateway_of, judge, refused};
use crate::redis::RedisServer;

#[tokio::test]
async fn a_request_is_one_call_however_many_limits_it_has() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    let taps = [0; 6].map(|_| Tap::new(HOUR, 99));
    judge(&gateway, &[&taps[0]], &[]).await;
    let before = server.calls("evalsha");
    for _ in 0..10 {
        let (enforced, watched) = taps.split_at(4);
        let (enforced, watched): (Vec<_>, Vec<_>) =
            (enforced.iter().collect(), watched.iter().collect());
        judge(&gateway, &enforced, &watched).await;
    }
    assert_eq!(server.calls("evalsha") - before, 10);
}

#[tokio::test]
async fn whoever_comes_back_too_early_is_refused_without_asking() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    let tap = Tap::new(Duration::from_millis(400), 0);
    assert_eq!(tap.draw(&gateway).await, AT_ONCE);
    let before = server.calls("evalsha");
    let (wait, _) = refused(tap.draw(&gateway).await);
    let due = Instant::now() + wait;
    for _ in 0..100 {
        let (wait, _) = refused(tap.draw(&gateway).await);
        let now = Instant::now();
        // Never too short, or a client that waits as told would be refused again.
        assert!(now + wait + Duration::from_millis(1) > due);
        if now + Duration::from_millis(50) > due {
            break;
        }
    }
    assert_eq!(server.calls("evalsha") - before, 1);
    sleep(due.saturating_duration_since(Instant::now())).await;
    assert_eq!(tap.draw(&gateway).await, AT_ONCE);
}

#[tokio::test]
async fn what_is_known_of_a_redis_is_not_held_against_its_successor() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    let tap = Tap::new(HOUR, 0);
    assert_eq!(tap.draw(&gateway).await, AT_ONCE);
    refused(tap.draw(&gateway).await);
    server.restart_empty();
    let deadline = Instant::now() + Duration::from_secs(10);
    while tap.draw(&gateway).await != AT_ONCE {
        assert!(Instant::now() < deadline, "still refused");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_moment_that_no_charge_can_have_led_to_is_brought_within_reach() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    // As if its clock had been a year ahead, or its quota a hundred times as large.
    let year = u128::from(
        server
            .command(&["TIME"])
            .array()
            .remove(0)
            .int()
            .unsigned_abs(),
    ) + 365 * 24 * 3_600;
    for tap in [
        Tap::new(Duration::from_secs(10), 3),
        Tap::new(Duration::from_secs(10), 3).delaying(Duration::from_secs(20)),
    ] {
        server.command(&["SET", &tap.name(), &format!("{}", year * 1_000_000_000)]);
        let verdict = draw(&gateway, &[&tap]).await;
        assert_eq!(refused(verdict.outcome).0, Duration::from_secs(10));
        assert_eq!(verdict.readings[0].remaining, 0);
    }
    // Whoever waits as told is admitted.
    let tap = Tap::new(Duration::from_millis(200), 3);
    server.command(&["SET", &tap.name(), &format!("{}", year * 1_000_000_000)]);
    let (wait, _) = refused(tap.draw(&gateway).await);
    assert_eq!(wait, Duration::from_millis(200));
    sleep(wait).await;
    assert_eq!(tap.draw(&gateway).await, AT_ONCE);
    // And what is no moment at all is a full bucket.
    let tap = Tap::new(HOUR, 3);
    server.command(&["SET", &tap.name(), "soon"]);
    assert_eq!(tap.draw(&gateway).await, AT_ONCE);
    let tap = Tap::new(HOUR, 3);
    server.command(&["RPUSH", &tap.name(), "1"]);
    assert_eq!(tap.draw(&gateway).await, AT_ONCE);
}

#[tokio::test]
async fn a_bucket_is_gone_when_it_is_full() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    let tap = Tap::new(Duration::from_millis(60), 1);
    tap.draw(&gateway).await;
    tap.draw(&gateway).await;
    let left = server.command(&["PTTL", &tap.name()]).int();
    assert!((1..=122).contains(&left), "{left}");
    sleep(Duration::from_millis(130)).await;
    assert_eq!(server.command(&["EXISTS", &tap.name()]).int(), 0);
}
