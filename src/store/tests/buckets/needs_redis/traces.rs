//! Random traces of two gateways on one Redis. The tests compare the number of admissions with the maximum that the
//! README states.
//!
//! A trace sends requests with one or two rate limits and several costs. It also changes the quotas of one gateway at a
//! time, freezes Redis, and restarts Redis without its data. A bucket keeps its filled fraction when its quota changes, so
//! admissions are counted in parts of a full bucket, and refills at the faster of the two quotas. Three properties hold
//! for every bucket:
//!
//! 1. Each gateway admits at most one full bucket plus what is refilled in any interval, plus one full bucket for each
//!    restart of Redis.
//! 2. Both gateways together admit at most one full bucket plus what is refilled in any interval in which Redis responds
//!    to both.
//! 3. If no quota changes, a client that waits as long as its rejection requires is admitted, by either gateway.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::store::BucketStore;
use crate::store::redis::Redis;
use crate::store::redis::settings::RedisSettings;
use crate::throttle::{Buckets as _, ChargeOutcome, Quota};
use fastrand::Rng;
use tokio::time::sleep;

use crate::store::tests::buckets::fixture::{TestBucket, short_timeout_settings};
use crate::store::tests::redis::RedisServer;

/// Duration of a trace.
const TRACE: Duration = Duration::from_secs(7);

/// Number of traces that run at the same time, each with its own Redis.
const TRACES: u64 = 4;

/// The longest wait after a rejection for which a trace checks property 3.
const LONGEST_WAIT: Duration = Duration::from_millis(400);

/// How long a recovery can take on a busy machine.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(20);

const CLIENTS: usize = 2;
const LIMITS: usize = 2;

/// A gateway, and the index of the quota that it uses for each rate limit.
struct TraceGateway {
    redis: Redis,
    buckets: BucketStore,
    quotas: [usize; LIMITS],
}

impl TraceGateway {
    fn join(settings: &RedisSettings) -> Self {
        let redis = Redis::open(settings.clone(), false, Clock::real()).unwrap();
        Self {
            buckets: BucketStore::Redis(redis.buckets(1_000)),
            redis,
            quotas: [0; LIMITS],
        }
    }

    /// Returns the number of failed rate limit calls, and whether the circuit breaker is closed.
    fn health(&self) -> (u64, bool) {
        let [limits, _] = self.redis.health();
        (limits.failures, limits.degraded.is_none())
    }
}

/// A request of a trace. `gateway` and `client` are indexes. `limits` states for each rate limit whether it applies to
/// the request.
#[derive(Clone, Copy, Debug)]
struct TraceRequest {
    gateway: usize,
    client: usize,
    limits: [bool; LIMITS],
    cost: u32,
}

/// One charge of an admitted request.
#[derive(Clone, Copy, Debug)]
struct TraceAdmission {
    began: Instant,
    ended: Instant,
    gateway: usize,
    /// Part of a full bucket that the request took.
    part: f64,
    /// Serial number of the period without faults in which the charge was made. `None` if it was made during a fault.
    calm: Option<u64>,
    /// Number of restarts of Redis before the request and before its response.
    restarts: (u32, u32),
}

struct Trace {
    rng: Rng,
    server: RedisServer,
    gateways: [TraceGateway; 2],
    /// For each client and rate limit, one bucket for each of the two quotas.
    buckets: [[[TestBucket; 2]; LIMITS]; CLIENTS],
    /// By client and limit.
    admissions: HashMap<(usize, usize), Vec<TraceAdmission>>,
    /// Number of calls of each gateway that had failed when the current period without faults began; `None` during a
    /// fault.
    calm: Option<[u64; 2]>,
    /// Number of periods without faults that the trace has had so far.
    calms: u64,
    restarts: u32,
    waits: u32,
    faults: u32,
    changes_quotas: bool,
}

