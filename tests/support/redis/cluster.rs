//! Redis Cluster of three `redis-server` processes.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::server::field_of;
use super::{FakeTime, Options, RedisServer, Reply, wait_until};

/// Hash slots of each of the three nodes.
const SLOTS: [RangeInclusive<i64>; 3] = [0..=5460, 5461..=10922, 10923..=16383];

/// Redis Cluster of three masters without replicas. The servers stop when the cluster is dropped.
pub(crate) struct RedisCluster {
    nodes: Vec<RedisServer>,
    time: Option<Arc<FakeTime>>,
}

impl RedisCluster {
    /// Starts a cluster and returns when every node reports the cluster state `ok`.
    ///
    /// The start takes a little over two seconds, because a new master reports the state `ok` only after two seconds. A
    /// cluster [in fake time](Self::in_fake_time) skips this wait.
    pub(crate) fn start() -> Self {
        Self::with(Options::default())
    }

    /// Starts a cluster whose nodes share a fake wall clock, which [`advance`](Self::advance) moves.
    pub(crate) fn in_fake_time() -> Self {
        Self::with(Options::default().fake_time())
    }

    /// Starts a cluster and gives every node these options.
    pub(crate) fn with(options: Options) -> Self {
        let time = options.time.clone();
        let mut options = options
            .arg("--cluster-enabled", "yes")
            .arg("--cluster-announce-ip", "127.0.0.1");
        if options.value_of("--cluster-node-timeout").is_none() {
            // A node timeout of 5 s is long enough for a busy machine.
            options = options.arg("--cluster-node-timeout", "5000");
        }
        let nodes = SLOTS.map(|_| options.clone().start()).into();
        let cluster = Self { nodes, time };
        cluster.join();
        if let Some(time) = &cluster.time {
            time.advance(Duration::from_secs(2));
        }
        cluster.settle();
        cluster
    }

    fn join(&self) {
        let ok = Reply::Status("OK".into());
        for ((node, slots), epoch) in self.nodes.iter().zip(SLOTS).zip(1..) {
            let (first, last) = (slots.start().to_string(), slots.end().to_string());
            let reply = node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            assert_eq!(reply, ok);
            let epoch = format!("{epoch}");
            let reply = node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
            assert_eq!(reply, ok);
        }
        // `CLUSTER MEET` connects each pair of nodes. If each node met only one other node, the nodes would find the
        // rest by gossip, which is slower.
        for (index, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[..index] {
                let port = other.port().to_string();
                let reply = node.command(&["CLUSTER", "MEET", "127.0.0.1", &port]);
                assert_eq!(reply, ok);
            }
        }
    }

    /// Waits until all nodes report the cluster state `ok`.
    pub(crate) fn settle(&self) {
        wait_until("all nodes report the cluster state ok", || {
            self.nodes.iter().all(is_ok_on)
        });
    }

    pub(crate) fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    /// Returns how often a Redis command was called on all nodes together.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        self.nodes.iter().map(|node| node.calls(command)).sum()
    }

    /// Moves the fake clock of all nodes ahead and waits until the cluster state is `ok` again. The wait is needed: a
    /// node that expects a PONG can mistake the skipped time for a timeout and report a failure.
    pub(crate) fn advance(&self, by: Duration) {
        let time = self.time.as_ref().expect("the cluster has a fake clock");
        time.advance(by);
        self.settle();
    }
}

fn is_ok_on(node: &RedisServer) -> bool {
    let info = node.command(&["CLUSTER", "INFO"]).text();
    field_of(&info, "cluster_state") == Some("ok")
        && field_of(&info, "cluster_known_nodes") == Some("3")
        && node.command(&["CLUSTER", "SLOTS"]).array().len() == SLOTS.len()
}
