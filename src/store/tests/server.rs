//! Servers that stores are kept in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::store::redis::settings::{Node, Nodes, RedisSettings};

use super::bench::Kind;
use super::redis::{RedisCluster, RedisServer};

/// Longer than any test lets pass: that claims lapse is a story of its own.
const LEASE: Duration = Duration::from_hours(1_000);

/// A server, or three of them, whose time moves when told.
pub(crate) enum Server {
    Redis(RedisServer, AtomicU32),
    Cluster(RedisCluster, AtomicU32),
}

impl Server {
    pub(crate) fn start(kind: Kind) -> Self {
        let stores = AtomicU32::new(0);
        match kind {
            Kind::Redis => Self::Redis(RedisServer::options().fake_time().start(), stores),
            Kind::Cluster => Self::Cluster(RedisCluster::in_fake_time(), stores),
            Kind::Memory | Kind::Disk => panic!("that needs no server"),
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Redis(..) => Kind::Redis,
            Self::Cluster(..) => Kind::Cluster,
        }
    }

    /// For a store with names of its own.
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
            user: None,
            password: None,
            ca_file: None,
            // Tests share a machine with others; how long is too long is not what they are about.
            limits_timeout: Duration::from_secs(5),
            records_timeout: Duration::from_secs(5),
            lease: LEASE,
            wait_replicas: None,
            max_keys_per_client: None,
        }
    }

    pub(crate) fn advance(&self, time: Duration) {
        match self {
            Self::Redis(server, _) => server.advance(time),
            Self::Cluster(cluster, _) => cluster.advance(time),
        }
    }
}

/// Returns how a gateway reaches `server`.
pub(crate) fn node(server: &RedisServer) -> Node {
    Node {
        host: Arc::from("127.0.0.1"),
        port: server.port(),
        tls: false,
        database: 0,
        user: None,
        password: None,
    }
}
