//! Idempotency records in Redis. A request with an idempotency key is executed once, whichever gateways receive it.
//!
//! Each claim has a unique token, and a lease by the clock of Redis, which its gateway renews. If the gateway crashes,
//! the lease expires and the outcome becomes unknown. A claim can be ended only with its token. So a gateway that was
//! frozen for longer than its lease cannot end the claim of another gateway, but can still store its response if no
//! other gateway has claimed the key.
//!
//! If the reply to a claim is lost, the gateway releases the claim by its token, because it has sent no request
//! upstream. If a response cannot be stored, the gateway retries until the lease expires. If it is not stored by then,
//! the client does not receive it.

mod calls;
mod claims;
mod client_counts;
mod leases;
mod names;
mod remote_executions;
mod scan;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::Value;

use self::calls::ClaimReply;
use self::claims::{FIRST_PAUSE, GatewayClaims, PendingClaim, back_off};
use super::Redis;
use super::client::RedisClient;
use super::error::CallError;
use crate::idempotency::{
    Claim, ClaimRejection, ClaimRequest, ClaimToken, ExecutionOutcome, KeyHash, Permit,
    RecordCounts, RecordId, RecordInfo, Records, ScopeHash, StoreError, StoredResponse,
};
use crate::store::{CapacityUse, Health, Part};

/// Each clone has its own connections.
pub struct RedisRecords {
    client: RedisClient,
    /// For the command WAIT, which blocks its connection.
    replication: RedisClient,
    claims: Arc<GatewayClaims>,
    /// Keeps the monitor thread running.
    redis: Redis,
}

impl RedisRecords {
    pub(super) fn new(redis: Redis) -> Self {
        let state = &redis.0.state;
        let claims = GatewayClaims::new(redis.client(Part::Records));
        state.spawn(leases::renew(Arc::downgrade(&claims)));
        Self {
            client: redis.client(Part::Records),
            replication: redis.client(Part::Records),
            claims,
            redis,
        }
    }

    pub fn health(&self) -> [Health; 2] {
        self.redis.health()
    }

    pub(crate) fn data_losses(&self) -> u64 {
        self.claims.state().data_losses.load(Ordering::Relaxed)
    }

    pub(crate) fn capacity_use(&self) -> Option<CapacityUse> {
        *self.claims.state().memory_use.lock()
    }

    /// Waits for the outcomes of all dropped permits.
    #[cfg(test)]
    pub(crate) async fn settled(&self) {
        while !self.claims.state().tracked.is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    /// If this future is dropped before the reply, `pending` cancels the claim.
    async fn claim_in_redis(
        &self,
        request: &ClaimRequest,
        mut pending: PendingClaim<'_>,
    ) -> Result<Claim, StoreError> {
        let claims = &self.claims;
        let lease = claims.state().lease();
        let owner = claims.owner(pending.number);
        let full = claims.admit(&self.client, request, &mut pending).await;
        let counted = claims.max_keys_per_client().is_some();
        let call = calls::claim(
            &claims.names(),
            request,
            owner,
            lease,
            counted,
            full.is_some(),
        );
        // Before the call, so the lease expires on this gateway no later than in Redis.
        let lease_ends = claims.state().clock.now().after(lease);
        let reply = match self.client.run::<ClaimReply>(&call).await {
            Ok(reply) => reply,
            Err(failure) => {
                // After these two errors, Redis has certainly not stored the claim.
                pending.is_open =
                    !matches!(failure, CallError::Unavailable(_) | CallError::Full(_));
                return match failure {
                    CallError::Full(reason) => {
                        tracing::debug!(%reason, "cannot store idempotency key, Redis is out of memory");
                        Ok(Claim::Rejected(ClaimRejection::StoreFull))
                    }
                    failure => Err(failure.into()),
                };
            }
        };
        if let ClaimReply::Won(replaced) = reply {
            self.wait_for_replicas(request.id).await?;
            pending.counted = None;
            if let Some(client) = replaced
                && client != request.client
            {
                claims.spawn_uncount(client, request.id);
            }
        }
        pending.is_open = false;
        Ok(match reply {
            ClaimReply::Won(_) => Claim::Won(claims.win(request, pending.number, lease_ends)),
            ClaimReply::Replay(response) => {
                Claim::Replay(calls::decode_response(request.id, &response)?)
            }
            ClaimReply::InFlight(owner) => Claim::InFlight(claims.join(request.id, owner)),
            ClaimReply::Rejected(rejection) => Claim::Rejected(rejection),
            ClaimReply::ClientFull => Claim::Rejected(ClaimRejection::ClientFull {
                limit: claims
                    .max_keys_per_client()
                    .map_or(0, |most| most.get().into()),
                min_wait: full.unwrap_or_default(),
            }),
            ClaimReply::Cancelled => {
                return Err(StoreError::new(
                    "the claim of the idempotency key was cancelled before it arrived at Redis",
                ));
            }
        })
    }

    /// Fails if fewer than `store.wait_replicas` replicas have the record after a timeout.
    async fn wait_for_replicas(&self, id: RecordId) -> Result<(), StoreError> {
        let Some(wanted) = self.claims.state().settings.wait_replicas else {
            return Ok(());
        };
        let record = self.claims.names().record(id);
        let have = self.replication.wait_for_replicas(&record, wanted).await;
        match have? {
            have if have >= wanted.get() => Ok(()),
            have => Err(StoreError::new(format!(
                "only {have} of {wanted} replicas have the idempotency record; check the replicas, or lower \
                 `store.wait_replicas`"
            ))),
        }
    }

    /// Retries until the record is stored or the lease has expired.
    async fn store_record(
        &self,
        token: &ClaimToken,
        outcome: &ExecutionOutcome,
    ) -> Result<(), StoreError> {
        let claims = &self.claims;
        let call = claims.end_call(token, outcome);
        let mut pause = FIRST_PAUSE;
        loop {
            let why = match self.client.run::<bool>(&call).await {
                Ok(true) => {
                    let (request, ttl) = (&token.request, Some(token.request.settings.ttl));
                    let (replicated, ()) = tokio::join!(
                        self.wait_for_replicas(request.id),
                        claims.update_count(&self.client, request.client, request.id, ttl),
                    );
                    match replicated {
                        Ok(()) => return Ok(()),
                        Err(error) => error,
                    }
                }
                Ok(false) => {
                    let reason = "another request claimed the idempotency key after the lease of this \
                                  claim expired; raise `store.lease`";
                    return Err(StoreError::new(reason));
                }
                Err(failure) => failure.into(),
            };
            if claims.has_lease_expired(token) {
                return Err(why);
            }
            back_off(&mut pause).await;
        }
    }
}

impl Records for RedisRecords {
    async fn claim(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        if let Some(claim) = self.claims.in_flight.check(request) {
            return Ok(claim);
        }
        let pending = self.claims.pending(request.id);
        self.claim_in_redis(request, pending).await
    }

