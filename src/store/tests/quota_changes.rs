//! Random histories of requests, and of changes of the rate, the burst and the name of a limit, in virtual time. Each
//! store is compared with a model that counts the filled fraction of a bucket.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use fastrand::Rng;
use tempfile::TempDir;

use crate::clock::{Clock, Moment};
use crate::store::memory::MemoryBuckets;
use crate::store::tests::redis::RedisServer;
use crate::store::{BucketStore, OpenStore, StoreCapacity};
use crate::throttle::{BucketKey, Buckets as _, Charge, ChargeOutcome, Limit, Quota, QuotaSince};

const EVENTS: usize = 40;

/// Decisions of a store, in the order of a history. `None` stands for a decision that the model does not determine.
type Decisions = Vec<Option<bool>>;

enum Event {
    Request { cost: NonZeroU32 },
    Quota(Quota),
    Rename,
    Restart,
}

struct History {
    first: Quota,
    /// Each event with the time since the previous one.
    events: Vec<(Duration, Event)>,
}

/// A gateway with the store under test.
struct Gateway {
    clock: Clock,
    buckets: BucketStore,
    /// How far decisions of the store can be from the time of the clock.
    tolerance: Duration,
    disk: Option<(OpenStore, TempDir)>,
}

/// A bucket of the model.
#[derive(Clone, Copy)]
struct Fraction {
    filled: f64,
    at: Moment,
    /// The quota of the last decision.
    quota: Quota,
}

impl History {
    fn any(rng: &mut Rng) -> Self {
        let mut quota = any_quota(rng);
        let first = quota;
        let events = std::iter::repeat_with(|| {
            let interval = quota.interval().as_secs_f64();
            let later = if rng.u8(..3) == 0 { 0.0 } else { rng.f64() };
            let event = match rng.u8(..20) {
                0..2 => {
                    quota = any_quota(rng);
                    Event::Quota(quota)
                }
                2 => Event::Rename,
                3 => Event::Restart,
                _ => Event::Request {
                    cost: NonZeroU32::MIN.saturating_add(rng.u32(..2.min(quota.capacity().get()))),
                },
            };
            (Duration::from_secs_f64(1.5 * later * interval), event)
        });
        let events = events.take(EVENTS).collect();
        Self { first, events }
    }
}

fn any_quota(rng: &mut Rng) -> Quota {
    let interval = Duration::from_millis([300, 1_000, 7_000, 60_000][rng.usize(..4)]);
    let interval = interval.mul_f64(0.5 + rng.f64());
    Quota::new(NonZeroU32::MIN, interval, rng.u32(..8)).unwrap()
}

impl Gateway {
    fn new(clock: Clock, buckets: BucketStore, tolerance: Duration) -> Self {
        Self {
            clock,
            buckets,
            tolerance,
            disk: None,
        }
    }

    fn in_memory() -> Self {
        let clock = virtual_clock();
        let buckets = MemoryBuckets::new(1_000, clock.clone());
        let tolerance = Duration::from_micros(1);
        Self::new(clock, BucketStore::Memory(Arc::new(buckets)), tolerance)
    }

    fn on_disk() -> Self {
        let (clock, directory) = (virtual_clock(), tempfile::tempdir().unwrap());
        let store = open(&directory, &clock);
        // A snapshot contains the wall time in milliseconds.
        let tolerance = Duration::from_millis(5);
        let mut gateway = Self::new(clock, store.buckets.clone(), tolerance);
        gateway.disk = Some((store, directory));
        gateway
    }

    /// Stops the gateway and starts it again, if its buckets survive that.
    fn restart(&mut self) -> bool {
        let Some((store, directory)) = self.disk.take() else {
            return false;
        };
        drop(store);
        let store = open(&directory, &self.clock);
        self.buckets = store.buckets.clone();
        self.disk = Some((store, directory));
        true
    }

    /// Plays a history, and compares each decision with the model. If the store is Redis, `redis` is its server, whose
    /// clock also runs between the events.
    async fn play(&mut self, history: &History, redis: Option<&RedisServer>) -> Decisions {
        let (started, mut passed) = (Instant::now(), Duration::ZERO);
        let keys = [(); 2].map(|()| BucketKey {
            high: fastrand::u64(..),
            low: fastrand::u64(..),
        });
        let mut model = keys.map(|_| None::<Fraction>);
        let mut limit = Limit::per_client("device", history.first);
        let mut name = 0;
        let mut decisions = Vec::new();
        for (later, event) in &history.events {
            if let Some(server) = redis {
                server.advance(*later);
                let real = started.elapsed();
                self.clock.advance(real.saturating_sub(passed));
                passed = real;
            }
            self.clock.advance(*later);
            let now = self.clock.now();
            match event {
                Event::Quota(quota) => {
                    limit.quota = *quota;
                    limit.quota_since.set(now);
                }
                Event::Rename => {
                    name = 1 - name;
                    limit.quota_since = QuotaSince::default();
                    limit.quota_since.set(now);
                }
                Event::Restart => {
                    if self.restart() {
                        limit.quota_since.set(self.clock.now());
                    }
                }
                Event::Request { cost } => {
                    let charge = Charge {
                        limit: &limit,
                        bucket: keys[name],
                        cost: *cost,
                    };
                    let decision = self.buckets.charge(&[charge], &[]).await.decision;
                    let is_admitted = matches!(decision.outcome, ChargeOutcome::Admitted { .. });
                    let bucket = model[name].get_or_insert(Fraction {
                        filled: 1.0,
                        at: now,
                        quota: limit.quota,
                    });
                    decisions.push(bucket.decide(&limit, *cost, now, self.tolerance, is_admitted));
                }
            }
        }
        decisions
    }
}

