//! Buckets on the bench. Time is real: that of Redis cannot be told to stand still.

use std::num::NonZeroU32;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::clock::Clock;
use crate::store::BucketStore;
use crate::store::memory::MemoryBuckets;
use crate::store::redis::Redis;
use crate::store::redis::settings::{Node, Nodes, RedisSettings};
use crate::throttle::{
    BucketKey, Buckets as _, Charge, ChargeOutcome, ChargeResult, Decision, Exceed, Limit, LimitId,
    Quota,
};
use parking_lot::Mutex;

use crate::store::tests::redis::{RedisCluster, RedisServer};

/// So long that no token comes back during a test.
pub(crate) const HOUR: Duration = Duration::from_hours(1);

pub(crate) const AT_ONCE: ChargeOutcome = ChargeOutcome::Admitted {
    delay: Duration::ZERO,
};

/// Which store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Memory,
    Redis,
    Cluster,
}

/// What keeps the buckets. One of each will do for all tests that run at the same time: every limit has
/// buckets of its own.
enum Keeper {
    Memory(BucketStore),
    Redis(Arc<RedisServer>),
    Cluster(Arc<RedisCluster>),
}

pub(crate) struct Bench(Keeper);

impl Bench {
    pub(crate) fn new(kind: Kind) -> Self {
        static REDIS: Mutex<Weak<RedisServer>> = Mutex::new(Weak::new());
        static CLUSTER: Mutex<Weak<RedisCluster>> = Mutex::new(Weak::new());
        Self(match kind {
            Kind::Memory => {
                let buckets = MemoryBuckets::new(1_000, Clock::real());
                Keeper::Memory(BucketStore::Memory(Arc::new(buckets)))
            }
            Kind::Redis => Keeper::Redis(shared(&REDIS, RedisServer::start)),
            Kind::Cluster => Keeper::Cluster(shared(&CLUSTER, RedisCluster::start)),
        })
    }

    /// The buckets, as one more gateway has them.
    pub(crate) fn gateway(&self) -> BucketStore {
        match &self.0 {
            Keeper::Memory(buckets) => buckets.clone(),
            Keeper::Redis(server) => gateway_of(server),
            Keeper::Cluster(cluster) => {
                let ports = cluster.nodes().iter().map(RedisServer::port);
                connected(Nodes::Cluster(ports.map(node).collect()))
            }
        }
    }
}

/// The one that somebody else has, or a new one.
fn shared<T>(known: &Mutex<Weak<T>>, start: impl FnOnce() -> T) -> Arc<T> {
    let mut known = known.lock();
    known.upgrade().unwrap_or_else(|| {
        let started = Arc::new(start());
        *known = Arc::downgrade(&started);
        started
    })
}

/// A gateway's buckets on a server of the test's own.
pub(crate) fn gateway_of(server: &RedisServer) -> BucketStore {
    connected(Nodes::Single(node(server.port())))
}

/// The same for a gateway that does not wait for long.
pub(crate) fn impatient_gateway_of(server: &RedisServer) -> BucketStore {
    impatient_gateway_at(server.port())
}

/// The same for a server that is reached in a way of its own.
pub(crate) fn impatient_gateway_at(port: u16) -> BucketStore {
    opened(impatient_settings(port))
}

/// Settings of a gateway with timeouts near the defaults.
pub(crate) fn impatient_settings(port: u16) -> RedisSettings {
    RedisSettings {
        limits_timeout: Duration::from_millis(100),
        records_timeout: Duration::from_millis(500),
        ..settings(Nodes::Single(node(port)))
    }
}

fn connected(nodes: Nodes) -> BucketStore {
    opened(settings(nodes))
}

fn opened(settings: RedisSettings) -> BucketStore {
    let redis = Redis::open(settings, false, Clock::real()).unwrap();
    BucketStore::Redis(redis.buckets(1_000))
}

fn node(port: u16) -> Node {
    Node {
        host: "127.0.0.1".into(),
        port,
        tls: false,
        database: 0,
        user: None,
        password: None,
    }
}

fn settings(nodes: Nodes) -> RedisSettings {
    RedisSettings {
        nodes,
        prefix: "gate".into(),
        user: None,
        password: None,
        ca_file: None,
        // Far longer than by default: the machine may be busy with other tests.
        limits_timeout: Duration::from_secs(5),
        records_timeout: Duration::from_secs(5),
        lease: Duration::from_mins(1),
        wait_replicas: None,
        max_keys_per_client: None,
    }
}

/// A limit, and the one bucket that a test draws from.
#[derive(Clone, Debug)]
pub(crate) struct Tap {
    pub(crate) limit: Limit,
    pub(crate) bucket: BucketKey,
}

impl Tap {
    /// `burst + 1` at once, then one per interval.
    pub(crate) fn new(interval: Duration, burst: u32) -> Self {
        let quota = Quota::new(NonZeroU32::MIN, interval, burst).unwrap();
        Self {
            limit: Limit {
                id: LimitId(fastrand::u16(..)),
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

    pub(crate) fn charge(&self, cost: u32) -> Charge<'_> {
        Charge {
            limit: &self.limit,
            bucket: self.bucket,
            cost: NonZeroU32::new(cost).unwrap(),
        }
    }

    /// The same limit and bucket with another quota, as while a change is rolled out.
    pub(crate) fn with_quota(&self, interval: Duration, burst: u32) -> Self {
        let mut changed = self.clone();
        changed.limit.quota = Quota::new(NonZeroU32::MIN, interval, burst).unwrap();
        changed
    }

    /// A request that has only this limit and costs several tokens.
    pub(crate) async fn draw_at_cost(&self, from: &BucketStore, cost: u32) -> ChargeOutcome {
        from.charge(&[self.charge(cost)], &[])
            .await
            .decision
            .outcome
    }

    /// A request that has only this limit.
    pub(crate) async fn draw(&self, from: &BucketStore) -> ChargeOutcome {
        draw(from, &[self]).await.outcome
    }
}

/// A request with these limits, all enforced.
pub(crate) async fn draw(from: &BucketStore, taps: &[&Tap]) -> Decision {
    judge(from, taps, &[]).await.decision
}

/// A request with limits that are enforced and others that are watched.
pub(crate) async fn judge(from: &BucketStore, enforced: &[&Tap], watched: &[&Tap]) -> ChargeResult {
    let (enforced, watched) = (charges(enforced), charges(watched));
    from.charge(&enforced, &watched).await
}

fn charges<'a>(taps: &[&'a Tap]) -> Vec<Charge<'a>> {
    taps.iter().map(|tap| tap.charge(1)).collect()
}

/// The name of the only bucket in a server that no other test uses.
pub(crate) fn only_bucket(server: &RedisServer) -> String {
    let mut names = server.command(&["KEYS", "gate:b:*"]).array();
    assert_eq!(names.len(), 1, "{names:?}");
    names.remove(0).text()
}

/// How long a refused request is to wait, and because of which limit.
#[track_caller]
pub(crate) fn refused(outcome: ChargeOutcome) -> (Duration, usize) {
    match outcome {
        ChargeOutcome::Rejected { wait, by } => (wait, by),
        other => panic!("not refused: {other:?}"),
    }
}