    async fn end(&self, permit: Permit, outcome: ExecutionOutcome) -> Result<(), StoreError> {
        // If this future is dropped before the reply, the drop of the permit records an unknown outcome if the request
        // was sent, and releases the claim otherwise.
        let token = *permit.token();
        if outcome.is_executed() {
            let recorded = self.store_record(&token, &outcome).await;
            let _ = permit.into_token();
            let stored = recorded
                .as_ref()
                .map_or(ExecutionOutcome::Unknown, |()| outcome);
            self.claims.end(&token, stored);
            return recorded;
        }
        let ended = self
            .claims
            .end_in_redis(&self.client, &token, &outcome)
            .await;
        let _ = permit.into_token();
        if ended.is_ok() {
            self.claims.end(&token, outcome);
        } else {
            // Other requests of this process receive the outcome now, and a task continues to retry in Redis.
            let unstored = match &outcome {
                // Redis stores no response of a released claim, so a copy would only occupy memory until the lease
                // expires.
                ExecutionOutcome::Released(_) => ExecutionOutcome::Released(None),
                other => other.clone(),
            };
            self.claims.in_flight.end(&token, outcome);
            let claims = Arc::clone(&self.claims);
            self.claims.state().spawn_tracked(async move {
                claims.end_with_retries(&token, &unstored).await;
                claims.leases.remove(&token);
            });
        }
        ended
    }

    async fn find(
        &self,
        key: KeyHash,
        scope: Option<ScopeHash>,
        most: usize,
    ) -> Result<Vec<RecordInfo>, StoreError> {
        let names = self.claims.names();
        match scope {
            // Scope and key determine the Redis key, so this lookup needs no SCAN.
            Some(scope) => {
                let found = scan::read(&self.client, &names, RecordId { key, scope }).await?;
                Ok(found.into_iter().collect())
            }
            None => scan::find(&self.client, &names, key, most).await,
        }
    }

    async fn response(&self, id: RecordId) -> Result<Option<Arc<StoredResponse>>, StoreError> {
        scan::response(&self.client, &self.claims.names(), id).await
    }

    async fn free_unknown(&self, id: RecordId) -> Result<bool, StoreError> {
        // The lease can have expired in Redis while this gateway executes the request.
        if self.claims.in_flight.is_running(id) {
            return Ok(false);
        }
        let call = calls::free(&self.claims.names(), id);
        let (was_unknown, client) = self.client.run::<(bool, Value)>(&call).await?;
        if let Some(client) = calls::parse_client(client).map_err(StoreError::new)? {
            self.claims
                .update_count(&self.client, client, id, None)
                .await;
        }
        Ok(was_unknown)
    }

    fn is_in_memory(&self) -> bool {
        false
    }

    fn counts(&self) -> RecordCounts {
        RecordCounts {
            in_progress: self.claims.in_flight.len(),
            ..RecordCounts::default()
        }
    }
}

impl RedisRecords {
    /// Slow, because it reads every record.
    pub async fn count(&self) -> Result<RecordCounts, StoreError> {
        scan::count(&self.client, &self.claims.names()).await
    }
}

impl Clone for RedisRecords {
    fn clone(&self) -> Self {
        Self {
            client: self.client.with_own_connection(),
            replication: self.replication.with_own_connection(),
            claims: Arc::clone(&self.claims),
            redis: self.redis.clone(),
        }
    }
}

impl fmt::Debug for RedisRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisRecords").finish_non_exhaustive()
    }
}
