//! Stores of rate limit buckets for tests. The tests use real time, because the clock of Redis cannot be stopped.

use std::num::NonZeroU32;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::clock::Clock;
use crate::store::BucketStore;
use crate::store::memory::MemoryBuckets;
use crate::store::redis::Redis;
use crate::store::redis::settings::{Nodes, RedisSettings};
use crate::store::redis::url::redis_url;
use crate::throttle::{
    BucketKey, Buckets as _, Charge, ChargeOutcome, ChargeResult, Decision, Exceed, Limit, Quota,
};
use parking_lot::Mutex;

use crate::store::tests::redis::{RedisCluster, RedisServer};

/// A refill interval that is so long that no bucket regains a token during a test.
pub(crate) const HOUR: Duration = Duration::from_hours(1);

pub(crate) const ADMITTED: ChargeOutcome = ChargeOutcome::Admitted {
    delay: Duration::ZERO,
};

/// The store to test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BucketStoreKind {
    Memory,
    Redis,
    Cluster,
}

/// The store of the buckets. Concurrent tests can share one server, because each [`TestBucket`] has a random key.
enum BucketBackend {
    Memory(BucketStore),
    Redis(Arc<RedisServer>),
    Cluster(Arc<RedisCluster>),
}

/// A store of rate limit buckets that several gateways can use.
pub(crate) struct BucketFixture(BucketBackend);

impl BucketFixture {
    pub(crate) fn new(kind: BucketStoreKind) -> Self {
        static REDIS: Mutex<Weak<RedisServer>> = Mutex::new(Weak::new());
        static CLUSTER: Mutex<Weak<RedisCluster>> = Mutex::new(Weak::new());
        Self(match kind {
            BucketStoreKind::Memory => {
                let buckets = MemoryBuckets::new(1_000, Clock::real());
                BucketBackend::Memory(BucketStore::Memory(Arc::new(buckets)))
            }
            BucketStoreKind::Redis => BucketBackend::Redis(shared(&REDIS, RedisServer::start)),
            BucketStoreKind::Cluster => {
                BucketBackend::Cluster(shared(&CLUSTER, RedisCluster::start))
            }
        })
    }

    /// Creates the bucket store of another gateway, which shares the buckets with all gateways of this fixture.
    pub(crate) fn gateway(&self) -> BucketStore {
        match &self.0 {
            BucketBackend::Memory(buckets) => buckets.clone(),
            BucketBackend::Redis(server) => gateway_of(server),
            BucketBackend::Cluster(cluster) => {
                let nodes = cluster.nodes().iter();
                let nodes = nodes.map(|node| redis_url(&node.url()).unwrap());
                gateway_with_settings(RedisSettings {
                    nodes: Nodes::Cluster(nodes.collect()),
                    ..settings(6379)
                })
            }
        }
    }
}

/// Returns the server or cluster that other running tests use. If no running test uses one, starts one.
fn shared<T>(known: &Mutex<Weak<T>>, start: impl FnOnce() -> T) -> Arc<T> {
    let mut known = known.lock();
    known.upgrade().unwrap_or_else(|| {
        let started = Arc::new(start());
        *known = Arc::downgrade(&started);
        started
    })
}

/// Creates the bucket store of a gateway on `server`.
pub(crate) fn gateway_of(server: &RedisServer) -> BucketStore {
    gateway_with_settings(settings(server.port()))
}

/// Creates the bucket store of a gateway on `server`, with short timeouts.
pub(crate) fn short_timeout_gateway_of(server: &RedisServer) -> BucketStore {
    short_timeout_gateway_at(server.port())
}

/// Creates the bucket store of a gateway that connects to `port`, with short timeouts.
pub(crate) fn short_timeout_gateway_at(port: u16) -> BucketStore {
    gateway_with_settings(short_timeout_settings(port))
}

/// Creates settings with timeouts near the defaults.
pub(crate) fn short_timeout_settings(port: u16) -> RedisSettings {
    RedisSettings {
        limits_timeout: Duration::from_millis(100),
        records_timeout: Duration::from_millis(500),
        ..settings(port)
    }
}

