//! What Redis is asked, what it keeps, and what is known without it.

use std::time::{Duration, Instant};

use crate::store::BucketStore;
use crate::throttle::ChargeOutcome;
use tokio::time::sleep;

use super::bench::{AT_ONCE, HOUR, Tap, draw, gateway_of, judge, only_bucket, refused};
use crate::store::tests::redis::RedisServer;

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
    let stored = format!("{}", year * 1_000_000_000);
    for tap in [
        Tap::new(Duration::from_secs(10), 3),
        Tap::new(Duration::from_secs(10), 3).delaying(Duration::from_secs(20)),
    ] {
        let name = named(&server, &gateway, &tap).await;
        server.command(&["SET", &name, &stored]);
        let verdict = draw(&gateway, &[&tap]).await;
        assert_eq!(refused(verdict.outcome).0, Duration::from_secs(10));
        assert_eq!(verdict.readings[0].remaining, 0);
        server.command(&["DEL", &name]);
    }
    // A client that waits as long as its response says is admitted.
    let tap = Tap::new(Duration::from_millis(200), 3);
    let name = named(&server, &gateway, &tap).await;
    server.command(&["SET", &name, &stored]);
    let (wait, _) = refused(tap.draw(&gateway).await);
    assert_eq!(wait, Duration::from_millis(200));
    sleep(wait).await;
    assert_eq!(tap.draw(&gateway).await, AT_ONCE);
    server.command(&["DEL", &name]);
    // A value that is not a time counts as a full bucket.
    for write in [["SET", "soon"], ["RPUSH", "1"]] {
        let tap = Tap::new(HOUR, 3);
        let name = named(&server, &gateway, &tap).await;
        server.command(&["DEL", &name]);
        server.command(&[write[0], &name, write[1]]);
        assert_eq!(tap.draw(&gateway).await, AT_ONCE);
        server.command(&["DEL", &name]);
    }
}

/// Charges a bucket once and returns its name in a server that has no other bucket.
async fn named(server: &RedisServer, gateway: &BucketStore, tap: &Tap) -> String {
    assert_eq!(tap.draw(gateway).await, AT_ONCE);
    only_bucket(server)
}

#[tokio::test]
async fn a_bucket_is_gone_when_it_is_full() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    let tap = Tap::new(Duration::from_millis(60), 1);
    tap.draw(&gateway).await;
    tap.draw(&gateway).await;
    let name = only_bucket(&server);
    let left = server.command(&["PTTL", &name]).int();
    assert!((1..=122).contains(&left), "{left}");
    sleep(Duration::from_millis(130)).await;
    assert_eq!(server.command(&["EXISTS", &name]).int(), 0);
}

#[tokio::test]
async fn a_bucket_of_a_yearly_limit_expires_when_it_is_full_and_not_later() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    let month = HOUR * 24 * 30;
    let tap = Tap::new(month, 11);
    for tokens in 1..=2_i64 {
        assert_eq!(tap.draw(&gateway).await, AT_ONCE);
        let name = only_bucket(&server);
        let left = server.command(&["PTTL", &name]).int();
        let full = i64::try_from(month.as_millis()).unwrap() * tokens;
        assert!((full - 5_000..=full + 2).contains(&left), "{left}");
    }
}

/// `docs/fleet.md` sizes Redis by this figure.
#[tokio::test]
async fn a_bucket_takes_about_150_bytes() {
    const BUCKETS: u64 = 4_000;
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    let used = || -> u64 { server.info("memory", "used_memory").parse().unwrap() };
    // The first request opens a connection and loads the script, which take memory too.
    Tap::new(HOUR, 0).draw(&gateway).await;
    let before = used();
    for _ in 0..BUCKETS {
        assert_eq!(Tap::new(HOUR, 0).draw(&gateway).await, AT_ONCE);
    }
    let bytes = (used() - before) / BUCKETS;
    assert!((100..=170).contains(&bytes), "{bytes}");
}

