//! Number of idempotency keys per client, for `store.max_keys_per_client`.
//!
//! The keys of a client belong to many scopes, and so to many slots of a cluster. One script cannot change both a
//! record and the sorted set of the keys of its client. So the gateway adds a key to the set before it claims the key,
//! and removes it if the claim is not won. A failed command on the set does not fail the request. So the count can be
//! wrong by the number of requests in flight. An entry expires with its record, even if the gateway crashes.

use std::time::Duration;

use super::super::client::RedisClient;
use super::super::script::{ADMIT, Call, RECOUNT};
use super::calls::millis;
use super::claims::{GatewayClaims, PendingClaim};
use super::names::RecordNames;
use crate::idempotency::{ClaimRequest, ClientHash, RecordId};

/// Result codes of `count_key.lua`. With any other, the key was counted before.
const COUNTED: u8 = 1;
const FULL: u8 = 2;

/// A key that Redis has possibly added to the count of its client.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedKey {
    client: ClientHash,
    id: RecordId,
    ttl: Duration,
}

impl GatewayClaims {
    /// Returns the time until a key of the client expires if the key is new and the client has `max_keys_per_client`
    /// keys.
    pub(super) async fn admit(
        &self,
        redis: &RedisClient,
        request: &ClaimRequest,
        pending: &mut PendingClaim<'_>,
    ) -> Option<Duration> {
        let most = self.state().settings.max_keys_per_client?;
        let call = Call::new(&ADMIT, &[self.names().client(request.client)])
            .arg(&request.id.to_bytes())
            .arg(millis(
                self.state().lease().saturating_add(request.settings.ttl),
            ))
            .arg(most.get());
        // Redis can have counted the key even if the reply is lost.
        pending.counted = Some(CountedKey {
            client: request.client,
            id: request.id,
            ttl: request.settings.ttl,
        });
        let full = match redis.run_optional::<(u8, u64)>(&call).await {
            Some((COUNTED, _)) | None => return None,
            Some((FULL, min_wait)) => Some(Duration::from_millis(min_wait)),
            Some(_) => None,
        };
        pending.counted = None;
        full
    }

    /// Sets the expiry of a counted key to `ttl` from now. Uncounts the key if `ttl` is `None`.
    pub(super) async fn update_count(
        &self,
        redis: &RedisClient,
        client: ClientHash,
        id: RecordId,
        ttl: Option<Duration>,
    ) {
        if self.max_keys_per_client().is_some() {
            let call = recount(&self.names(), client, id).arg(ttl.map_or(0, millis));
            let _: Option<bool> = redis.run_optional(&call.arg("")).await;
        }
    }

    /// The claim of the key was not won. The key stays if another claim of it has stored a record in the meantime.
    pub(super) async fn uncount(&self, counted: CountedKey) {
        let CountedKey { client, id, ttl } = counted;
        let call = recount(&self.names(), client, id).arg(0).arg(millis(ttl));
        let _: Option<bool> = self.background.run_optional(&call).await;
    }
}

fn recount(names: &RecordNames<'_>, client: ClientHash, id: RecordId) -> Call {
    Call::new(&RECOUNT, &[names.client(client)]).arg(&id.to_bytes())
}
