//! Number of keys per client, for `max_keys_per_client`.
//!
//! The keys of a client belong to many scopes, and so to many slots of a cluster. Redis has them in a sorted set per
//! client, whose slot differs from that of the record, so one script cannot change both. The gateway therefore adds a
//! key to the set before it claims the key, and removes it if the claim is not won. A failed command on the set does
//! not fail the request, so the count can be off by the number of requests in flight. An entry of the set expires with
//! its record, also after a crash of the gateway.

use std::time::Duration;

use redis::{FromRedisValue, ParsingError, Value};

use super::super::client::RedisClient;
use super::super::script::{ADMIT, Call, RECOUNT};
use super::calls::millis;
use super::claims::{GatewayClaims, PendingClaim};
use super::names::RecordNames;
use crate::idempotency::{ClaimRequest, ClientHash, RecordId};

/// A key that the count of its client may include.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedKey {
    client: ClientHash,
    id: RecordId,
    ttl: Duration,
}

/// Reply of the script that adds a key to the count of a client.
#[derive(Debug)]
enum CountReply {
    /// The count already included the key.
    Known,
    /// The count includes the key now.
    New,
    /// The client has `max_keys_per_client` keys. The value is the time until the first of them expires.
    Full(Duration),
}

impl GatewayClaims {
    /// Adds the key of `request` to the count of its client. If the client has `max_keys_per_client` keys, returns the
    /// time until one of them expires.
    pub(super) async fn admit(
        &self,
        redis: &RedisClient,
        request: &ClaimRequest,
        pending: &mut PendingClaim<'_>,
    ) -> Option<Duration> {
        let settings = &self.state().settings;
        let most = settings.max_keys_per_client?;
        let call = ADMIT
            .call(&[self.names().client(request.client)])
            .arg(&request.id.to_bytes())
            .arg(millis(settings.lease.saturating_add(request.settings.ttl)))
            .arg(most.get());
        // Until the reply arrives, the count may include the key.
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

    /// Sets the expiry of a claimed key in the count to that of its record, in `ttl` from now. Removes the key if `ttl`
    /// is `None`.
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

    /// Removes a key whose claim was not won from the count, unless another claim of the key has stored a record.
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
            return Err("the reply to a count is not an array".into());
        };
        let mut parts = parts.into_iter();
        let code = u8::from_redis_value(parts.next().unwrap_or(Value::Nil))?;
        let detail = parts.next().unwrap_or(Value::Nil);
        Ok(match code {
            0 => Self::Known,
            1 => Self::New,
            2 => Self::Full(Duration::from_millis(u64::from_redis_value(detail)?)),
            _ => return Err("the reply to a count has an unknown code".into()),
        })
    }
}
