//! Tests of the scripts `charge.lua` and `refund.lua` on a real Redis server. After each request, the reply of the
//! charge script is compared with the decision of `decide`.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::thread::sleep;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::clock::Clock;
use crate::store::redis::settings::{PREFIX, RedisSettings};
use crate::store::tests::redis::{RedisServer, Reply};
use crate::throttle::decision::{USUAL_LIMITS, full_at_under};
use crate::throttle::{BucketKey, BucketState, Decision, Exceed, Limit, Quota, decide};

/// A time long after each quota took effect.
const LATE: Moment = Moment::from_nanos(1 << 62);

const YEAR: Duration = Duration::from_hours(365 * 24);

fn buckets(server: &RedisServer) -> RedisBuckets {
    let redis = Redis::open(RedisSettings::for_test(server.port()), false, Clock::real()).unwrap();
    redis.buckets(1_000)
}

/// A random request. It has the indexes of its enforced limits and of its shadow limits, its cost, the wait before it,
/// and the quota that each limit has at this time.
#[derive(Clone, Debug)]
struct ModelRequest {
    enforced: Vec<usize>,
    shadow: Vec<usize>,
    cost: u32,
    micros_before: u64,
    has_second_quota: [bool; 5],
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

fn request(limits: usize) -> impl Strategy<Value = ModelRequest> {
    let some = || prop::sample::subsequence((0..limits).collect::<Vec<_>>(), 0..=limits);
    let wait = prop_oneof![Just(0), Just(0), 0_u64..3_000];
    let quotas = prop::array::uniform5(prop::bool::weighted(0.2));
    (some(), some(), 1_u32..5, wait, quotas).prop_map(
        |(enforced, shadow, cost, micros_before, has_second_quota)| ModelRequest {
            shadow: shadow
                .into_iter()
                .filter(|it| !enforced.contains(it))
                .collect(),
            enforced,
            cost,
            micros_before,
            has_second_quota,
        },
    )
}

/// The expected state of each bucket and the time of its last charge, by the clock of Redis. `decide` computes the state.
#[derive(Default)]
struct BucketModel(HashMap<BucketKey, (BucketState, Moment)>);

impl BucketModel {
    fn full_at(&self, charge: &Charge<'_>, now: Moment) -> Moment {
        let (state, charged_at) = self.0.get(&charge.bucket).copied().unwrap_or_default();
        charge.limit.quota_since.set(charged_at);
        full_at_under(charge.limit, state, now)
    }

    /// Sets the debt of a bucket to the one that the script reports, which the script rounds up when it scales the debt.
    fn follow(&mut self, charge: &Charge<'_>, owed: Duration, now: Moment) {
        let exact = self.full_at(charge, now).since(now);
        let (state, _) = self.0.get(&charge.bucket).copied().unwrap_or_default();
        let most = if Duration::from_nanos(state.refill) == charge.limit.quota.refill() {
            exact
        } else {
            exact + exact.mul_f64(1e-14) + Duration::from_nanos(2)
        };
        assert!((exact..=most).contains(&owed), "{exact:?} {owed:?}");
        self.set(charge, now.after(owed), now);
    }

    fn set(&mut self, charge: &Charge<'_>, full_at: Moment, now: Moment) {
        let (state, charged_at) = self.0.entry(charge.bucket).or_default();
        if full_at > now && state.full_at != full_at {
            (*state, *charged_at) = (charge.limit.quota.state(full_at), now);
        }
    }

