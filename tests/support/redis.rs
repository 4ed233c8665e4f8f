//! Real `redis-server` processes for tests and benches, and servers that only pretend to be Redis.
//!
//! Included by path, so that every test binary has it without a crate of its own:
//!
//! ```text
//! #[path = "../support/redis.rs"]
//! #[allow(dead_code, unused_imports, reason = "what is shared is not all used here")]
//! mod redis;
//! ```
//!
//! A server has a free port of the loopback interface and a directory of its own, and is gone when it is
//! dropped or when the process that started it has ended in whatever way. The one that a distribution
//! may have running on port 6379 is never touched. What a test asks a server it asks through a
//! socket in that directory and not through the crate under test, whose idea of Redis may be wrong.

#[path = "redis/cluster.rs"]
mod cluster;
#[path = "redis/impostors.rs"]
mod impostors;
#[path = "redis/launch.rs"]
mod launch;
#[path = "redis/options.rs"]
mod options;
#[path = "redis/reply.rs"]
mod reply;
#[path = "redis/server.rs"]
mod server;
#[path = "redis/time.rs"]
mod time;

use std::time::{Duration, Instant};

pub(crate) use cluster::RedisCluster;
pub(crate) use impostors::{Garbage, Silent};
pub(crate) use options::Options;
pub(crate) use reply::Reply;
pub(crate) use server::RedisServer;
pub(crate) use time::{FakeTime, ahead_variables, shifted, shifted_back, sweep};

/// How long anything may take that is bound to happen; far more than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `condition` holds.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
