//! Three servers that share the keys.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::server::field_of;
use super::{FakeTime, Options, RedisServer, Reply, until};

/// Which keys each has.
const SLOTS: [RangeInclusive<i64>; 3] = [0..=5460, 5461..=10922, 10923..=16383];

/// Three masters without replicas, that run until dropped.
pub(crate) struct RedisCluster {
    nodes: Vec<RedisServer>,
    time: Option<Arc<FakeTime>>,
}

impl RedisCluster {
    /// Starts one, and returns when every node can be asked for every key.
    ///
    /// That takes two seconds and a bit, because a master waits for two seconds after its start before it
    /// believes that its cluster is well, whatever it is told. One [in fake time](Self::in_fake_time)
    /// is made to believe that they have passed.
    pub(crate) fn start() -> Self {
        Self::with(Options::default())
    }

    /// Starts one whose clock, the same for all nodes, is moved by [`advance`](Self::advance).
    pub(crate) fn in_fake_time() -> Self {
        Self::with(Options::default().fake_time())
    }

    /// Starts one with such nodes.
    pub(crate) fn with(options: Options) -> Self {
        let time = options.time.clone();
        let mut options = options
            .arg("--cluster-enabled", "yes")
            .arg("--cluster-announce-ip", "127.0.0.1");
        if options.given("--cluster-node-timeout").is_none() {
            // Long enough for a machine that is busy with other things.
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
        let done = Reply::Status("OK".into());
        for ((node, slots), epoch) in self.nodes.iter().zip(SLOTS).zip(1..) {
            let (first, last) = (slots.start().to_string(), slots.end().to_string());
            let reply = node.command(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            assert_eq!(reply, done);
            let epoch = format!("{epoch}");
            let reply = node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
            assert_eq!(reply, done);
        }
        // Each with each, sooner than they would hear of one another.
        for (index, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[..index] {
                let port = other.port().to_string();
                let reply = node.command(&["CLUSTER", "MEET", "127.0.0.1", &port]);
                assert_eq!(reply, done);
            }
        }
    }

    /// Waits until all nodes say that all is well.
    pub(crate) fn settle(&self) {
        until("the cluster is well", || self.nodes.iter().all(is_well));
    }

    pub(crate) fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    /// The node that has this key.
    pub(crate) fn node_of(&self, key: &str) -> &RedisServer {
        let slot = self.nodes[0].command(&["CLUSTER", "KEYSLOT", key]).int();
        let at = SLOTS.iter().position(|slots| slots.contains(&slot));
        &self.nodes[at.expect("every slot is somewhere")]
    }

    /// How often a command was called, on all nodes together.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        self.nodes.iter().map(|node| node.calls(command)).sum()
    }

    /// Moves the clock of all nodes ahead, and waits until they are over it: a node that had just asked another
    /// whether it is alive believes that it has waited for the answer all that time.
    pub(crate) fn advance(&self, by: Duration) {
        let time = self.time.as_ref().expect("a clock that is moved");
        time.advance(by);
        self.settle();
    }
}

fn is_well(node: &RedisServer) -> bool {
    let info = node.command(&["CLUSTER", "INFO"]).text();
    field_of(&info, "cluster_state") == Some("ok")
        && field_of(&info, "cluster_known_nodes") == Some("3")
        && node.command(&["CLUSTER", "SLOTS"]).array().len() == SLOTS.len()
}
