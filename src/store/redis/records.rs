//! Records in Redis: one execution for a key across the fleet.
//!
//! A claim carries a token that no other claim has, and holds for the time of its lease by Redis's own
//! clock; the gateway that made it has it renewed while the execution runs. If the gateway dies, the claim
//! lapses and its key is unknown from then on, without anybody having to do anything. Whatever ends a
//! claim names its token, so a gateway that was frozen for longer than its lease cannot end somebody
//! else's; it may still end its own, since what was given up for unknown may turn out well yet.
//!
//! A claim that was asked for and whose answer never came is called off by its token: nothing was sent. An
//! answer that cannot be recorded is recorded again and again until the lease is over; if it still is not,
//! nobody is given it.
//!
//! In memory is only what this process carries out, with those who wait for it here, and whom those wait
//! for who came here while another gateway was at it.

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
use std::time::Duration;

use self::ledger::{Attempts, Idle, Ledger, Pending};
use self::steps::{Freed, Reply};
use super::Redis;
use super::client::Client;
use super::error::CallError;
use crate::idempotency::{
    Answer, Bid, Census, Claim, Ending, Finding, Kept, KeyHash, Permit, RecordId, Records,
    ScopeHash, StoreError, Ticket,
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

    /// Returns when nothing is left to be told to Redis of what was dropped.
    pub async fn settled(&self) {
        while !self.ledger.core().tracked.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Claims the key of `bid` in Redis. The claim is `pending` until Redis has replied.
    async fn bid(&self, bid: &Bid, mut pending: Pending<'_>) -> Result<Claim, StoreError> {
        let ledger = &self.ledger;
        let lease = ledger.core().settings.lease;
        let token = ledger.token(pending.number);
        let full = ledger.admit(&self.link, bid, &mut pending).await;
        let counted = ledger.max_keys_per_client().is_some();
        let call = steps::claim(&ledger.names(), bid, token, lease, counted, full.is_some());
        // Taken before the call, so that the lease ends here no later than in Redis.
        let lapses = ledger.core().clock.now().after(lease);
        let reply = match self.link.run::<Reply>(&call).await {
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
        if let Reply::Won(replaced) = reply {
            self.replicated(bid.id).await?;
            pending.counted = None;
            if let Some(client) = replaced
                && client != bid.client
            {
                ledger.uncount_later(client, bid.id);
            }
        }
        pending.is_open = false;
        Ok(match reply {
            Reply::Won(_) => Claim::Won(ledger.win(bid, pending.number, lapses)),
            Reply::Replay(answer) => Claim::Replay(steps::read_answer(bid.id, &answer)?),
            Reply::InFlight(owner) => Claim::InFlight(ledger.watches.join(bid.id, owner)),
            Reply::Mismatch(mismatch) => Claim::Mismatch(mismatch),
            Reply::Unknown => Claim::Unknown,
            Reply::Tombstone => Claim::Tombstone,
            Reply::ScopeFull(no_sooner) => Claim::ScopeFull { no_sooner },
            Reply::ClientFull => Claim::ClientFull {
                limit: ledger
                    .max_keys_per_client()
                    .map_or(0, |most| most.get().into()),
                no_sooner: full.unwrap_or_default(),
            },
            Reply::CalledOff => return Err(StoreError::new("the claim was called off")),
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

    /// Ends a claim as it is said, at once if possible; those who wait here are told at once in any case.
    async fn end(&self, permit: Permit, idle: Idle, ending: Ending) -> Result<(), StoreError> {
        // Held until Redis knows: whoever drops this leaves the key unknown.
        let ticket = *permit.ticket();
        let concluded = self.ledger.conclude(&self.link, &ticket, idle).await;
        let _ = permit.redeem();
        if concluded.is_ok() {
            self.ledger.land(&ticket, ending);
        } else {
            // Its lease is let go of when that is over.
            Arc::clone(&self.ledger).conclude_later(ticket, idle, None);
            self.ledger.flights.land(&ticket, ending);
        }
        concluded
    }

    /// Stores the record of an execution. Retries until it is stored or its claim has lapsed.
    async fn record(&self, ticket: &Ticket, kept: &Kept) -> Result<(), StoreError> {
        let ledger = &self.ledger;
        let token = ledger.token(ticket.token);
        let counted = ledger.max_keys_per_client().is_some();
        let call = steps::settle(&ledger.names(), ticket, token, Some(kept), counted);
        let mut attempts = Attempts::default();
        loop {
            let why = match self.link.run::<bool>(&call).await {
                Ok(true) => {
                    let (bid, keep) = (&ticket.bid, Some(ticket.bid.terms.ttl));
                    let (replicated, ()) = tokio::join!(
                        self.replicated(bid.id),
                        ledger.recount(&self.link, bid.client, bid.id, keep),
                    );
                    match replicated {
                        Ok(()) => return Ok(()),
                        Err(error) => error,
                    }
                }
                Ok(false) => return Err(StoreError::new("its key is somebody else's by now")),
                Err(failure) => failure.into(),
            };
            if ledger.has_lapsed(ticket) {
                return Err(why);
            }
            attempts.pause().await;
        }
    }
}

impl Records for RedisRecords {
    async fn claim(&self, bid: &Bid) -> Result<Claim, StoreError> {
        match self.ledger.flights.meet(bid) {
            Some(claim) => Ok(claim),
            None => self.bid(bid, self.ledger.pending(bid.id)).await,
        }
    }

    async fn complete(&self, permit: Permit, kept: Kept) -> Result<(), StoreError> {
        // Held until it is recorded: whoever drops this leaves the key unknown.
        let ticket = *permit.ticket();
        let recorded = self.record(&ticket, &kept).await;
        let _ = permit.redeem();
        let ending = match (&recorded, kept) {
            (Ok(()), Kept::Answer(answer)) => Ending::Completed(answer),
            (Ok(()), Kept::Tombstone) => Ending::Tombstone,
            (Err(_), _) => Ending::Unknown,
        };
        self.ledger.land(&ticket, ending);
        recorded
    }

    async fn release(&self, permit: Permit, answer: Option<Arc<Answer>>) -> Result<(), StoreError> {
        let ending = Ending::Released(answer);
        self.end(permit, Idle::Released, ending).await
    }

    async fn mark_unknown(&self, permit: Permit) -> Result<(), StoreError> {
        self.end(permit, Idle::Unknown, Ending::Unknown).await
    }

    async fn find(
        &self,
        key: KeyHash,
        scope: Option<ScopeHash>,
        most: usize,
    ) -> Result<Vec<Finding>, StoreError> {
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

    async fn response(&self, id: RecordId) -> Result<Option<Arc<Answer>>, StoreError> {
        scan::response(&self.link, &self.ledger.names(), id).await
    }

    async fn free_unknown(&self, id: RecordId) -> Result<bool, StoreError> {
        // The lease of a claim of this gateway may have lapsed while its execution runs.
        if self.ledger.flights.is_flying(id) {
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

    fn census(&self) -> Census {
        Census {
            in_progress: self.ledger.flights.len(),
            ..Census::default()
        }
    }
}

impl RedisRecords {
    /// How much there is in all of Redis. Looks at every record, so not to be asked often.
    pub async fn count(&self) -> Result<Census, StoreError> {
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
