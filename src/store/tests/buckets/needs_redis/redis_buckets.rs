//! Tests of rate limit buckets in Redis: number of calls, stored values, and several quotas of one limit.

use std::time::{Duration, Instant};

use crate::store::BucketStore;
use tokio::time::sleep;

use crate::store::tests::buckets::fixture::{
    ADMITTED, HOUR, TestBucket, charge_all, gateway_of, only_bucket, rejection, request,
};
use crate::store::tests::redis::RedisServer;

#[tokio::test]
async fn a_request_with_many_limits_is_one_call() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    let buckets = [0; 6].map(|_| TestBucket::new(HOUR, 99));
    charge_all(&gateway, &[&buckets[0]], &[]).await;
    let before = server.calls("evalsha");
    for _ in 0..10 {
        let (enforced, shadow) = buckets.split_at(4);
        let (enforced, shadow): (Vec<_>, Vec<_>) =
            (enforced.iter().collect(), shadow.iter().collect());
        charge_all(&gateway, &enforced, &shadow).await;
    }
    assert_eq!(server.calls("evalsha") - before, 10);
}

#[tokio::test]
async fn a_bucket_that_owes_more_than_possible_is_reduced_to_an_empty_one() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    // The stored value is a year in the future, as if the clock of Redis had been a year ahead.
    let year = u128::from(
        server
            .command(&["TIME"])
            .array()
            .remove(0)
            .int()
            .unsigned_abs(),
    ) + 365 * 24 * 3_600;
    let stored = |bucket: &TestBucket| {
        let refill = bucket.limit.quota.refill().as_nanos();
        let (full, charged) = (year * 1_000_000_000, 1_000_000_000);
        format!("{full}:{refill:010}:{charged}")
    };
    for bucket in [
        TestBucket::new(Duration::from_secs(10), 3),
        TestBucket::new(Duration::from_secs(10), 3).delaying(Duration::from_secs(20)),
    ] {
        let name = bucket_name(&server, &gateway, &bucket).await;
        server.command(&["SET", &name, &stored(&bucket)]);
        let decision = request(&gateway, &[&bucket]).await;
        assert_eq!(rejection(decision.outcome).0, Duration::from_secs(10));
        assert_eq!(decision.readings[0].remaining, 0);
        server.command(&["DEL", &name]);
    }
    // A client that waits as long as its rejection requires must be admitted.
    let bucket = TestBucket::new(Duration::from_millis(200), 3);
    let name = bucket_name(&server, &gateway, &bucket).await;
    server.command(&["SET", &name, &stored(&bucket)]);
    let (wait, _) = rejection(bucket.request(&gateway).await);
    assert_eq!(wait, Duration::from_millis(200));
    sleep(wait).await;
    assert_eq!(bucket.request(&gateway).await, ADMITTED);
    server.command(&["DEL", &name]);
    // A value that is not a time must be treated as a full bucket.
    for write in [["SET", "soon"], ["RPUSH", "1"]] {
        let bucket = TestBucket::new(HOUR, 3);
        let name = bucket_name(&server, &gateway, &bucket).await;
        server.command(&["DEL", &name]);
        server.command(&[write[0], &name, write[1]]);
        assert_eq!(bucket.request(&gateway).await, ADMITTED);
        server.command(&["DEL", &name]);
    }
}

/// Charges a bucket once and returns its Redis key. The server must have no other bucket.
async fn bucket_name(server: &RedisServer, gateway: &BucketStore, bucket: &TestBucket) -> String {
    assert_eq!(bucket.request(gateway).await, ADMITTED);
    only_bucket(server)
}

#[tokio::test]
async fn a_full_bucket_is_removed_from_redis() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    let bucket = TestBucket::new(Duration::from_millis(60), 1);
    bucket.request(&gateway).await;
    bucket.request(&gateway).await;
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
    let bucket = TestBucket::new(month, 11);
    for tokens in 1..=2_i64 {
        assert_eq!(bucket.request(&gateway).await, ADMITTED);
        let name = only_bucket(&server);
        let left = server.command(&["PTTL", &name]).int();
        let full = i64::try_from(month.as_millis()).unwrap() * tokens;
        assert!((full - 5_000..=full + 2).contains(&left), "{left}");
    }
}

/// `docs/fleet.md` states these 200 bytes in its section on the memory of Redis.
#[tokio::test]
async fn a_bucket_takes_about_200_bytes() {
    const BUCKETS: u64 = 4_000;
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    let used = || -> u64 { server.info("memory", "used_memory").parse().unwrap() };
    // The first request is not measured, because it opens a connection and loads the script, which also take memory.
    TestBucket::new(HOUR, 0).request(&gateway).await;
    let before = used();
    for _ in 0..BUCKETS {
        assert_eq!(TestBucket::new(HOUR, 0).request(&gateway).await, ADMITTED);
    }
    let bytes = (used() - before) / BUCKETS;
    assert!((150..=220).contains(&bytes), "{bytes}");
}

#[tokio::test]
async fn gateways_with_different_quotas_share_a_bucket_by_its_filled_fraction() {
    let server = RedisServer::start();
    let (slow, fast) = (gateway_of(&server), gateway_of(&server));
    let before = TestBucket::new(HOUR, 19);
    let after = before.with_quota(Duration::from_secs(3), 19);
    let mut admitted = 0;
    let began = Instant::now();
    for _ in 0..5 {
        for _ in 0..20 {
            admitted += usize::from(before.request(&slow).await == ADMITTED);
        }
        for _ in 0..20 {
            admitted += usize::from(after.request(&fast).await == ADMITTED);
        }
    }
    assert!(admitted <= 20 + usize::try_from(began.elapsed().as_secs()).unwrap() / 3);
}

#[tokio::test]
async fn a_limit_that_no_longer_delays_requests_rejects_no_longer_than_its_refill_time() {
    let server = RedisServer::start();
    let gateway = gateway_of(&server);
    let delays = TestBucket::new(HOUR, 0).delaying(HOUR * 4);
    for _ in 0..5 {
        delays.request(&gateway).await;
    }
    let rejects = delays.clone().rejecting();
    let (wait, _) = rejection(rejects.request(&gateway).await);
    assert!(wait <= HOUR, "{wait:?}");
}
