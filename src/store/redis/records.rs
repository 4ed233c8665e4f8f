//! Records in Redis: one execution for a key across the fleet.
//!
//! A claim has a token of its own, and is valid for the time of its lease on the clock of Redis. The gateway that made it
//! renews the lease while the execution runs. If the gateway dies, the lease ends and the key is unknown. A script that
//! ends a claim names its token, so a gateway that was frozen for longer than its lease cannot end the claim of another
//! gateway. It can still complete its own unknown record.
//!
//! A claim whose reply was lost is released by its token: nothing was sent. A completion that cannot be recorded is
//! repeated until the lease ends; if it is not recorded by then, the client does not receive the response.
//!
//! In memory are the executions of this process with their waiters, and the requests here that wait for an execution on
//! another gateway.

mod clients;
mod leases;
mod ledger;
mod names;
mod scan;
mod steps;
mod watches;

pub(super) use self::names::Names;

use std::fmt;
use std::sync::Arc;

use self::ledger::{Attempts, Ledger, Pending};
use self::steps::{ClaimReply, Freed};
use super::Redis;
use super::client::Client;
use super::error::CallError;
use crate::idempotency::{
    Claim, ClaimRequest, ClaimToken, ExecutionOutcome, KeyHash, Permit, RecordCounts, RecordId,
    RecordInfo, Records, ScopeHash, StoreError, StoredResponse,
};
use crate::store::{Health, Part};

/// All records of a fleet, as one gateway sees them. A clone has a connection of its own.
pub struct RedisRecords {
    link: Client,
    /// The connection that waits for replicas.
    witness: Client,
    ledger: Arc<Ledger>,
    /// Looks after the Redis for as long as there are records.
    redis: Redis,
}

impl RedisRecords {
    /// The records in `redis`.
    pub(super) fn new(redis: Redis) -> Self {
        let core = &redis.0.state;
        let ledger = Ledger::new(redis.client(Part::Records));
        core.spawn(leases::renew(Arc::downgrade(&ledger), core.settings.lease));
        core.spawn(watches::look(Arc::downgrade(&ledger)));
        core.spawn(watches::listen(Arc::downgrade(&ledger)));
        Self {
            link: redis.client(Part::Records),
            witness: redis.client(Part::Records),
            ledger,
            redis,
        }
    }

    /// Returns the health of the Redis they are in: limits and records.
    pub fn health(&self) -> [Health; 2] {
        self.redis.health()
    }

    /// Returns when Redis has received the ends of all dropped permits.
    #[cfg(test)]
    pub(crate) async fn settled(&self) {
        while !self.ledger.core().tracked.is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    /// Claims the key of `request` in Redis. The claim is `pending` until Redis has replied.
    async fn request(
        &self,
        request: &ClaimRequest,
        mut pending: Pending<'_>,
    ) -> Result<Claim, StoreError> {
        let ledger = &self.ledger;
        let lease = ledger.core().settings.lease;
        let owner = ledger.owner(pending.number);
        let full = ledger.admit(&self.link, request, &mut pending).await;
        let counted = ledger.max_keys_per_client().is_some();
        let call = steps::claim(
            &ledger.names(),
            request,
            owner,
            lease,
            counted,
            full.is_some(),
        );
        // Taken before the call, so that the lease ends here no later than in Redis.
        let lapses = ledger.core().clock.now().after(lease);
        let reply = match self.link.run::<ClaimReply>(&call).await {
            Ok(reply) => reply,
            Err(failure) => {
                // In these cases Redis has stored no claim.
                pending.is_open =
                    !matches!(failure, CallError::Unavailable(_) | CallError::Full(_));
                return match failure {
                    CallError::Full(why) => {
                        tracing::debug!(%why, "a key was refused");
                        Ok(Claim::StoreFull)
                    }
                    failure => Err(failure.into()),
                };
            }
        };
        if let ClaimReply::Won(replaced) = reply {
            self.replicated(request.id).await?;
            pending.counted = None;
            if let Some(client) = replaced
                && client != request.client
            {
                ledger.uncount_later(client, request.id);
            }
        }
        pending.is_open = false;
        Ok(match reply {
            ClaimReply::Won(_) => Claim::Won(ledger.win(request, pending.number, lapses)),
            ClaimReply::Replay(response) => {
                Claim::Replay(steps::read_response(request.id, &response)?)
            }
            ClaimReply::InFlight(owner) => Claim::InFlight(ledger.watches.join(request.id, owner)),
            ClaimReply::Mismatch(mismatch) => Claim::Mismatch(mismatch),
            ClaimReply::Unknown => Claim::Unknown,
            ClaimReply::Tombstone => Claim::Tombstone,
            ClaimReply::ScopeFull(min_wait) => Claim::ScopeFull { min_wait },
            ClaimReply::ClientFull => Claim::ClientFull {
                limit: ledger
                    .max_keys_per_client()
                    .map_or(0, |most| most.get().into()),
                min_wait: full.unwrap_or_default(),
            },
            ClaimReply::CalledOff => return Err(StoreError::new("the claim was called off")),
        })
    }

    /// Waits until `wait_replicas` replicas have the record of `id`.
    async fn replicated(&self, id: RecordId) -> Result<(), StoreError> {
        let Some(wanted) = self.ledger.core().settings.wait_replicas else {
            return Ok(());
        };
        let record = self.ledger.names().record(id);
        let have = self.witness.wait_for_replicas(&record, wanted).await;
        match have? {
            have if have >= wanted.get() => Ok(()),
            have => Err(StoreError::new(format!(
                "only {have} of {wanted} replicas have it"
            ))),
        }
    }

    /// Stores the record of an execution. Retries until it is stored or its claim has lapsed.
    async fn record(
        &self,
        token: &ClaimToken,
        outcome: &ExecutionOutcome,
    ) -> Result<(), StoreError> {
        let ledger = &self.ledger;
        let call = ledger.end_call(token, outcome);
        let mut attempts = Attempts::default();
        loop {
            let why = match self.link.run::<bool>(&call).await {
                Ok(true) => {
                    let (request, keep) = (&token.request, Some(token.request.settings.ttl));
                    let (replicated, ()) = tokio::join!(
                        self.replicated(request.id),
                        ledger.recount(&self.link, request.client, request.id, keep),
                    );
                    match replicated {
                        Ok(()) => return Ok(()),
                        Err(error) => error,
                    }
                }
                Ok(false) => return Err(StoreError::new("its key is somebody else's by now")),
                Err(failure) => failure.into(),
            };
            if ledger.has_lapsed(token) {
                return Err(why);
            }
            attempts.pause().await;
        }
    }
}

impl Records for RedisRecords {
    async fn claim(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        match self.ledger.in_flight.meet(request) {
            Some(claim) => Ok(claim),
            None => self.request(request, self.ledger.pending(request.id)).await,
        }
    }

