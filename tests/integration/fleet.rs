//! Tests of gateways that share a Redis server or a Redis cluster.
//!
//! Gateways, servers and sockets are real.
//!
//! - `duplicates`: many requests with the same idempotency key at two gateways
//! - `frozen_gateway`: a gateway that freezes or crashes
//! - `clocks`: a gateway whose clock is wrong
//! - `faults`: faults of Redis under load
//! - `connecting`: startup without Redis, replicas, TLS, ACL users
//! - `unusable_redis`: a Redis that the gateway cannot use
//! - `record_formats`: idempotency records that another version of the gateway wrote
//! - `client_share`: `max_keys_per_client`
//! - `support_tests`: tests of the Redis servers that the other tests use

mod client_share;
mod clocks;
mod connecting;
mod duplicates;
mod fake_servers;
mod faults;
mod frozen_gateway;
mod gateways;
mod load;
mod record_formats;
mod slow_proxy;
mod support_tests;
mod unusable_redis;
mod upstream_api;
