//! The guarantees of a store of rate limit buckets, with one test for each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::throttle::{Buckets as _, ChargeOutcome};
use tokio::time::sleep;

use super::fixture::{
    ADMITTED, BucketFixture, BucketStoreKind, HOUR, TestBucket, charge_all, rejection, request,
};

pub(crate) async fn a_burst_is_admitted_immediately_and_the_next_request_waits_for_a_token(
    kind: BucketStoreKind,
) {
    let gateway = BucketFixture::new(kind).gateway();
    let bucket = TestBucket::new(HOUR, 3);
    let began = Instant::now();
    for remaining in [3, 2, 1, 0] {
        let decision = request(&gateway, &[&bucket]).await;
        assert_eq!(decision.outcome, ADMITTED);
        assert_eq!(decision.readings[0].remaining, remaining);
    }
    for _ in 0..3 {
        let decision = request(&gateway, &[&bucket]).await;
        let (wait, by) = rejection(decision.outcome);
        assert!(wait <= HOUR && wait + began.elapsed() >= HOUR, "{wait:?}");
        assert_eq!((by, decision.readings[0].remaining), (0, 0));
        assert_eq!(decision.readings[0].next, wait);
    }
}

pub(crate) async fn a_client_that_waits_as_long_as_its_rejection_requires_is_admitted(
    kind: BucketStoreKind,
) {
    let gateway = BucketFixture::new(kind).gateway();
    let bucket = TestBucket::new(Duration::from_millis(120), 0);
    let mut rejections = 0;
    for _ in 0..5 {
        while let ChargeOutcome::Rejected { wait, .. } = bucket.request(&gateway).await {
            rejections += 1;
            sleep(wait).await;
        }
    }
    // The first of the five requests is admitted immediately. Each of the other four is rejected at most once, because
    // it is admitted after its wait.
    assert!(rejections <= 4, "{rejections}");
}

pub(crate) async fn limits_are_charged_only_if_all_of_them_admit(kind: BucketStoreKind) {
    let fixture = BucketFixture::new(kind);
    let (gateway, other) = (fixture.gateway(), fixture.gateway());
    let (wide, tight) = (TestBucket::new(HOUR, 3), TestBucket::new(HOUR, 0));
    assert_eq!(request(&gateway, &[&wide, &tight]).await.outcome, ADMITTED);
    for _ in 0..3 {
        for gateway in [&gateway, &other] {
            let decision = request(gateway, &[&wide, &tight]).await;
            assert_eq!(rejection(decision.outcome).1, 1);
            let left: Vec<_> = decision.readings.iter().map(|it| it.remaining).collect();
            assert_eq!(left, [3, 0]);
        }
    }
    for _ in 0..3 {
        assert_eq!(wide.request(&other).await, ADMITTED);
    }
    rejection(wide.request(&other).await);
}

pub(crate) async fn each_limit_that_rejects_has_its_own_wait(kind: BucketStoreKind) {
    let fixture = BucketFixture::new(kind);
    let (gateway, other) = (fixture.gateway(), fixture.gateway());
    let (short, long, wide) = (
        TestBucket::new(HOUR, 0),
        TestBucket::new(HOUR * 5, 0),
        TestBucket::new(HOUR * 9, 3),
    );
    let outflow = TestBucket::new(HOUR * 4, 0).delaying(HOUR);
    let buckets = [&short, &wide, &long, &outflow];
    let began = Instant::now();
    assert_eq!(request(&gateway, &buckets).await.outcome, ADMITTED);
    for gateway in [&gateway, &gateway, &other, &other] {
        let decision = request(gateway, &buckets).await;
        assert_eq!(decision.rejecting()[..], [2, 3, 0]);
        let (wait, by) = rejection(decision.outcome);
        assert_eq!((by, decision.readings[2].next), (2, wait));
        // The rate limit `outflow` can forward the next request in four hours. It delays requests by up to one hour, so
        // it admits a request again in three hours.
        for (index, hours) in [(0, 1), (1, 9), (2, 5), (3, 3)] {
            let (next, due) = (decision.readings[index].next, HOUR * hours);
            assert!(
                next <= due && next + began.elapsed() >= due,
                "{index}: {next:?}"
            );
        }
    }
}

pub(crate) async fn a_request_takes_as_many_tokens_as_it_costs(kind: BucketStoreKind) {
    let gateway = BucketFixture::new(kind).gateway();
    let bucket = TestBucket::new(HOUR, 4);
    for remaining in [3, 1] {
        let decision = gateway.charge(&[bucket.charge(2)], &[]).await.decision;
        assert_eq!(decision.outcome, ADMITTED);
        assert_eq!(decision.readings[0].remaining, remaining);
    }
    let costly = gateway.charge(&[bucket.charge(2)], &[]).await.decision;
    assert!(rejection(costly.outcome).0 <= HOUR);
    // The bucket rejected a cost of 2, but still has one token for a cost of 1.
    assert_eq!(bucket.request(&gateway).await, ADMITTED);
    rejection(bucket.request(&gateway).await);
}