impl Fraction {
    /// Compares the decision of the store with the model, unless it is within `tolerance` of the opposite one.
    fn decide(
        &mut self,
        limit: &Limit,
        cost: NonZeroU32,
        now: Moment,
        tolerance: Duration,
        is_admitted: bool,
    ) -> Option<bool> {
        let refill = |quota: Quota| quota.refill().as_secs_f64();
        let fill = |from: Moment, to: Moment, quota| to.since(from).as_secs_f64() / refill(quota);
        let quota = limit.quota;
        let since = limit.quota_since.get().max(self.at);
        // A faster quota counts from its change, and a slower one from the next request.
        let until = if refill(quota) < refill(self.quota) {
            since
        } else {
            now
        };
        // A value above 1 is a bucket that has been full for some time.
        let mut filled = self.filled + fill(self.at, until, self.quota);
        if until < now {
            filled = filled.min(1.0) + fill(until, now, quota);
        }
        let capacity = f64::from(quota.capacity().get());
        let missing = (f64::from(cost.get()) / capacity - filled) * refill(quota);
        let is_certain = missing.abs() > tolerance.as_secs_f64();
        if is_certain {
            assert_eq!(is_admitted, missing < 0.0, "{missing} s are missing");
        }
        let taken = if is_admitted {
            f64::from(cost.get()) / capacity
        } else {
            0.0
        };
        *self = Self {
            filled: (filled.min(1.0) - taken).max(0.0),
            at: now,
            quota,
        };
        is_certain.then_some(is_admitted)
    }
}

fn open(directory: &TempDir, clock: &Clock) -> OpenStore {
    OpenStore::on_disk(
        directory.path(),
        1_000,
        StoreCapacity::default(),
        clock.clone(),
    )
    .unwrap()
}

fn virtual_clock() -> Clock {
    Clock::virtual_from(SystemTime::UNIX_EPOCH + Duration::from_hours(500_000))
}

/// Asserts that two stores made the same decisions before the first that the model does not determine for one of them.
fn assert_agreement(one: &Decisions, other: &Decisions) {
    let pairs = one.iter().zip(other);
    let certain = pairs.map_while(|(one, other)| Some(((*one)?, (*other)?)));
    for (index, (one, other)) in certain.enumerate() {
        assert_eq!(one, other, "decision {index}");
    }
}

#[tokio::test]
async fn buckets_in_memory_follow_every_change_of_a_quota() {
    let seed = fastrand::u64(..);
    for seed in (0..2_000).map(|number| seed.wrapping_add(number)) {
        eprintln!("seed {seed}");
        let history = History::any(&mut Rng::with_seed(seed));
        Gateway::in_memory().play(&history, None).await;
    }
}

#[tokio::test]
async fn buckets_on_disk_follow_every_change_of_a_quota_and_survive_restarts() {
    let seed = fastrand::u64(..);
    for seed in (0..20).map(|number| seed.wrapping_add(number)) {
        eprintln!("seed {seed}");
        let history = History::any(&mut Rng::with_seed(seed));
        // Decisions in memory differ after a restart, because the quota is in effect since then.
        Gateway::on_disk().play(&history, None).await;
    }
}

mod needs_redis {
    use super::*;
    use crate::store::tests::buckets::fixture::gateway_with_clock;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn buckets_in_redis_follow_every_change_of_a_quota() {
        let server = RedisServer::options().fake_time().start();
        let clock = virtual_clock();
        let buckets = gateway_with_clock(&server, clock.clone());
        let mut gateway = Gateway::new(clock, buckets, Duration::from_millis(50));
        let seed = fastrand::u64(..);
        let mut decided = 0;
        for seed in (0..100).map(|number| seed.wrapping_add(number)) {
            eprintln!("seed {seed}");
            let history = History::any(&mut Rng::with_seed(seed));
            let memory = Gateway::in_memory().play(&history, None).await;
            let redis = gateway.play(&history, Some(&server)).await;
            assert_agreement(&memory, &redis);
            decided += redis.iter().flatten().count();
        }
        // Otherwise the histories would test nothing.
        assert!(decided > 1_000, "{decided}");
    }
}
