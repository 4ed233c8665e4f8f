//! The script against `decide`, step by step, on a real server and by its own clock.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::thread::sleep;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::clock::Clock;
use crate::store::redis::settings::{LIMITS_TIMEOUT, Node, PREFIX, RECORDS_TIMEOUT, RedisSettings};
use crate::throttle::decision::USUAL_LIMITS;
use crate::throttle::{BucketKey, Exceed, Limit, Quota, decide};

#[path = "../../../../tests/support/redis.rs"]
#[expect(
    dead_code,
    unused_imports,
    reason = "what is shared is not all used here"
)]
mod servers;

use servers::RedisServer;

const YEAR: Duration = Duration::from_hours(365 * 24);

fn settings(server: &RedisServer) -> RedisSettings {
    RedisSettings {
        nodes: Nodes::Single(Node {
            host: "127.0.0.1".into(),
            port: server.port(),
            tls: false,
            database: 0,
            user: None,
            password: None,
        }),
        prefix: PREFIX.into(),
        user: None,
        password: None,
        ca_file: None,
        // The machine may be busy with other tests.
        limits_timeout: LIMITS_TIMEOUT * 100,
        records_timeout: RECORDS_TIMEOUT * 10,
        lease: Duration::from_mins(1),
        wait_replicas: None,
        max_keys_per_client: None,
    }
}

fn buckets(server: &RedisServer) -> RedisBuckets {
    let redis = Redis::open(settings(server), false, Clock::real()).unwrap();
    redis.buckets(1_000)
}

/// One request: which of the limits are enforced and which watched, its cost, and the wait before it.
#[derive(Clone, Debug)]
struct Request {
    enforced: Vec<usize>,
    watched: Vec<usize>,
    cost: u32,
    micros_before: u64,
}

fn limit() -> impl Strategy<Value = Limit> {
    let interval = prop_oneof![
        Just(7),
        Just(333_333_334),
        1_u64..5_000_000,
        1_u64..20_000_000_000,
        Just(u64::try_from(YEAR.as_nanos()).unwrap() / 3 - 1),
    ];
    let exceed = prop_oneof![
        Just(Exceed::Reject),
        (0_u64..10_000_000).prop_map(|max| Exceed::Delay {
            max: Duration::from_nanos(max)
        }),
        (0_u64..50_000_000).prop_map(|max| Exceed::Delay {
            max: Duration::from_secs(max)
        }),
    ];
    (interval, 0_u32..4, exceed).prop_filter_map("a quota", |(interval, burst, exceed)| {
        let interval = Duration::from_nanos(interval);
        let quota = Quota::new(NonZeroU32::MIN, interval, burst).ok()?;
        Some(Limit {
            exceed,
            ..Limit::per_client("device", quota)
        })
    })
}

fn request(limits: usize) -> impl Strategy<Value = Request> {
    let some = || prop::sample::subsequence((0..limits).collect::<Vec<_>>(), 0..=limits);
    let wait = prop_oneof![Just(0), Just(0), 0_u64..3_000];
    (some(), some(), 1_u32..5, wait).prop_map(|(enforced, watched, cost, micros_before)| Request {
        watched: watched
            .into_iter()
            .filter(|it| !enforced.contains(it))
            .collect(),
        enforced,
        cost,
        micros_before,
    })
}

/// What every bucket holds, in nanoseconds since 1970, by arithmetic alone.
#[derive(Default)]
struct Model(HashMap<BucketKey, Moment>);

