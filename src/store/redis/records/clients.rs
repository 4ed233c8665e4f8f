//! Counts of keys per client, for `max_keys_per_client`.
//!
//! The keys of a client belong to many scopes, and so to many slots of a cluster. Their count is a sorted set in a slot
//! of its own, which cannot change in one step with a claim. So a key is counted before its claim, and counted no
//! longer if the claim is not won. A command on the count that fails has no effect on its request: the count is off by
//! the requests in flight. An entry expires with its record, also after a crash of the gateway.

use std::time::Duration;

use redis::{FromRedisValue, ParsingError, Value};

use super::super::client::Client;
use super::super::script::{ADMIT, Call, RECOUNT};
use super::ledger::{Ledger, Pending};
use super::names::Names;
use super::steps::millis;
use crate::idempotency::{ClaimRequest, ClientHash, RecordId};

/// A key that may have been counted for a claim.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counted {
    client: ClientHash,
    id: RecordId,
    ttl: Duration,
}

/// Whether a client may claim a new key.
#[derive(Debug)]
enum Admission {
    /// The key was counted before.
    Known,
    /// The key is counted now.
    New,
    /// The client has as many keys as it may have, and none expires sooner.
    Full(Duration),
}

impl Ledger {
    /// Counts the key of `request` for its client. Returns the time until a key expires if the client may claim no new key.
    pub(super) async fn admit(
        &self,
        link: &Client,
        request: &ClaimRequest,
        pending: &mut Pending<'_>,
    ) -> Option<Duration> {
        let settings = &self.core().settings;
        let most = settings.max_keys_per_client?;
        let call = ADMIT
            .on(&[self.names().client(request.client)])
            .arg(&request.id.to_bytes())
            .arg(millis(settings.lease.saturating_add(request.settings.ttl)))
            .arg(most.get());
        // Until the reply is here, the key may be counted.
        pending.counted = Some(Counted {
            client: request.client,
            id: request.id,
            ttl: request.settings.ttl,
        });
        let full = match link.run_optional(&call).await {
            Some(Admission::New) | None => return None,
            Some(Admission::Known) => None,
            Some(Admission::Full(min_wait)) => Some(min_wait),
        };
        pending.counted = None;
        full
    }

    /// Counts a claimed key until its record expires, or no longer if `keep` is `None`.
    pub(super) async fn recount(
        &self,
        link: &Client,
        client: ClientHash,
        id: RecordId,
        keep: Option<Duration>,
    ) {
        if self.max_keys_per_client().is_some() {
            let call = recount(&self.names(), client, id).arg(keep.map_or(0, millis));
            let _: Option<bool> = link.run_optional(&call.arg("")).await;
        }
    }

    /// Counts a key no longer whose claim was not won, unless another claim has led to a record.
    pub(super) async fn discount(&self, counted: Counted) {
        let Counted { client, id, ttl } = counted;
        let call = recount(&self.names(), client, id).arg(0).arg(millis(ttl));
        let _: Option<bool> = self.background.run_optional(&call).await;
    }
}

fn recount(names: &Names<'_>, client: ClientHash, id: RecordId) -> Call {
    RECOUNT.on(&[names.client(client)]).arg(&id.to_bytes())
}

impl FromRedisValue for Admission {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let Value::Array(parts) = value else {
            return Err("the reply is not a list".into());
        };
        let mut parts = parts.into_iter();
        let code = u8::from_redis_value(parts.next().unwrap_or(Value::Nil))?;
        let detail = parts.next().unwrap_or(Value::Nil);
        Ok(match code {
            0 => Self::Known,
            1 => Self::New,
            2 => Self::Full(Duration::from_millis(u64::from_redis_value(detail)?)),
            _ => return Err("the reply has an unknown code".into()),
        })
    }
}