/// Both limits are drained on other routes, and the gateway has seen only one of them reject.
#[tokio::test]
async fn a_rejection_by_two_limits_waits_for_the_one_whose_state_was_not_cached() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    let (short, long) = (
        Tap::new(Duration::from_secs(5), 0),
        Tap::new(Duration::from_mins(1), 0),
    );
    assert_eq!(short.draw(&gateway).await, AT_ONCE);
    assert_eq!(long.draw(&gateway).await, AT_ONCE);
    refused(short.draw(&gateway).await);
    let (wait, by) = refused(draw(&gateway, &[&short, &long]).await.outcome);
    assert!(wait > Duration::from_secs(50) && by == 1, "{wait:?}, {by}");
}

/// The cached state of a limit that did not reject is out of date once another gateway charges it.
#[tokio::test]
async fn a_rejection_by_two_limits_counts_what_another_gateway_charged_since() {
    let server = RedisServer::start();
    let gateways = [gateway_of(&server), gateway_of(&server)];
    let (short, long) = (
        Tap::new(Duration::from_secs(5), 0),
        Tap::new(Duration::from_mins(1), 0),
    );
    assert_eq!(short.draw(&gateways[0]).await, AT_ONCE);
    let (wait, _) = refused(draw(&gateways[0], &[&short, &long]).await.outcome);
    assert!(wait <= Duration::from_secs(5));
    assert_eq!(long.draw(&gateways[1]).await, AT_ONCE);
    let (wait, by) = refused(draw(&gateways[0], &[&short, &long]).await.outcome);
    assert!(wait > Duration::from_secs(50) && by == 1, "{wait:?}, {by}");
}

/// A bucket that rejects a cost of 2 can still be charged 1 by another gateway.
#[tokio::test]
async fn a_rejection_of_a_larger_cost_counts_a_smaller_one_that_another_gateway_charged_since() {
    let server = RedisServer::start();
    let gateways = [gateway_of(&server), gateway_of(&server)];
    let tap = Tap::new(HOUR, 2);
    assert_eq!(tap.draw_at_cost(&gateways[0], 2).await, AT_ONCE);
    let (wait, _) = refused(tap.draw_at_cost(&gateways[0], 2).await);
    assert!(wait <= HOUR);
    assert_eq!(tap.draw(&gateways[1]).await, AT_ONCE);
    let (wait, _) = refused(tap.draw_at_cost(&gateways[0], 2).await);
    assert!(wait > HOUR, "{wait:?}");
}

#[tokio::test]
async fn a_gateway_with_a_faster_quota_frees_no_tokens_of_a_slower_one() {
    let server = RedisServer::start();
    let (slow, fast) = (gateway_of(&server), gateway_of(&server));
    let before = Tap::new(HOUR, 19);
    let after = before.with_quota(Duration::from_secs(3), 19);
    let (mut slowly, mut quickly) = (0, 0);
    let began = Instant::now();
    for _ in 0..5 {
        for _ in 0..20 {
            slowly += usize::from(before.draw(&slow).await == AT_ONCE);
        }
        for _ in 0..20 {
            quickly += usize::from(after.draw(&fast).await == AT_ONCE);
        }
    }
    assert_eq!(slowly, 20);
    assert!(quickly <= 20 + usize::try_from(began.elapsed().as_secs()).unwrap() / 3);
}

#[tokio::test]
async fn a_gateway_with_a_shorter_delay_frees_no_slots_of_a_longer_one() {
    let server = RedisServer::start();
    let (patient, strict) = (gateway_of(&server), gateway_of(&server));
    let delays = Tap::new(HOUR, 0).delaying(HOUR * 4);
    let rejects = delays.with_quota(HOUR, 0).delaying(Duration::ZERO);
    let mut admitted = 0;
    for _ in 0..5 {
        for _ in 0..5 {
            let outcome = delays.draw(&patient).await;
            admitted += usize::from(matches!(outcome, ChargeOutcome::Admitted { .. }));
        }
        rejects.draw(&strict).await;
    }
    assert_eq!(admitted, 5);
}
