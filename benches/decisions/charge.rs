//! Cost of charging a request to its rate limits, with few and many clients, and with one or several threads.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion};
use http::HeaderMap;
use smallvec::SmallVec;
use tidegate::clock::Clock;
use tidegate::internals::{BucketKind, ClientId, MemoryBuckets, Seed};
use tidegate::throttle::{
    BucketKey, Charge, ChargeOutcome, Decision, Exceed, KeyPart, Limit, Mode, OnStoreError, Quota,
    QuotaSince, RetryAfterForm,
};

/// Number of clients per rate limit that the table can track. It is 25 % above the million clients of the benchmark,
/// because clients are not distributed evenly over the shards of the table.
const CAPACITY: usize = 1_250_000;

const MANY: u32 = 1_000_000;
const FEW: u32 = 1_000;

pub(crate) fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("charge");
    for limits in [1, 3] {
        // The rate of `hot`, which has a single client, is so high that no request is rejected. The rate of `few` and
        // `many` is so low that no bucket becomes full during the measurement. A full bucket would be evicted.
        let hot = Throttle::new(limits, quota(1_000_000_000, 1, 0));
        let few = Throttle::new(limits, quota(1, 60, 500_000)).tracking(FEW);
        let many = Throttle::new(limits, quota(1, 60, 500_000)).tracking(MANY);
        let threads = thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8));
        for threads in [1, threads] {
            measure(&mut group, threads, limits, "hot", &hot, |_| 0);
            measure(&mut group, threads, limits, "1k", &few, |r| r.u32(..FEW));
            measure(&mut group, threads, limits, "1M", &many, |r| r.u32(..MANY));
            measure(&mut group, threads, limits, "1k skewed", &few, |r| {
                skewed(r, FEW)
            });
            measure(&mut group, threads, limits, "1M skewed", &many, |r| {
                skewed(r, MANY)
            });
        }
    }
    group.finish();
}

/// Returns a random client of `count` clients. The distribution is skewed: of a million clients, the busiest sends 3 %
/// of the requests.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the product is between 0 and `count`"
)]
fn skewed(random: &mut fastrand::Rng, count: u32) -> u32 {
    (random.f64().powi(4) * f64::from(count)) as u32
}

fn measure(
    group: &mut BenchmarkGroup<'_, WallTime>,
    threads: usize,
    limits: usize,
    clients: &str,
    throttle: &Throttle,
    pick: impl Fn(&mut fastrand::Rng) -> u32 + Copy + Sync,
) {
    let id = BenchmarkId::new(
        format!("{limits} of {clients}"),
        format!("{threads} threads"),
    );
    group.bench_function(id, |bencher| {
        bencher.iter_custom(|times| throttle.time(threads, times, pick));
    });
}

fn quota(count: u32, seconds: u64, burst: u32) -> Quota {
    let count = NonZeroU32::new(count).expect("a rate above zero");
    Quota::new(count, Duration::from_secs(seconds), burst).expect("a quota in bounds")
}

/// A table of buckets, and the rate limits of each request.
struct Throttle {
    buckets: MemoryBuckets,
    limits: Vec<Arc<Limit>>,
    seed: Seed,
    headers: HeaderMap,
}

impl Throttle {
    fn new(limits: usize, quota: Quota) -> Self {
        let buckets = MemoryBuckets::new(limits * CAPACITY, Clock::real());
        let limits = (0..limits)
            .map(|index| {
                Arc::new(Limit {
                    name: format!("limit-{index}").into(),
                    quota,
                    quota_since: QuotaSince::default(),
                    key: [KeyPart::Client].into(),
                    exceed: Exceed::Reject,
                    mode: Mode::Enforce,
                    retry_after: RetryAfterForm::Seconds,
                    on_store_error: OnStoreError::Local,
                    log_key: false,
                })
            })
            .collect();
        Self {
            buckets,
            limits,
            seed: Seed::random(),
            headers: HeaderMap::new(),
        }
    }

    /// Charges one request of each of `clients` clients, so that the table tracks all of them.
    fn tracking(self, clients: u32) -> Self {
        for client in 0..clients {
            let decision = self.charge(client);
            assert!(matches!(decision.outcome, ChargeOutcome::Admitted { .. }));
        }
        let expected = self.limits.len() * usize::try_from(clients).expect("a u32 fits");
        assert_eq!(self.buckets.tracked(), expected, "every client is tracked");
        self
    }

    fn charge(&self, client: u32) -> Decision {
        let address = Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() + client);
        let client = ClientId::of(IpAddr::V4(address), 64);
        let charges: SmallVec<[Charge<'_>; 4]> = self
            .limits
            .iter()
            .map(|limit| Charge {
                limit,
                bucket: BucketKey::of(self.seed, limit, BucketKind::Main, client, &self.headers),
                cost: NonZeroU32::MIN,
            })
            .collect();
        self.buckets.charge_now(&charges)
    }

    /// Returns how long `threads` concurrent threads take to make `times` charges each.
    fn time(
        &self,
        threads: usize,
        times: u64,
        pick: impl Fn(&mut fastrand::Rng) -> u32 + Copy + Sync,
    ) -> Duration {
        let run = |seed| {
            let mut random = fastrand::Rng::with_seed(seed);
            for _ in 0..times {
                black_box(self.charge(pick(&mut random)));
            }
        };
        if threads == 1 {
            let started = Instant::now();
            run(fastrand::u64(..));
            return started.elapsed();
        }
        let ready = Barrier::new(threads + 1);
        thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(|| {
                        ready.wait();
                        run(fastrand::u64(..));
                    })
                })
                .collect();
            ready.wait();
            let started = Instant::now();
            for worker in workers {
                worker.join().expect("a charge does not panic");
            }
            started.elapsed()
        })
    }
}
