//! The claims of idempotency keys that this gateway made in Redis.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::super::client::RedisClient;
use super::super::client_state::ClientState;
use super::super::script::Call;
use super::calls;
use super::client_counts::CountedKey;
use super::leases::Leases;
use super::names::{OwnerToken, RecordNames};
use super::remote_executions::RemoteExecutions;
use crate::clock::Moment;
use crate::idempotency::{
    ClaimRequest, ClaimToken, ClientHash, ExecutionOutcome, InFlightExecution, OnAbandon, Permit,
    RecordId, StoreError,
};
use crate::store::in_flight::InFlightTable;

/// Pause after the first failed attempt to end a claim. It doubles with each further attempt.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(20);

const LONGEST_PAUSE: Duration = Duration::from_millis(500);

pub(super) struct GatewayClaims {
    myself: Weak<GatewayClaims>,
    /// Random number of this process in the tokens of its claims.
    gateway: u64,
    /// Each claim of this gateway has its own number.
    next_number: AtomicU64,
    pub(super) in_flight: InFlightTable,
    pub(super) leases: Leases,
    pub(super) remote: RemoteExecutions,
    /// For calls that no request waits for.
    pub(super) background: RedisClient,
}

/// A claim whose reply is outstanding. Its drop cancels the claim, and uncounts the key for the client.
pub(super) struct PendingClaim<'a> {
    claims: &'a Arc<GatewayClaims>,
    id: RecordId,
    pub(super) number: u64,
    /// Whether Redis can have stored the claim, so that the drop cancels it.
    pub(super) is_open: bool,
    pub(super) counted: Option<CountedKey>,
}

/// Waits before the next attempt to end a claim.
pub(super) async fn back_off(pause: &mut Duration) {
    tokio::time::sleep(*pause).await;
    *pause = (*pause * 2).min(LONGEST_PAUSE);
}

impl GatewayClaims {
    pub(super) fn new(background: RedisClient) -> Arc<Self> {
        Arc::new_cyclic(|myself| Self {
            myself: Weak::clone(myself),
            gateway: random_id(),
            next_number: AtomicU64::new(0),
            in_flight: InFlightTable::default(),
            leases: Leases::default(),
            remote: RemoteExecutions::default(),
            background,
        })
    }

    pub(super) fn state(&self) -> &ClientState {
        self.background.state()
    }

    pub(super) fn names(&self) -> RecordNames<'_> {
        RecordNames {
            prefix: &self.state().settings.prefix,
        }
    }

    pub(super) fn max_keys_per_client(&self) -> Option<NonZeroU32> {
        self.state().settings.max_keys_per_client
    }

    /// Uncounts a key for `client`, because a claim of another client has replaced its record.
    pub(super) fn spawn_uncount(self: &Arc<Self>, client: ClientHash, id: RecordId) {
        if self.max_keys_per_client().is_some() {
            let claims = Arc::clone(self);
            self.state().spawn_tracked(async move {
                claims
                    .update_count(&claims.background, client, id, None)
                    .await;
            });
        }
    }

    pub(super) fn owner(&self, number: u64) -> OwnerToken {
        OwnerToken {
            gateway: self.gateway,
            number,
        }
    }

    pub(super) fn pending(self: &Arc<Self>, id: RecordId) -> PendingClaim<'_> {
        PendingClaim {
            claims: self,
            id,
            number: self.next_number.fetch_add(1, Ordering::Relaxed),
            is_open: true,
            counted: None,
        }
    }

    /// Redis has already stored the claim.
    pub(super) fn win(
        self: &Arc<Self>,
        request: &ClaimRequest,
        number: u64,
        lease_ends: Moment,
    ) -> Permit {
        let token = ClaimToken {
            request: *request,
            number,
        };
        self.leases.insert(&token, lease_ends);
        self.in_flight
            .begin(InFlightExecution::new(token, request.at));
        let on_abandon: Arc<dyn OnAbandon> = Arc::<Self>::clone(self);
        Permit::new(token, on_abandon).with_lease_end(lease_ends)
    }

    /// Passes `outcome` to the requests of this process that wait for it.
    pub(super) fn end(&self, token: &ClaimToken, outcome: ExecutionOutcome) {
        self.leases.remove(token);
        let owner = self.owner(token.number);
        self.remote.end(token.request.id, owner, &outcome);
        self.in_flight.end(token, outcome);
    }

    pub(super) fn has_lease_expired(&self, token: &ClaimToken) -> bool {
        let ends = self.leases.ends(token);
        ends.is_none_or(|ends| self.state().clock.now() >= ends)
    }

    pub(super) fn end_call(&self, token: &ClaimToken, outcome: &ExecutionOutcome) -> Call {
        let (names, owner) = (self.names(), self.owner(token.number));
        match outcome.record() {
            None => calls::release(&names, token.request.id, owner, false),
            Some((state, response)) => {
                let counted = self.max_keys_per_client().is_some();
                calls::settle(
                    &names,
                    token,
                    owner,
                    state,
                    response.map(|response| &**response),
                    counted,
                )
            }
        }
    }

    /// One attempt. Only for a request that was not executed or whose outcome is unknown.
    pub(super) async fn end_in_redis(
        &self,
        redis: &RedisClient,
        token: &ClaimToken,
        outcome: &ExecutionOutcome,
    ) -> Result<(), StoreError> {
        let call = self.end_call(token, outcome);
        let request = &token.request;
        let ttl = outcome.record().map(|_| request.settings.ttl);
        let (ended, ()) = tokio::join!(
            redis.run::<bool>(&call),
            self.update_count(redis, request.client, request.id, ttl),
        );
        Ok(ended.map(|_| ())?)
    }

    /// Retries until an attempt succeeds or the lease has expired.
    pub(super) async fn end_with_retries(&self, token: &ClaimToken, outcome: &ExecutionOutcome) {
        let mut pause = FIRST_PAUSE;
        let end = async || self.end_in_redis(&self.background, token, outcome).await;
        while end().await.is_err() && !self.has_lease_expired(token) {
            back_off(&mut pause).await;
        }
    }
}

impl OnAbandon for GatewayClaims {
    fn abandoned(&self, token: ClaimToken, outcome: ExecutionOutcome) {
        let Some(claims) = self.myself.upgrade() else {
            return;
        };
        self.state().spawn_tracked(async move {
            claims.end_with_retries(&token, &outcome).await;
            claims.end(&token, outcome);
        });
    }
}

impl Drop for PendingClaim<'_> {
    fn drop(&mut self) {
        let (mut is_open, counted) = (self.is_open, self.counted);
        if !is_open && counted.is_none() {
            return;
        }
        let (claims, id, number) = (Arc::clone(self.claims), self.id, self.number);
        let ends = claims.state().clock.now().after(claims.state().lease());
        self.claims.state().spawn_tracked(async move {
            let owner = claims.owner(number);
            let mut pause = FIRST_PAUSE;
            while is_open {
                let call = calls::release(&claims.names(), id, owner, true);
                let released = claims.background.run::<bool>(&call).await;
                // The outcome is unknown once the lease has expired.
                is_open = released.is_err() && claims.state().clock.now() < ends;
                if is_open {
                    back_off(&mut pause).await;
                }
            }
            if let Some(counted) = counted {
                claims.uncount(counted).await;
            }
        });
    }
}

fn random_id() -> u64 {
    getrandom::u64().expect("the system provides random numbers")
}
