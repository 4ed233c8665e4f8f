//! Tests of gateways that share a Redis server or a Redis cluster.

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
