use std::num::NonZeroU32;
use std::sync::Barrier;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime};

use super::*;
use crate::throttle::{
    Exceed, KeyPart, Limit, Mode, OnStoreError, Quota, QuotaSince, RetryAfterForm,
};

fn limit(id: u16, interval: Duration, burst: u32) -> Limit {
    Limit {
        name: format!("limit-{id}").into(),
        quota: Quota::new(NonZeroU32::MIN, interval, burst).unwrap(),
        quota_since: QuotaSince::default(),
        key: Box::new([KeyPart::Client]),
        exceed: Exceed::Reject,
        mode: Mode::Enforce,
        retry_after: RetryAfterForm::Seconds,
        on_store_error: OnStoreError::Local,
        log_key: false,
    }
}

/// Returns a random bucket key. Random keys are distributed as evenly as the keyed hashes of real clients.
fn bucket(random: &mut fastrand::Rng) -> BucketKey {
    BucketKey {
        high: random.u64(..),
        low: random.u64(..),
    }
}

fn one(limit: &Limit, bucket: BucketKey) -> Charge<'_> {
    Charge {
        limit,
        bucket,
        cost: NonZeroU32::MIN,
    }
}

fn stopped_clock() -> Clock {
    Clock::virtual_from(SystemTime::UNIX_EPOCH)
}

fn admitted(decision: &Decision) -> bool {
    matches!(decision.outcome, ChargeOutcome::Admitted { .. })
}

#[test]
fn many_clients_fill_the_table_exactly_to_its_capacity() {
    for max_clients in [0, 1, 2, 3, 1_000, 20_001] {
        let buckets = MemoryBuckets::new(max_clients, stopped_clock());
        let slow = limit(0, Duration::from_mins(1), 0);
        let mut random = fastrand::Rng::with_seed(2);
        for _ in 0..max_clients * 3 / 2 + 100 {
            buckets.charge_now(&[one(&slow, bucket(&mut random))]);
        }
        assert_eq!(buckets.tracked(), max_clients);
    }
}

#[test]
fn an_empty_bucket_is_not_refilled_by_many_other_clients() {
    let clock = stopped_clock();
    let buckets = MemoryBuckets::new(64, clock.clone());
    let slow = limit(0, Duration::from_mins(1), 2);
    let mut random = fastrand::Rng::with_seed(7);
    let client = bucket(&mut random);
    for _ in 0..3 {
        assert!(admitted(&buckets.charge_now(&[one(&slow, client)])));
    }
    let others_admitted = (0..10_000)
        .filter(|_| admitted(&buckets.charge_now(&[one(&slow, bucket(&mut random))])))
        .count();
    assert!(
        others_admitted > 9_500,
        "{others_admitted} of 10,000 other clients were admitted"
    );
    clock.advance(Duration::from_mins(1) - Duration::from_nanos(1));
    assert!(!admitted(&buckets.charge_now(&[one(&slow, client)])));
    clock.advance(Duration::from_nanos(1));
    assert!(admitted(&buckets.charge_now(&[one(&slow, client)])));
}

/// A request with several charges can evict one of its own full buckets for another one. The charge to the evicted
/// bucket must not be lost.
#[test]
fn a_bucket_evicted_by_its_own_request_is_still_charged() {
    let mut random = fastrand::Rng::with_seed(3);
    for _ in 0..500 {
        let clock = stopped_clock();
        let buckets = MemoryBuckets::new(2, clock.clone());
        let limits = [0, 1, 2].map(|id| limit(id, Duration::from_secs(10), 0));
        let names = [0; 3].map(|_| bucket(&mut random));
        assert!(admitted(&buckets.charge_now(&[one(&limits[2], names[2])])));
        clock.advance(Duration::from_secs(20));
        let all = [0, 1, 2].map(|index| one(&limits[index], names[index]));
        assert!(admitted(&buckets.charge_now(&all)));
        for charge in all {
            assert!(!admitted(&buckets.charge_now(&[charge])));
        }
    }
}