/// Creates the bucket store of a gateway on `server` whose own clock is `clock`.
pub(crate) fn gateway_with_clock(server: &RedisServer, clock: Clock) -> BucketStore {
    let redis = Redis::open(settings(server.port()), false, clock).unwrap();
    BucketStore::Redis(redis.buckets(1_000))
}

fn gateway_with_settings(settings: RedisSettings) -> BucketStore {
    let redis = Redis::open(settings, false, Clock::real()).unwrap();
    BucketStore::Redis(redis.buckets(1_000))
}

fn settings(port: u16) -> RedisSettings {
    RedisSettings {
        prefix: "gate".into(),
        ..RedisSettings::for_test(port)
    }
}

/// A rate limit with one bucket.
#[derive(Clone, Debug)]
pub(crate) struct TestBucket {
    pub(crate) limit: Limit,
    pub(crate) bucket: BucketKey,
}

impl TestBucket {
    /// Creates a full bucket of `burst + 1` tokens that regains one token per `interval`.
    pub(crate) fn new(interval: Duration, burst: u32) -> Self {
        let quota = Quota::new(NonZeroU32::MIN, interval, burst).unwrap();
        Self {
            limit: Limit {
                ..Limit::per_client("device", quota)
            },
            bucket: BucketKey {
                high: fastrand::u64(..),
                low: fastrand::u64(..),
            },
        }
    }

    pub(crate) fn delaying(mut self, max: Duration) -> Self {
        self.limit.exceed = Exceed::Delay { max };
        self
    }

    pub(crate) fn rejecting(mut self) -> Self {
        self.limit.exceed = Exceed::Reject;
        self
    }

    pub(crate) fn charge(&self, cost: u32) -> Charge<'_> {
        Charge {
            limit: &self.limit,
            bucket: self.bucket,
            cost: NonZeroU32::new(cost).unwrap(),
        }
    }

    /// Returns the same rate limit and bucket with another quota. Gateways have different quotas while a change is
    /// rolled out.
    pub(crate) fn with_quota(&self, interval: Duration, burst: u32) -> Self {
        let mut changed = self.clone();
        changed.limit.quota = Quota::new(NonZeroU32::MIN, interval, burst).unwrap();
        changed
    }

    /// Sends a request that has only this rate limit and costs one token.
    pub(crate) async fn request(&self, gateway: &BucketStore) -> ChargeOutcome {
        request(gateway, &[self]).await.outcome
    }
}

/// Sends a request with the rate limits of `buckets`, all enforced.
pub(crate) async fn request(gateway: &BucketStore, buckets: &[&TestBucket]) -> Decision {
    charge_all(gateway, buckets, &[]).await.decision
}

/// Sends a request with enforced limits and shadow limits.
pub(crate) async fn charge_all(
    gateway: &BucketStore,
    enforced: &[&TestBucket],
    shadow: &[&TestBucket],
) -> ChargeResult {
    let (enforced, shadow) = (charges(enforced), charges(shadow));
    gateway.charge(&enforced, &shadow).await
}

fn charges<'a>(buckets: &[&'a TestBucket]) -> Vec<Charge<'a>> {
    buckets.iter().map(|bucket| bucket.charge(1)).collect()
}

/// Returns the Redis key of the only bucket on `server`. Panics if the server has several buckets.
pub(crate) fn only_bucket(server: &RedisServer) -> String {
    let mut names = server.command(&["KEYS", "gate:b:*"]).array();
    assert_eq!(names.len(), 1, "{names:?}");
    names.remove(0).text()
}

/// Returns the wait of a rejected request, and the index of the rate limit that causes it. Panics if the request was
/// admitted.
#[track_caller]
pub(crate) fn rejection(outcome: ChargeOutcome) -> (Duration, usize) {
    match outcome {
        ChargeOutcome::Rejected { wait, by } => (wait, by),
        other => panic!("the request is not rejected: {other:?}"),
    }
}
