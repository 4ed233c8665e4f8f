//! Number of idempotency keys per client, for `store.max_keys_per_client`.
//!
//! The idempotency keys of a client belong to many scopes, and so to many slots of a cluster. Redis has a sorted set of
//! keys for each client. The slot of this set differs from that of the record, so one script cannot change both. The
//! gateway therefore adds a key to the set before it claims the key, and removes it if the claim is not won. A failed
//! command on the set does not fail the request. So the count can be wrong by the number of requests in flight. An
//! entry of the set expires with its record, even if the gateway crashes.

use std::time::Duration;

use redis::{FromRedisValue, ParsingError, Value};

use super::super::client::RedisClient;
use super::super::script::{ADMIT, Call, RECOUNT};
use super::calls::millis;
use super::claims::{GatewayClaims, PendingClaim};
use super::names::RecordNames;
use crate::idempotency::{ClaimRequest, ClientHash, RecordId};

/// An idempotency key that Redis has possibly added to the key count of its client.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedKey {
    client: ClientHash,
    id: RecordId,
    ttl: Duration,
}

/// The reply of the script that adds an idempotency key to the key count of a client.
#[derive(Debug)]
enum CountReply {
    /// The count already included the idempotency key.
    Known,
    /// The count includes the idempotency key now.
    New,
    /// The client has `max_keys_per_client` keys, so the key was not added. The value is the time until the first key
    /// of the client expires.
    Full(Duration),
}

impl GatewayClaims {
    /// Adds the idempotency key of `request` to the key count of its client. If the key is new and the client already
    /// has `max_keys_per_client` keys, adds nothing and returns the time until one of them expires. Otherwise returns
    /// `None`.
    pub(super) async fn admit(
        &self,
        redis: &RedisClient,
        request: &ClaimRequest,
        pending: &mut PendingClaim<'_>,
    ) -> Option<Duration> {
        let most = self.state().settings.max_keys_per_client?;
        let call = ADMIT
            .call(&[self.names().client(request.client)])
            .arg(&request.id.to_bytes())
            .arg(millis(
                self.state().lease().saturating_add(request.settings.ttl),
            ))
            .arg(most.get());
        // The idempotency key is marked as counted before the reply, because Redis can have counted it even if the
        // reply is lost.
        pending.counted = Some(CountedKey {
            client: request.client,
            id: request.id,
            ttl: request.settings.ttl,
        });
        let full = match redis.run_optional(&call).await {
            Some(CountReply::New) | None => return None,
            Some(CountReply::Known) => None,
            Some(CountReply::Full(min_wait)) => Some(min_wait),
        };
        pending.counted = None;
        full
    }

    /// Sets the expiry of a claimed idempotency key in the key count of `client` to `ttl` from now. Removes the key
    /// from the count if `ttl` is `None`.
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

    /// Removes an idempotency key from the key count of its client, because the claim of the key was not won. The key
    /// stays if another claim of the key has stored a record in the meantime.
    pub(super) async fn uncount(&self, counted: CountedKey) {
        let CountedKey { client, id, ttl } = counted;
        let call = recount(&self.names(), client, id).arg(0).arg(millis(ttl));
        let _: Option<bool> = self.background.run_optional(&call).await;
    }
}

fn recount(names: &RecordNames<'_>, client: ClientHash, id: RecordId) -> Call {
    RECOUNT.call(&[names.client(client)]).arg(&id.to_bytes())
}

impl FromRedisValue for CountReply {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let Value::Array(parts) = value else {
            return Err("the reply of count_key.lua is not an array".into());
        };
        let mut parts = parts.into_iter();
        let code = u8::from_redis_value(parts.next().unwrap_or(Value::Nil))?;
        let detail = parts.next().unwrap_or(Value::Nil);
        Ok(match code {
            0 => Self::Known,
            1 => Self::New,
            2 => Self::Full(Duration::from_millis(u64::from_redis_value(detail)?)),
            _ => return Err("the reply of count_key.lua has an unknown result code".into()),
        })
    }
}