impl Trace {
    fn new(seed: u64, changes_quotas: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let server = RedisServer::start();
        let settings = short_timeout_settings(server.port());
        let quotas: [[(Duration, u32); 2]; LIMITS] = std::array::from_fn(|limit| {
            std::array::from_fn(|_| {
                let scale = if limit == 0 { 10..60 } else { 40..200 };
                (Duration::from_millis(rng.u64(scale)), rng.u32(0..6))
            })
        });
        let buckets = std::array::from_fn(|_| {
            std::array::from_fn(|limit| {
                let [first, second] = quotas[limit];
                let bucket = TestBucket::new(first.0, first.1);
                let changed = bucket.with_quota(second.0, second.1);
                [bucket, changed]
            })
        });
        Self {
            rng,
            gateways: [0, 1].map(|_| TraceGateway::join(&settings)),
            server,
            buckets,
            admissions: HashMap::new(),
            calm: None,
            calms: 0,
            restarts: 0,
            waits: 0,
            faults: 0,
            changes_quotas,
        }
    }

    /// Returns the serial number of the current period without faults. `None` during a fault, or if a call has failed
    /// since the period began.
    fn calm(&self) -> Option<u64> {
        let failures = [0, 1].map(|index| self.gateways[index].health().0);
        (self.calm == Some(failures)).then_some(self.calms)
    }

    /// Sends a request and records its charges if it is admitted.
    async fn send(&mut self, request: TraceRequest) -> ChargeOutcome {
        let gateway = &self.gateways[request.gateway];
        let used: Vec<_> = (0..LIMITS).filter(|&limit| request.limits[limit]).collect();
        let quota = |limit: usize| gateway.quotas[limit];
        let buckets: Vec<_> = used
            .iter()
            .map(|&limit| &self.buckets[request.client][limit][quota(limit)])
            .collect();
        let charges: Vec<_> = buckets
            .iter()
            .map(|bucket| bucket.charge(request.cost))
            .collect();
        let (before, restarts) = (self.calm(), self.restarts);
        let began = Instant::now();
        let outcome = gateway.buckets.charge(&charges, &[]).await.decision.outcome;
        let ended = Instant::now();
        let capacities: Vec<_> = buckets.iter().map(|it| capacity(it.limit.quota)).collect();
        let admission = TraceAdmission {
            began,
            ended,
            gateway: request.gateway,
            part: 0.0,
            calm: before.filter(|_| self.calm() == before),
            restarts: (restarts, self.restarts),
        };
        if let ChargeOutcome::Admitted { .. } = outcome {
            for (limit, capacity) in used.into_iter().zip(capacities) {
                let key = (request.client, limit);
                let admission = TraceAdmission {
                    part: f64::from(request.cost) / f64::from(capacity),
                    ..admission
                };
                self.admissions.entry(key).or_default().push(admission);
            }
        }
        outcome
    }

    fn any_request(&mut self) -> TraceRequest {
        let gateway = self.rng.usize(..2);
        let client = self.rng.usize(..CLIENTS);
        let limits = [[true, false], [false, true], [true, true]][self.rng.usize(..3)];
        let capacities = (0..LIMITS).filter(|&limit| limits[limit]).map(|limit| {
            let quota = self.gateways[gateway].quotas[limit];
            capacity(self.buckets[client][limit][quota].limit.quota)
        });
        let most = capacities.min().unwrap().min(3);
        TraceRequest {
            gateway,
            client,
            limits,
            cost: if self.rng.bool() {
                1
            } else {
                self.rng.u32(1..=most)
            },
        }
    }

    /// Checks property 3: waits as long as a rejection requires, and sends the request again to a random gateway.
    async fn wait_and_retry(&mut self, request: TraceRequest, wait: Duration) {
        let Some(calm) = self.calm() else { return };
        let retry = TraceRequest {
            gateway: self.rng.usize(..2),
            ..request
        };
        sleep(wait).await;
        let outcome = self.send(retry).await;
        // The result is ignored if a call timed out, because the gateway then decided without Redis.
        if self.calm() == Some(calm) {
            self.waits += 1;
            assert!(
                matches!(outcome, ChargeOutcome::Admitted { .. }),
                "{request:?} was rejected for {wait:?}, then {retry:?}: {outcome:?}"
            );
        }
    }

    /// Sends requests while Redis is frozen.
    async fn freeze(&mut self) {
        self.calm = None;
        self.server.freeze();
        let ends = Instant::now() + Duration::from_millis(self.rng.u64(150..500));
        while Instant::now() < ends {
            let request = self.any_request();
            self.send(request).await;
            sleep(Duration::from_millis(1)).await;
        }
        self.server.thaw();
    }

