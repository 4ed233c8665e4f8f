//! Tests of the gateway over real sockets, with real clients and upstreams.

mod harness;
#[path = "../support/redis.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "these tests use only a part of this module"
)]
mod redis;

mod access_log;
mod admin;
mod admin_keys;
mod admin_upstreams;
mod buffers;
mod circuit_breaker;
mod client_aborts;
mod client_identity;
mod client_libraries;
mod commands;
mod concurrency;
mod connection_loss;
mod connections;
mod cors;
mod delay_and_shadow;
mod failing_server;
mod forwarding;
mod header_spelling;
mod health_checks;
mod http2;
mod idempotency;
mod lifecycle;
mod listeners;
mod load_balancing;
mod paths;
mod rate_limit_headers;
mod redis_outage;
mod rejection;
mod retries;
mod retry_budget;
mod retry_hints;
mod throttle;
mod timeouts;
mod upstreams;

mod raw_http;

mod wire_expect;
mod wire_http2;
mod wire_limits;
mod wire_rejected_bodies;
mod wire_requests;
mod wire_timeouts;
mod wire_upgrade;
mod wire_upstream;