    fn charge(&mut self, charges: &[Charge<'_>], now: Moment) -> Decision {
        let mut full_at: SmallVec<[Moment; USUAL_LIMITS]> = charges
            .iter()
            .map(|charge| self.full_at(charge, now))
            .collect();
        let decision = decide(charges, &mut full_at, now);
        for (charge, full_at) in charges.iter().zip(full_at) {
            self.set(charge, full_at, now);
        }
        decision
    }

    fn decide_all(&mut self, charges: &RequestCharges<'_>, now: Moment) -> ChargeResult {
        let decision = self.charge(charges.enforced(), now);
        let shadow = charges.shadow().iter().enumerate();
        let exceeded = shadow
            .filter(|(_, charge)| !self.charge(std::slice::from_ref(charge), now).is_admitted());
        ChargeResult {
            decision,
            exceeded: exceeded.map(|(index, _)| index).collect(),
        }
    }
}

/// Returns a local debt of zero for each charge: the gateway has made no charges that it must report to Redis.
fn nothing_owed(charges: &RequestCharges<'_>) -> Vec<Duration> {
    charges.all.iter().map(|_| Duration::ZERO).collect()
}

fn moment((seconds, micros): (u64, u64)) -> Moment {
    Moment::from_nanos(seconds * 1_000_000_000 + micros * 1_000)
}

#[test]
fn the_charge_script_and_decide_agree_on_every_request() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let buckets = buckets(&server);
    let quotas = (limit(), limit()).prop_map(<[Limit; 2]>::from);
    let trace = prop::collection::vec(quotas, 1..5).prop_flat_map(|limits| {
        let requests = prop::collection::vec(request(limits.len()), 1..25);
        (Just(limits), requests)
    });
    let mut runner = TestRunner::new(Config {
        cases: 200,
        // A seed does not reproduce a failure, because the decisions depend on the clock of Redis.
        failure_persistence: None,
        ..Config::default()
    });
    let outcome = runner.run(&trace, |(limits, requests)| {
        let mut model = BucketModel::default();
        let client = fastrand::u64(..);
        for request in requests {
            sleep(Duration::from_micros(request.micros_before));
            let charge = |&index: &usize| Charge {
                limit: &limits[index][usize::from(request.has_second_quota[index])],
                bucket: BucketKey {
                    high: client,
                    low: index as u64,
                },
                cost: NonZeroU32::new(request.cost).unwrap(),
            };
            let indexes = request.enforced.iter().chain(&request.shadow);
            let all: Vec<_> = indexes.map(charge).collect();
            if all.is_empty() {
                continue;
            }
            let charges = RequestCharges {
                all: &all,
                enforced: request.enforced.len(),
            };
            let groups = calls::groups(&charges, PREFIX, false);
            let replies =
                runtime.block_on(buckets.call(&charges, &groups, &nothing_owed(&charges), LATE));
            let reply = replies[0].as_ref().expect("Redis responds");
            let now = moment(reply.at);
            for (charge, &owed) in all.iter().zip(&reply.owed) {
                model.follow(charge, owed, now);
            }
            // The clock starts at a random time, because the decision must depend only on durations.
            let base = Moment::from_nanos(fastrand::u64(..1 << 60));
            let before = reply.owed.iter().map(|&owed| base.after(owed));
            let mut before: States = before.collect();
            let result = fallback::decide_by(&mut before, &charges, base);
            let expected = model.decide_all(&charges, now);
            prop_assert_eq!(reply.admitted, expected.decision.is_admitted());
            prop_assert_eq!(&result, &expected);

            // A bucket in Redis must expire when it is full, or less than 3 ms later.
            for (charge, name) in all.iter().zip(&groups[0].names) {
                let full_at = model.0[&charge.bucket].0.full_at;
                let expiry = server.command(&["PEXPIRETIME", name]).int();
                if expiry >= 0 {
                    let full = i64::try_from(full_at.as_nanos().div_ceil(1_000_000)).unwrap();
                    prop_assert!((full..full + 3).contains(&expiry), "{full} {expiry}");
                } else {
                    prop_assert!(full_at <= now.after(Duration::from_millis(300)));
                }
            }
        }
        Ok(())
    });
    outcome.unwrap();
}

/// A Redis server with one bucket that tests charge and refund.
struct RefundFixture {
    server: RedisServer,
    buckets: RedisBuckets,
    runtime: tokio::runtime::Runtime,
    limit: Limit,
    bucket: BucketKey,
}

impl RefundFixture {
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

