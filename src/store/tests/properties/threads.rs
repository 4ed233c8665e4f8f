//! Tests with several threads that charge the same buckets.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::clock::Clock;
use crate::store::memory::MemoryBuckets;
use crate::throttle::{BucketKey, Exceed, Limit, Quota};
use proptest::prelude::*;

use super::model::keeps_quota;
use super::{admitted, cases, charge, limit, virtual_clock};

const CLIENTS: u64 = 3;

/// Admitted requests. Each has the number of the client, the time before the decision and the time after the decision.
/// Both times are in nanoseconds.
type Admissions = Vec<(u64, u64, u64)>;

/// Rate limit buckets that several threads charge: one per client, and one that all clients share.
struct SharedBuckets {
    clock: Clock,
    buckets: MemoryBuckets,
    by_client: Limit,
    global: Limit,
}

impl SharedBuckets {
    fn new(clock: Clock, by_client: Quota, global: Quota) -> Self {
        Self {
            buckets: MemoryBuckets::new(20_000, clock.clone()),
            clock,
            by_client: limit(0, by_client, Exceed::Reject),
            global: limit(1, global, Exceed::Reject),
        }
    }

    /// Sends a request of `client`. If `reversed` is true, the two rate limits of the request are in reverse order.
    /// Returns `None` if the request is rejected.
    fn call(&self, client: u64, reversed: bool) -> Option<(u64, u64, u64)> {
        let bucket = |name: u64| BucketKey {
            high: (name + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            low: name,
        };
        let mut charges = [
            charge(&self.by_client, bucket(client), 1),
            charge(&self.global, bucket(CLIENTS), 1),
        ];
        if reversed {
            charges.reverse();
        }
        let before = self.clock.now().as_nanos();
        let decision = self.buckets.charge_now(&charges);
        let after = self.clock.now().as_nanos();
        admitted(&decision).then_some((client, before, after))
    }

    /// Sends requests from `threads` threads until `driver` returns. Returns the admitted requests.
    fn send_all(&self, threads: u64, driver: impl FnOnce()) -> Admissions {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let callers: Vec<_> = (0..threads)
                .map(|index| {
                    let over = &over;
                    scope.spawn(move || {
                        let mut admissions = Admissions::new();
                        for turn in index.. {
                            let reversed = turn.is_multiple_of(2);
                            admissions.extend(self.call(turn % CLIENTS, reversed));
                            // The check follows the call, so that each thread sends a request even if it starts late.
                            if over.load(Ordering::Relaxed) {
                                break;
                            }
                        }
                        admissions
                    })
                })
                .collect();
            driver();
            over.store(true, Ordering::Relaxed);
            let joined = callers.into_iter().map(|caller| caller.join().unwrap());
            joined.flatten().collect()
        })
    }

    fn keep_quotas(&self, admissions: &Admissions) -> bool {
        let of = |client: Option<u64>| -> Vec<_> {
            let theirs = admissions
                .iter()
                .filter(|admission| client.is_none_or(|client| client == admission.0));
            theirs
                .map(|&(_, before, after)| (before, after, 1))
                .collect()
        };
        let each = (0..CLIENTS).all(|client| keeps_quota(self.by_client.quota, &of(Some(client))));
        each && keeps_quota(self.global.quota, &of(None))
    }
}

fn quota(nanos: u64, burst: u32) -> Quota {
    Quota::new(1.try_into().unwrap(), Duration::from_nanos(nanos), burst).unwrap()
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn no_interval_exceeds_the_quota_on_the_real_clock(
        threads in 1_u64..=64,
        by_client in (5_000_u64..100_000, 0_u32..20),
        global in (2_000_u64..50_000, 0_u32..40),
    ) {
        let shared = SharedBuckets::new(
            Clock::real(),
            quota(by_client.0, by_client.1),
            quota(global.0, global.1),
        );
        let admissions = shared.send_all(threads, || thread::sleep(Duration::from_millis(30)));
        prop_assert!(!admissions.is_empty());
        prop_assert!(shared.keep_quotas(&admissions));
    }

    #[test]
    fn no_interval_exceeds_the_quota_while_the_clock_jumps(
        threads in 1_u64..=64,
        by_client in (1_u64..1_000, 0_u32..20),
        global in (1_u64..1_000, 0_u32..40),
        jumps in prop::collection::vec(0_u64..2_000, 100),
    ) {
        let clock = virtual_clock();
        let shared = SharedBuckets::new(
            clock.clone(),
            quota(by_client.0, by_client.1),
            quota(global.0, global.1),
        );
        let admissions = shared.send_all(threads, || {
            for jump in jumps {
                clock.advance(Duration::from_nanos(jump));
                thread::yield_now();
            }
        });
        prop_assert!(shared.keep_quotas(&admissions));
    }

    /// After each advance of the clock, all threads take tokens until their requests are rejected.
    #[test]
    fn all_threads_together_get_exactly_the_quota(
        threads in 1_usize..=64,
        interval in 1_u64..1_000,
        burst in 0_u32..200,
        jumps in prop::collection::vec(0_u64..5_000, 10),
    ) {
        let clock = virtual_clock();
        // Each advance of the clock is shorter than the refill time of an empty bucket. So an emptied bucket does not
        // become full again. While a bucket is full, it gets no tokens, and the asserted sum would be too large.
        let quota = quota(interval, burst + 5_000);
        let generous = Quota::new(1.try_into().unwrap(), Duration::from_nanos(1), 1 << 30).unwrap();
        let shared = SharedBuckets::new(clock.clone(), quota, generous);
        let elapsed: u64 = jumps.iter().sum();
        let (start, taken) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
        let given: u64 = thread::scope(|scope| {
            let takers: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(|| {
                        let mut given = 0_u64;
                        for _ in 0..=jumps.len() {
                            start.wait();
                            while shared.call(0, false).is_some() { given += 1; }
                            taken.wait();
                        }
                        given
                    })
                })
                .collect();
            for &jump in jumps.iter().chain(&[0]) {
                start.wait();
                taken.wait();
                clock.advance(Duration::from_nanos(jump));
            }
            takers.into_iter().map(|taker| taker.join().unwrap()).sum()
        });
        prop_assert_eq!(given, u64::from(burst) + 5_001 + elapsed / interval);
    }
}
