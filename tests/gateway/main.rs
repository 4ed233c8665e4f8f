//! The gateway from outside: real sockets, real clients, real upstreams.

mod harness;
#[path = "../support/redis.rs"]
#[allow(dead_code, unused_imports, reason = "other tests use the rest")]
mod redis;

mod aborted;
mod access_log;
mod admin;
mod admin_keys;
mod admin_upstreams;
mod balancing;
mod budget;
mod buffers;
mod checks;
mod circuits;
mod clients;
mod commands;
mod concurrency;
mod connections;
mod cors;
mod cuts;
mod degraded;
mod delay;
mod forwarding;
mod hints;
mod http2;
mod idempotency;
mod identity;
mod lifecycle;
mod listeners;
mod one_of_three;
mod paths;
mod rate_limit;
mod refusal;
mod retries;
mod spelling;
mod throttle;
mod timeouts;
mod upstreams;

mod wire_raw;

mod wire_deadlines;
mod wire_expect;
mod wire_http2;
mod wire_limits;
mod wire_refused;
mod wire_requests;
mod wire_upgrade;
mod wire_upstream;