/// The two buckets of a request are in one shard or in two, depending on their hashes. Both cases must occur.
#[test]
fn several_buckets_are_charged_together_in_one_shard_and_in_two() {
    let (second, minute) = (
        limit(0, Duration::from_secs(1), 1),
        limit(1, Duration::from_mins(1), 1),
    );
    let mut random = fastrand::Rng::with_seed(11);
    let mut same_shard = 0;
    for _ in 0..1_000 {
        let buckets = MemoryBuckets::new(10, stopped_clock());
        let (a, b) = (bucket(&mut random), bucket(&mut random));
        same_shard += usize::from(buckets.shard_of(a) == buckets.shard_of(b));
        let charges = [one(&second, a), one(&minute, b)];
        let outcomes = [0; 3].map(|_| admitted(&buckets.charge_now(&charges)));
        assert_eq!(outcomes, [true, true, false]);
    }
    assert!((300..700).contains(&same_shard), "{same_shard} of 1,000");
}

#[test]
fn requests_that_charge_the_same_buckets_in_different_orders_do_not_deadlock() {
    let (done, finished) = mpsc::channel();
    thread::spawn(move || {
        let buckets = MemoryBuckets::new(200_000, Clock::real());
        let mut random = fastrand::Rng::with_seed(5);
        let limits: Vec<_> = (0..4)
            .map(|id| limit(id, Duration::from_nanos(1), 1_000))
            .collect();
        let names: Vec<_> = (0..4).map(|_| bucket(&mut random)).collect();
        let threads = 16;
        let start = Barrier::new(threads);
        thread::scope(|scope| {
            for index in 0..threads {
                let (buckets, limits, names, start) = (&buckets, &limits, &names, &start);
                scope.spawn(move || {
                    let mut charges: Vec<_> = limits
                        .iter()
                        .zip(names)
                        .map(|(limit, &bucket)| one(limit, bucket))
                        .collect();
                    let mut random = fastrand::Rng::with_seed(index as u64);
                    start.wait();
                    for _ in 0..5_000 {
                        random.shuffle(&mut charges);
                        let count = random.usize(1..=charges.len());
                        buckets.charge_now(&charges[..count]);
                    }
                });
            }
        });
        done.send(()).unwrap();
    });
    finished
        .recv_timeout(Duration::from_mins(1))
        .expect("80,000 requests end within a minute unless there is a deadlock");
}

#[test]
fn a_refill_affects_only_its_bucket() {
    let buckets = MemoryBuckets::new(2, stopped_clock());
    let slow = limit(0, Duration::from_mins(1), 0);
    let mut random = fastrand::Rng::with_seed(3);
    let keys: Vec<_> = (0..200_000).map(|_| bucket(&mut random)).collect();
    for &key in &keys {
        buckets.charge_now(&[one(&slow, key)]);
    }
    let (tracked, untracked): (Vec<_>, Vec<_>) =
        (keys.into_iter()).partition(|&key| buckets.full_at(&slow, key).1);
    let [first, second] = tracked[..] else {
        panic!("the table tracks two buckets")
    };
    assert!(buckets.refill(&slow, first));
    assert!(admitted(&buckets.charge_now(&[one(&slow, first)])));
    assert!(!admitted(&buckets.charge_now(&[one(&slow, first)])));
    assert!(!admitted(&buckets.charge_now(&[one(&slow, second)])));
    // Its shared bucket is empty, and is that of others, too.
    let owes = |key| buckets.full_at(&slow, key).0 > buckets.now();
    let shared = untracked.into_iter().find(|&key| owes(key)).unwrap();
    assert!(!buckets.refill(&slow, shared));
    assert!(!admitted(&buckets.charge_now(&[one(&slow, shared)])));
    // A bucket that was never charged is full.
    let fresh = MemoryBuckets::new(2, stopped_clock());
    assert!(fresh.refill(&slow, first));
}
