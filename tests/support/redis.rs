//! Real `redis-server` processes for tests and benches.
//!
//! The unit tests of the stores and the benchmark `peers` include this file and its sibling `wait.rs` by path, so that
//! they do not need their own crate.
//!
//! Each server listens on a free loopback port and has its own directory. It stops when it is dropped, and also when
//! the process that started it exits for any reason. Tests never use a server that the Linux distribution runs on port
//! 6379.
//!
//! Tests send their own commands through a Unix socket in the server's directory. They do not use the Redis client of
//! the crate under test, because that client can be wrong.

#[path = "redis/cluster.rs"]
mod cluster;
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

pub(crate) use cluster::RedisCluster;
pub(crate) use options::Options;
pub(crate) use reply::Reply;
pub(crate) use server::RedisServer;
pub(crate) use time::{
    FakeTime, ahead_variables, remove_faketime_files, shift_clock_ahead, shift_clock_back,
};

use super::wait::{TEST_TIMEOUT, wait_until};
