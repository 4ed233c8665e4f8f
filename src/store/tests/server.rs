//! Redis servers for the tests of stores.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::store::redis::settings::{Nodes, RedisNode, RedisSettings};
use crate::store::redis::url::redis_url;

use super::record_fixture::StoreKind;
use super::redis::{RedisCluster, RedisServer};

/// Duration of a lease. No test advances the clock by more than this duration. The tests of leases set their own
/// duration.
const LEASE: Duration = Duration::from_hours(1_000);

/// A Redis server, or a cluster of three. Tests can advance its clock. The second value is the number of stores that
/// were created on this server or cluster.
pub(crate) enum StoreServer {
    Redis(RedisServer, AtomicU32),
    Cluster(RedisCluster, AtomicU32),
}

impl StoreServer {
    pub(crate) fn start(kind: StoreKind) -> Self {
        let stores = AtomicU32::new(0);
        match kind {
            StoreKind::Redis => Self::Redis(RedisServer::options().fake_time().start(), stores),
            StoreKind::Cluster => Self::Cluster(RedisCluster::in_fake_time(), stores),
            StoreKind::Memory | StoreKind::Disk => panic!("this store has no server"),
        }
    }

    pub(crate) fn kind(&self) -> StoreKind {
        match self {
            Self::Redis(..) => StoreKind::Redis,
            Self::Cluster(..) => StoreKind::Cluster,
        }
    }

    /// Creates settings for a store with a new prefix of Redis keys.
    pub(crate) fn settings(&self) -> RedisSettings {
        let (nodes, stores) = match self {
            Self::Redis(server, stores) => (Nodes::Single(node(server)), stores),
            Self::Cluster(cluster, stores) => {
                let nodes = cluster.nodes().iter().map(node).collect();
                (Nodes::Cluster(nodes), stores)
            }
        };
        RedisSettings {
            nodes,
            prefix: format!("test{}", stores.fetch_add(1, Ordering::Relaxed)).into(),
            lease: LEASE,
            ..RedisSettings::for_test(6379)
        }
    }

    pub(crate) fn advance(&self, time: Duration) {
        match self {
            Self::Redis(server, _) => server.advance(time),
            Self::Cluster(cluster, _) => cluster.advance(time),
        }
    }
}

fn node(server: &RedisServer) -> RedisNode {
    redis_url(&server.url()).unwrap()
}
