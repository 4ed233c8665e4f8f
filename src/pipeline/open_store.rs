//! Opens the store for rate limit buckets and idempotency records that the configuration selects. If the store cannot
//! be opened, the gateway does not start.

use std::sync::Arc;

use super::GatewayState;
use crate::clock::Clock;
use crate::config::{Backend, Policy};
use crate::store::{OpenError, OpenStore};

impl GatewayState {
    /// Creates the state for a policy, with the store that `[store]` of the configuration selects.
    pub fn open(policy: Arc<Policy>, clock: Clock) -> Result<Self, OpenError> {
        let max_clients = policy.max_clients;
        let store = match &policy.store.backend {
            Backend::Memory => return Ok(Self::new(policy, clock)),
            Backend::Disk { path } => {
                OpenStore::on_disk(path, max_clients, policy.store.capacity, clock.clone())?
            }
            Backend::Redis(settings) => {
                let keyed = policy
                    .routes
                    .iter()
                    .any(|route| route.idempotency.is_some());
                OpenStore::in_redis(settings.clone(), keyed, max_clients, clock.clone())?
            }
        };
        Ok(Self::with_store(policy, store, clock))
    }
}