impl Model {
    fn charge(&mut self, charges: &[Charge<'_>], now: Moment) -> Decision {
        let mut full_at: SmallVec<[Moment; USUAL_LIMITS]> = charges
            .iter()
            .map(|charge| self.0.get(&charge.bucket).copied().unwrap_or_default())
            .collect();
        let verdict = decide(charges, &mut full_at, now);
        for (charge, full_at) in charges.iter().zip(full_at) {
            self.0.insert(charge.bucket, full_at);
        }
        verdict
    }

    fn judge(&mut self, wanted: &Wanted<'_>, now: Moment) -> ChargeResult {
        let verdict = self.charge(wanted.enforced, now);
        let watched = wanted.watched.iter().enumerate();
        let exceeded = watched
            .filter(|(_, charge)| !self.charge(std::slice::from_ref(charge), now).is_admitted());
        ChargeResult {
            decision: verdict,
            exceeded: exceeded.map(|(place, _)| place).collect(),
        }
    }
}

/// What each bucket of a request owes at least, if the gateway has charged none without Redis.
fn nothing_owed(wanted: &Wanted<'_>) -> Vec<Duration> {
    wanted.all().map(|_| Duration::ZERO).collect()
}

fn moment((seconds, micros): (u64, u64)) -> Moment {
    Moment::from_nanos(seconds * 1_000_000_000 + micros * 1_000)
}

#[test]
fn the_script_decides_as_the_arithmetic_does_at_every_step() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let buckets = buckets(&server);
    let trace = prop::collection::vec(limit(), 1..5).prop_flat_map(|limits| {
        let requests = prop::collection::vec(request(limits.len()), 1..25);
        (Just(limits), requests)
    });
    let mut runner = TestRunner::new(Config {
        cases: 200,
        failure_persistence: None,
        ..Config::default()
    });
    let outcome = runner.run(&trace, |(limits, requests)| {
        let mut model = Model::default();
        let client = fastrand::u64(..);
        for request in requests {
            sleep(Duration::from_micros(request.micros_before));
            let charges = |places: &[usize]| -> Vec<_> {
                let charge = |&place: &usize| Charge {
                    limit: &limits[place],
                    bucket: BucketKey {
                        high: client,
                        low: place as u64,
                    },
                    cost: NonZeroU32::new(request.cost).unwrap(),
                };
                places.iter().map(charge).collect()
            };
            let (enforced, watched) = (charges(&request.enforced), charges(&request.watched));
            if enforced.is_empty() && watched.is_empty() {
                continue;
            }
            let wanted = Wanted {
                enforced: &enforced,
                watched: &watched,
            };
            let groups = place::groups(&wanted, PREFIX, false);
            let answers = runtime.block_on(buckets.ask(&wanted, &groups, &nothing_owed(&wanted)));
            let told = answers[0].as_ref().expect("Redis answers");
            let now = moment(told.at);
            for (charge, &owed) in wanted.all().zip(&told.owed) {
                let full_at = model.0.get(&charge.bucket).copied().unwrap_or_default();
                prop_assert_eq!(owed, full_at.since(now));
            }
            // On whatever clock: what counts is how long it takes.
            let base = Moment::from_nanos(fastrand::u64(..1 << 60));
            let before = told.owed.iter().map(|&owed| Some(base.after(owed)));
            let (judgement, _) = buckets.judge(&wanted, &before.collect(), base);
            let expected = model.judge(&wanted, now);
            prop_assert_eq!(told.admitted, expected.decision.is_admitted());
            prop_assert_eq!(&judgement, &expected);

            // Every bucket that is not full is kept until it is, and not for long after.
            for (charge, name) in wanted.all().zip(&groups[0].names) {
                let full_at = model.0[&charge.bucket];
                let kept = server.command(&["PEXPIRETIME", name]).int();
                if kept >= 0 {
                    let full = i64::try_from(full_at.as_nanos().div_ceil(1_000_000)).unwrap();
                    prop_assert!((full..full + 3).contains(&kept), "{full} {kept}");
                } else {
                    prop_assert!(full_at <= now.after(Duration::from_millis(300)));
                }
            }
        }
        Ok(())
    });
    outcome.unwrap();
}

/// A bucket in Redis, to be charged and refunded one by one.
struct Refunded {
    server: RedisServer,
    buckets: RedisBuckets,
    runtime: tokio::runtime::Runtime,
    limit: Limit,
    bucket: BucketKey,
}

impl Refunded {
    fn new() -> Self {
        let server = RedisServer::start();
        let interval = Duration::from_nanos(3_600_000_000_007);
        let quota = Quota::new(NonZeroU32::MIN, interval, 9).unwrap();
        Self {
            buckets: buckets(&server),
            server,
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap(),
            limit: Limit::per_client("device", quota),
            bucket: BucketKey { high: 1, low: 2 },
        }
    }

