//! Internals for benches and for tests that run a gateway in their own process. This module is not a public API.

use std::io;
use std::net::{IpAddr, TcpListener};

use http::HeaderMap;

use crate::clock::Clock;
use crate::config::Policy;
use crate::idempotency::{IdempotencyKey, RecordId, Scope};
use crate::pipeline::GatewayState;
use crate::server::Gateway;

pub use crate::admin::listener::Admin;
pub use crate::http::http1::head::{HeadLimits, parse as parse_head};
pub use crate::request::client::ClientId;
pub use crate::request::hash_keys::Seed;
pub use crate::request::path::read as read_path;
pub use crate::request::route::{AmbiguousPaths, Matcher, PathMode, RouteMatch};
pub use crate::store::disk::DiskRecords;
pub use crate::store::memory::MemoryBuckets;
pub use crate::store::memory::records::{BYTES_PER_KEY, MemoryRecords};
pub use crate::store::{RecordStore, StoreCapacity};
pub use crate::throttle::bucket::BucketKind;

/// Returns the route matcher of a policy, without the settings of the routes.
pub fn routes(policy: &Policy) -> Matcher<()> {
    policy.routes.map(|_| ())
}

/// Returns the store of idempotency records of a gateway.
pub fn records(shared: &GatewayState) -> &RecordStore {
    &shared.store.records
}

/// Returns the id of the idempotency record of `key`, for a client that has the IP address `address` and sends no
/// credentials. Panics if `key` is not a valid idempotency key.
pub fn record_id(shared: &GatewayState, key: &str, address: IpAddr) -> RecordId {
    let key = IdempotencyKey::parse(key.as_bytes()).expect("the key is valid");
    let secret = &shared.store.hash_keys.keys().secret;
    let client = ClientId::of(address, 64);
    RecordId::of(secret, &key, &Scope::Credential, client, &HeaderMap::new())
}

/// Returns the clock that all workers of the gateway use.
pub fn clock(shared: &GatewayState) -> &Clock {
    &shared.clock
}

/// Returns the number of bytes of request and response bodies that are buffered in memory.
pub fn buffered_bytes(shared: &GatewayState) -> usize {
    shared.buffers.in_use()
}

/// Returns the number of responses whose last byte was not written to the client's socket, over all workers.
pub fn truncated_responses(shared: &GatewayState) -> u64 {
    let workers = shared.metrics.iter();
    workers.map(|metrics| metrics.totals.truncated.get()).sum()
}

/// Starts the admin listener. Returns `None` if the policy configures no admin listener.
pub fn start_admin(gateway: &Gateway) -> io::Result<Option<Admin>> {
    let Some(settings) = &gateway.shared().policy.admin else {
        return Ok(None);
    };
    let socket = TcpListener::bind(settings.listen)?;
    Admin::start(socket, gateway, None).map(Some)
}
