//! Tests of the Redis servers in `tests/support/redis.rs`.

mod cluster;
mod fake_servers;
mod faults;
mod options;
mod time;