    fn with<T>(&self, work: impl AsyncFnOnce(&Wanted<'_>, &Groups) -> T) -> T {
        let charge = Charge {
            limit: &self.limit,
            bucket: self.bucket,
            cost: NonZeroU32::new(2).unwrap(),
        };
        let wanted = Wanted {
            enforced: &[charge],
            watched: &[],
        };
        let groups = place::groups(&wanted, PREFIX, false);
        self.runtime.block_on(work(&wanted, &groups))
    }

    fn charge(&self) -> Answers {
        self.with(async |wanted, groups| {
            let owed = nothing_owed(wanted);
            self.buckets.ask(wanted, groups, &owed).await
        })
    }

    fn refund(&self, answers: &Answers) {
        self.with(async |wanted, groups| self.buckets.take_back(wanted, groups, answers).await);
    }

    /// Has a refund done by one who does not hear that it was, and asks again.
    fn refund_twice(&self, answers: &Answers) {
        self.with(async |wanted, groups| {
            let call = scripts::refund(wanted, &groups[0], answers[0].as_ref().unwrap(), PREFIX);
            for done in [1, 0] {
                let link = &self.buckets.link;
                assert_eq!(link.run::<u8>(&call).await.unwrap(), done);
            }
        });
    }

    /// When it will be full, in nanoseconds since 1970; zero if it is.
    fn full_at(&self) -> u128 {
        let name = place::name(PREFIX, self.bucket);
        match self.server.command(&["GET", &name]) {
            servers::Reply::Nil => 0,
            kept => kept.text().parse().unwrap(),
        }
    }
}

#[test]
fn a_bucket_that_nobody_else_charged_is_what_it_was_after_a_refund() {
    let it = Refunded::new();
    let first = it.charge();
    let before = it.full_at();
    let second = it.charge();
    assert_eq!(it.full_at(), before + 2 * 3_600_000_000_007);
    it.refund(&second);
    assert_eq!(it.full_at(), before);
    it.refund(&first);
    assert_eq!(it.full_at(), 0);
    // One that is gone stays so.
    it.refund(&first);
    assert_eq!(it.full_at(), 0);
}

#[test]
fn a_charge_is_taken_back_once_however_often_that_is_asked_for() {
    let it = Refunded::new();
    it.charge();
    let second = it.charge();
    let before = it.full_at();
    let third = it.charge();
    it.refund_twice(&third);
    assert_eq!(it.full_at(), before);
    it.refund_twice(&second);
    assert_eq!(it.full_at() + 2 * 3_600_000_000_007, before);
}

#[test]
fn what_is_taken_back_from_under_a_later_charge_shrinks_with_time() {
    let it = Refunded::new();
    let first = it.charge();
    sleep(Duration::from_millis(30));
    it.charge();
    let before = it.full_at();
    it.refund(&first);
    let back = before - it.full_at();
    let cost = 2 * 3_600_000_000_007;
    let shrunk = Duration::from_nanos(u64::try_from(cost - back).unwrap());
    assert!(shrunk >= Duration::from_millis(30), "{shrunk:?}");
    assert!(shrunk < Duration::from_secs(30), "{shrunk:?}");
}

#[test]
fn a_bucket_owes_what_the_gateway_reports_if_that_is_more_also_after_a_rejection() {
    let it = Refunded::new();
    let interval = Duration::from_nanos(3_600_000_000_007);
    let owing = |intervals: u32| {
        it.with(async |wanted, groups| {
            it.buckets
                .ask(wanted, groups, &[interval * intervals])
                .await
        })
    };
    let told = |answers: &Answers| {
        let told = answers[0].as_ref().unwrap();
        (told.admitted, told.owed[0])
    };
    assert_eq!(told(&owing(5)), (true, interval * 5));
    let (admitted, owed) = told(&owing(3));
    assert!(
        admitted && owed > interval * 6,
        "Redis knows of more: {owed:?}"
    );
    assert_eq!(told(&owing(10)), (false, interval * 10));
    let (admitted, owed) = told(&it.charge());
    assert!(!admitted && owed > interval * 9, "{owed:?}");
    assert_eq!(
        told(&owing(11)),
        (false, interval * 10),
        "no more than a bucket can owe"
    );
}