pub(crate) async fn a_cost_beyond_the_size_of_the_bucket_is_never_admitted(kind: BucketStoreKind) {
    let gateway = BucketFixture::new(kind).gateway();
    for bucket in [
        TestBucket::new(HOUR, 1),
        TestBucket::new(HOUR, 1).delaying(HOUR * 9),
    ] {
        let decision = gateway.charge(&[bucket.charge(3)], &[]).await.decision;
        assert!(rejection(decision.outcome).0 > HOUR * 1_000_000);
        assert_eq!(bucket.request(&gateway).await, ADMITTED);
    }
}

pub(crate) async fn a_delaying_limit_assigns_slots_in_order(kind: BucketStoreKind) {
    let gateway = BucketFixture::new(kind).gateway();
    let bucket = TestBucket::new(HOUR, 0).delaying(HOUR * 2);
    let began = Instant::now();
    for slot in 0..3 {
        let ChargeOutcome::Admitted { delay } = bucket.request(&gateway).await else {
            panic!("slot {slot} is within `max_delay`");
        };
        let due = HOUR * slot;
        assert!(delay <= due && delay + began.elapsed() >= due, "{delay:?}");
    }
    // The three admitted requests have the slots now, in one hour and in two hours, so the next slot is in three hours.
    // The maximum delay is two hours, so the client must wait one hour before it repeats the request.
    let (wait, _) = rejection(bucket.request(&gateway).await);
    assert!(wait <= HOUR && wait + began.elapsed() >= HOUR, "{wait:?}");
}

pub(crate) async fn a_shadow_limit_is_charged_independently(kind: BucketStoreKind) {
    let gateway = BucketFixture::new(kind).gateway();
    let (tight, shadow, other) = (
        TestBucket::new(HOUR, 0),
        TestBucket::new(HOUR, 2),
        TestBucket::new(HOUR, 9),
    );
    let mut exceeded: Vec<Vec<usize>> = Vec::new();
    for request in 0..6 {
        let result = charge_all(&gateway, &[&tight], &[&other, &shadow]).await;
        assert_eq!(result.decision.outcome == ADMITTED, request == 0);
        assert_eq!(result.decision.readings.len(), 1);
        exceeded.push(result.exceeded.to_vec());
    }
    // A request that the enforced limit rejects is still charged to the shadow limit.
    let beyond = [vec![], vec![], vec![], vec![1], vec![1], vec![1]];
    assert_eq!(exceeded, beyond);
    // If there is no enforced rate limit, all requests are admitted.
    let result = charge_all(&gateway, &[], &[&shadow, &shadow]).await;
    assert_eq!(result.decision.outcome, ADMITTED);
    assert_eq!(result.exceeded[..], [0, 1]);
}

pub(crate) async fn gateways_share_a_bucket(kind: BucketStoreKind) {
    let fixture = BucketFixture::new(kind);
    let gateways = [fixture.gateway(), fixture.gateway()];
    let bucket = TestBucket::new(HOUR, 3);
    for turn in 0..4 {
        assert_eq!(bucket.request(&gateways[turn % 2]).await, ADMITTED);
    }
    for gateway in &gateways {
        rejection(bucket.request(gateway).await);
    }
}

/// The test has two rate limits. On a cluster their buckets are in different hash slots, so they are charged
/// separately. If one limit rejects a request, the charge to the other limit is refunded.
pub(crate) async fn concurrent_clients_get_no_more_than_the_quota(kind: BucketStoreKind) {
    const INTERVAL: Duration = Duration::from_millis(5);
    const BURST: u32 = 10;
    let fixture = BucketFixture::new(kind);
    let gateways = [fixture.gateway(), fixture.gateway()];
    let buckets = Arc::new([
        TestBucket::new(INTERVAL, BURST),
        TestBucket::new(INTERVAL * 2, BURST * 3),
    ]);
    let began = Instant::now();
    let tasks: Vec<_> = (0..8)
        .map(|task| {
            let (gateway, buckets) = (gateways[task % 2].clone(), Arc::clone(&buckets));
            tokio::spawn(async move {
                let mut admitted = 0;
                while began.elapsed() < Duration::from_millis(500) {
                    let decision = request(&gateway, &[&buckets[0], &buckets[1]]).await;
                    admitted += u128::from(decision.is_admitted());
                    tokio::task::yield_now().await;
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.unwrap();
    }
    let elapsed = began.elapsed();
    for (burst, interval) in [(BURST, INTERVAL), (BURST * 3, INTERVAL * 2)] {
        let most = u128::from(burst) + 1 + elapsed.as_nanos() / interval.as_nanos();
        assert!(admitted <= most, "{admitted} of {most} in {elapsed:?}");
    }
    // The test is meaningful only if more requests than the burst were admitted.
    assert!(admitted > u128::from(BURST), "{admitted} in {elapsed:?}");
}