    async fn end(&self, permit: Permit, outcome: ExecutionOutcome) -> Result<(), StoreError> {
        // The permit is redeemed when Redis has the outcome: if this future is dropped before, the key is unknown.
        let token = *permit.token();
        if outcome.is_executed() {
            let recorded = self.record(&token, &outcome).await;
            let _ = permit.into_token();
            let stored = recorded
                .as_ref()
                .map_or(ExecutionOutcome::Unknown, |()| outcome);
            self.ledger.end(&token, stored);
            return recorded;
        }
        let concluded = self.ledger.conclude(&self.link, &token, &outcome).await;
        let _ = permit.into_token();
        if concluded.is_ok() {
            self.ledger.end(&token, outcome);
        } else {
            // The waiters here need not wait for Redis.
            let left = match &outcome {
                // Redis needs no response, so none is held until the lease ends.
                ExecutionOutcome::Released(_) => ExecutionOutcome::Released(None),
                other => other.clone(),
            };
            self.ledger.in_flight.end(&token, outcome);
            let ledger = Arc::clone(&self.ledger);
            self.ledger.core().spawn_tracked(async move {
                ledger.conclude_or_lapse(&token, &left).await;
                ledger.leases.let_go(&token);
            });
        }
        concluded
    }

    async fn find(
        &self,
        key: KeyHash,
        scope: Option<ScopeHash>,
        most: usize,
    ) -> Result<Vec<RecordInfo>, StoreError> {
        let names = self.ledger.names();
        match scope {
            // Its name is known, and nobody need be asked for it.
            Some(scope) => {
                let found = scan::look_at(&self.link, &names, RecordId { key, scope }).await?;
                Ok(found.into_iter().collect())
            }
            None => scan::find(&self.link, &names, key, most).await,
        }
    }

    async fn response(&self, id: RecordId) -> Result<Option<Arc<StoredResponse>>, StoreError> {
        scan::response(&self.link, &self.ledger.names(), id).await
    }

    async fn free_unknown(&self, id: RecordId) -> Result<bool, StoreError> {
        // The lease of a claim of this gateway may have lapsed while its execution runs.
        if self.ledger.in_flight.is_running(id) {
            return Ok(false);
        }
        let call = steps::free(&self.ledger.names(), id);
        let freed: Freed = self.link.run(&call).await?;
        if let Some(client) = freed.client {
            self.ledger.recount(&self.link, client, id, None).await;
        }
        Ok(freed.was_unknown)
    }

    fn copies_replays(&self) -> bool {
        true
    }

    fn counts(&self) -> RecordCounts {
        RecordCounts {
            in_progress: self.ledger.in_flight.len(),
            ..RecordCounts::default()
        }
    }
}

impl RedisRecords {
    /// How much there is in all of Redis. Looks at every record, so not to be asked often.
    pub async fn count(&self) -> Result<RecordCounts, StoreError> {
        scan::count(&self.link, &self.ledger.names()).await
    }
}

impl Clone for RedisRecords {
    fn clone(&self) -> Self {
        Self {
            link: self.link.another(),
            witness: self.witness.another(),
            ledger: Arc::clone(&self.ledger),
            redis: self.redis.clone(),
        }
    }
}

impl fmt::Debug for RedisRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisRecords").finish_non_exhaustive()
    }
}