    fn restart_empty(&mut self) {
        self.calm = None;
        tokio::task::block_in_place(|| self.server.restart_empty());
        self.restarts += 1;
    }

    /// Waits until Redis responds to both gateways, and until both have reported the charges that they made without
    /// Redis.
    async fn recover(&mut self) {
        let deadline = Instant::now() + RECOVERY_TIMEOUT;
        loop {
            assert!(Instant::now() < deadline, "Redis does not recover");
            let [first, second] = [0, 1].map(|index| self.gateways[index].health());
            if first.1 && second.1 {
                for gateway in 0..2 {
                    for client in 0..CLIENTS {
                        let limits = [true; LIMITS];
                        let cost = 1;
                        let request = TraceRequest {
                            gateway,
                            client,
                            limits,
                            cost,
                        };
                        self.send(request).await;
                    }
                }
                let after = [0, 1].map(|index| self.gateways[index].health().0);
                if after == [first.0, second.0] {
                    self.calm = Some(after);
                    self.calms += 1;
                    return;
                }
            }
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn run(mut self) -> Self {
        let ends = Instant::now() + TRACE;
        while Instant::now() < ends {
            if self.calm().is_none() {
                self.recover().await;
            }
            match self.rng.u32(..1_000) {
                0..8 => {
                    self.faults += 1;
                    self.freeze().await;
                }
                8..12 => {
                    self.faults += 1;
                    self.restart_empty();
                }
                12..26 if self.changes_quotas => {
                    let (gateway, limit) = (self.rng.usize(..2), self.rng.usize(..LIMITS));
                    let quota = &mut self.gateways[gateway].quotas[limit];
                    *quota = 1 - *quota;
                }
                _ => {
                    let request = self.any_request();
                    let outcome = self.send(request).await;
                    if let ChargeOutcome::Rejected { wait, .. } = outcome
                        && wait < LONGEST_WAIT
                        && !self.changes_quotas
                        && self.rng.u32(..8) == 0
                    {
                        self.wait_and_retry(request, wait).await;
                    }
                    sleep(Duration::from_micros(self.rng.u64(..3_000))).await;
                }
            }
        }
        self
    }

    /// Checks properties 1 and 2 for every interval that begins and ends with an admission. Returns the total number of
    /// charges.
    fn check(&self) -> usize {
        for (&(client, limit), admissions) in &self.admissions {
            let quotas = self.buckets[client][limit]
                .each_ref()
                .map(|it| it.limit.quota);
            let refill = quotas[0].refill().min(quotas[1].refill());
            for (index, first) in admissions.iter().enumerate() {
                let (mut alone, mut together) = (0.0, 0.0);
                for last in &admissions[index..] {
                    let restarts = last.restarts.1 - first.restarts.0;
                    let time = last.ended - first.began;
                    let refilled = time.div_duration_f64(refill) + 1e-9;
                    if last.gateway == first.gateway {
                        alone += last.part;
                        let most = f64::from(1 + restarts) + refilled;
                        assert!(
                            alone <= most,
                            "{alone} of {most} by one gateway in {time:?}"
                        );
                    }
                    if first.calm.is_some() && last.calm == first.calm {
                        together += last.part;
                        let most = 1.0 + refilled;
                        assert!(together <= most, "{together} of {most} by both in {time:?}");
                    }
                }
            }
        }
        self.admissions.values().map(Vec::len).sum()
    }
}

fn capacity(quota: Quota) -> u32 {
    quota.capacity().get()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traces_with_quota_changes_freezes_and_restarts_stay_within_the_bound() {
    let first = fastrand::u64(..);
    eprintln!("seeds from {first}");
    let traces: Vec<_> = (0..TRACES)
        .map(|index| tokio::spawn(Trace::new(first.wrapping_add(index), index % 2 == 0).run()))
        .collect();
    for trace in traces {
        let trace = trace.await.unwrap();
        let admitted = trace.check();
        let Trace {
            waits,
            faults,
            restarts,
            ..
        } = trace;
        eprintln!("{admitted} charges, {waits} waits, {faults} faults, {restarts} restarts");
    }
}