    fn with<T>(&self, work: impl AsyncFnOnce(&RequestCharges<'_>, &Groups) -> T) -> T {
        let charge = Charge {
            limit: &self.limit,
            bucket: self.bucket,
            cost: NonZeroU32::new(2).unwrap(),
        };
        let charges = RequestCharges {
            all: &[charge],
            enforced: 1,
        };
        let groups = calls::groups(&charges, PREFIX, false);
        self.runtime.block_on(work(&charges, &groups))
    }

    fn charge(&self) -> Replies {
        self.with(async |charges, groups| {
            let owed = nothing_owed(charges);
            self.buckets.call(charges, groups, &owed, LATE).await
        })
    }

    fn refund(&self, replies: &Replies) {
        self.with(async |charges, groups| self.buckets.refund(charges, groups, replies).await);
    }

    /// Sends the same refund twice, as a gateway does after a lost reply.
    fn refund_twice(&self, replies: &Replies) {
        self.with(async |charges, groups| {
            let call = groups[0].refund(charges, replies[0].as_ref().unwrap(), PREFIX);
            for done in [1, 0] {
                let client = &self.buckets.client;
                assert_eq!(client.run::<u8>(&call).await.unwrap(), done);
            }
        });
    }

    /// Returns when the bucket becomes full, in nanoseconds since 1970, or 0 if it is full now.
    fn full_at(&self) -> u128 {
        let name = calls::name(PREFIX, self.bucket);
        match self.server.command(&["GET", &name]) {
            Reply::Nil => 0,
            stored => {
                let stored = stored.text();
                let mut parts = stored.split(':');
                let full_at = parts.next().unwrap().parse().unwrap();
                assert_eq!(parts.next(), Some("36000000000070"));
                full_at
            }
        }
    }
}

#[test]
fn a_refund_restores_a_bucket_without_later_charges() {
    let fixture = RefundFixture::new();
    let first = fixture.charge();
    let before = fixture.full_at();
    let second = fixture.charge();
    assert_eq!(fixture.full_at(), before + 2 * 3_600_000_000_007);
    fixture.refund(&second);
    assert_eq!(fixture.full_at(), before);
    fixture.refund(&first);
    assert_eq!(fixture.full_at(), 0);
    // A refund to a full bucket must have no effect.
    fixture.refund(&first);
    assert_eq!(fixture.full_at(), 0);
}

#[test]
fn a_repeated_refund_has_no_effect() {
    let fixture = RefundFixture::new();
    fixture.charge();
    let second = fixture.charge();
    let before = fixture.full_at();
    let third = fixture.charge();
    fixture.refund_twice(&third);
    assert_eq!(fixture.full_at(), before);
    fixture.refund_twice(&second);
    assert_eq!(fixture.full_at() + 2 * 3_600_000_000_007, before);
}

#[test]
fn a_refund_after_a_later_charge_shrinks_with_time() {
    let fixture = RefundFixture::new();
    let first = fixture.charge();
    sleep(Duration::from_millis(30));
    fixture.charge();
    let before = fixture.full_at();
    fixture.refund(&first);
    let back = before - fixture.full_at();
    let cost = 2 * 3_600_000_000_007;
    let shrunk = Duration::from_nanos(u64::try_from(cost - back).unwrap());
    assert!(shrunk >= Duration::from_millis(30), "{shrunk:?}");
    assert!(shrunk < Duration::from_secs(30), "{shrunk:?}");
}

#[test]
fn a_bucket_owes_the_reported_debt_if_it_is_larger_even_if_the_request_is_rejected() {
    let fixture = RefundFixture::new();
    let interval = Duration::from_nanos(3_600_000_000_007);
    let owing = |intervals: u32| {
        fixture.with(async |charges, groups| {
            let owed = [interval * intervals];
            fixture.buckets.call(charges, groups, &owed, LATE).await
        })
    };
    let state = |replies: &Replies| {
        let reply = replies[0].as_ref().unwrap();
        (reply.admitted, reply.owed[0])
    };
    assert_eq!(state(&owing(5)), (true, interval * 5));
    let (admitted, owed) = state(&owing(3));
    assert!(
        admitted && owed > interval * 6,
        "the debt in Redis is larger: {owed:?}"
    );
    assert_eq!(state(&owing(10)), (false, interval * 10));
    let (admitted, owed) = state(&fixture.charge());
    assert!(!admitted && owed > interval * 9, "{owed:?}");
    assert_eq!(
        state(&owing(11)),
        (false, interval * 10),
        "the debt is bounded by the size of the bucket"
    );
}
