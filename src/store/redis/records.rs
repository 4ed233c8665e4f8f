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

mod leases;
mod names;
mod scan;
mod steps;
mod watches;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use self::leases::Leases;
use self::names::{Names, Token};
use self::steps::Reply;
use self::watches::Watches;
use super::Redis;
use super::breaker::Part;
use super::core::Core;
use super::link::{Failure, Link};
use crate::clock::Moment;
use crate::idempotency::{
    Answer, Bid, Census, Claim, Desk, Ending, Finding, Flight, Kept, KeyHash, Permit, RecordId,
    Records, ScopeHash, StoreError, Ticket,
};
use crate::store::flights::Flights;

/// Between two attempts to record something: so long at first, and twice as long every time.
const SOONEST: Duration = Duration::from_millis(20);

/// And never longer.
const LATEST: Duration = Duration::from_millis(500);

/// All records of a fleet, as one gateway sees them. A clone has a connection of its own.
pub struct RedisRecords {
    link: Link,
    /// For waiting until replicas have what was written.
    witness: Link,
    ledger: Arc<Ledger>,
    /// Looks after the Redis for as long as there are records.
    redis: Redis,
}

/// What this gateway has to do with the records.
struct Ledger {
    myself: Weak<Ledger>,
    gateway: u64,
    numbers: AtomicU64,
    flights: Flights,
    leases: Leases,
    watches: Watches,
    /// For what is not done for a request.
    background: Link,
}

/// A claim that was asked for and not answered. If it is dropped, it is called off.
struct Pending<'a> {
    ledger: &'a Arc<Ledger>,
    id: RecordId,
    number: u64,
    is_open: bool,
}

/// How a claim ends that comes to nothing, or to nothing that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Idle {
    Released,
    Unknown,
}

impl RedisRecords {
    /// The records in `redis`.
    pub(super) fn new(redis: Redis) -> Self {
        let core = &redis.0.core;
        let ledger = Arc::new_cyclic(|myself| Ledger {
            myself: Weak::clone(myself),
            gateway: draw(),
            numbers: AtomicU64::new(0),
            flights: Flights::default(),
            leases: Leases::default(),
            watches: Watches::default(),
            background: redis.link(),
        });
        core.keep_doing(leases::renew(Arc::downgrade(&ledger), core.settings.lease));
        core.keep_doing(watches::look(Arc::downgrade(&ledger)));
        core.keep_doing(watches::listen(Arc::downgrade(&ledger)));
        Self {
            link: redis.link(),
            witness: redis.link(),
            ledger,
            redis,
        }
    }

    /// Returns when nothing is left to be told to Redis of what was dropped.
    pub async fn settled(&self) {
        while !self.ledger.core().loose_ends.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Asks for the claim of `bid`, which is `pending` until there is an answer.
    async fn bid(&self, bid: &Bid, mut pending: Pending<'_>) -> Result<Claim, StoreError> {
        let ledger = &self.ledger;
        let lease = ledger.core().settings.lease;
        let token = ledger.token(pending.number);
        let call = steps::claim(&ledger.names(), bid, token, lease);
        // Before Redis is asked, so that the lease is over here no later than there.
        let lapses = ledger.core().clock.now().after(lease);
        let reply = match self.link.ask::<Reply>(Part::Records, &call).await {
            Ok(reply) => reply,
            Err(failure) => {
                // In these cases it was not asked, or said no.
                pending.is_open = !matches!(failure, Failure::Down(_) | Failure::Full(_));
                return match failure {
                    Failure::Full(why) => {
                        tracing::debug!(%why, "a key was refused");
                        Ok(Claim::StoreFull)
                    }
                    failure => Err(failure.into()),
                };
            }
        };
        if let Reply::Won = reply {
            self.replicated(bid.id).await?;
        }
        pending.is_open = false;
        Ok(match reply {
            Reply::Won => Claim::Won(ledger.win(bid, pending.number, lapses)),
            Reply::Replay(answer) => Claim::Replay(steps::read_answer(bid.id, &answer)?),
            Reply::InFlight(owner) => Claim::InFlight(ledger.watches.join(bid.id, owner)),
            Reply::Mismatch => Claim::Mismatch,
            Reply::Unknown => Claim::Unknown,
            Reply::Tombstone => Claim::Tombstone,
            Reply::ScopeFull(no_sooner) => Claim::ScopeFull { no_sooner },
            Reply::CalledOff => return Err(StoreError::new("the claim was called off")),
        })
    }

    /// Waits until as many replicas have what was written of `id` as are to have it.
    async fn replicated(&self, id: RecordId) -> Result<(), StoreError> {
        let Some(wanted) = self.ledger.core().settings.wait_replicas else {
            return Ok(());
        };
        let name = self.ledger.names().witness(id.scope);
        let have = self.witness.replicas(&name, wanted).await;
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

    /// Records what was kept, until it is recorded or its claim has lapsed.
    async fn record(&self, ticket: &Ticket, kept: &Kept) -> Result<(), StoreError> {
        let ledger = &self.ledger;
        let token = ledger.token(ticket.token);
        let call = steps::settle(&ledger.names(), ticket, token, Some(kept));
        let mut pause = SOONEST;
        loop {
            let why = match self.link.ask::<bool>(Part::Records, &call).await {
                Ok(true) => match self.replicated(ticket.bid.id).await {
                    Ok(()) => return Ok(()),
                    Err(error) => error,
                },
                Ok(false) => return Err(StoreError::new("its key is somebody else's by now")),
                Err(failure) => failure.into(),
            };
            if ledger.has_lapsed(ticket) {
                return Err(why);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LATEST);
        }
    }
}

impl Ledger {
    fn core(&self) -> &Core {
        self.background.core()
    }

    fn names(&self) -> Names<'_> {
        Names {
            prefix: &self.core().settings.prefix,
        }
    }

    fn token(&self, number: u64) -> Token {
        Token {
            gateway: self.gateway,
            number,
        }
    }

    fn pending(self: &Arc<Self>, id: RecordId) -> Pending<'_> {
        Pending {
            ledger: self,
            id,
            number: self.numbers.fetch_add(1, Ordering::Relaxed),
            is_open: true,
        }
    }

    fn win(self: &Arc<Self>, bid: &Bid, number: u64, lapses: Moment) -> Permit {
        let ticket = Ticket {
            bid: *bid,
            token: number,
        };
        self.leases.hold(&ticket, lapses);
        self.flights.take_off(Flight::new(ticket, bid.at));
        let desk: Arc<dyn Desk> = Arc::<Self>::clone(self);
        Permit::new(ticket, desk).lapsing(lapses)
    }

    /// An execution is over, and all who wait for it here are told how it ended.
    fn land(&self, ticket: &Ticket, ending: Ending) {
        self.leases.let_go(ticket);
        let token = self.token(ticket.token);
        self.watches.end(ticket.bid.id, token, &ending);
        self.flights.land(ticket, ending);
    }

    fn has_lapsed(&self, ticket: &Ticket) -> bool {
        let lapses = self.leases.lapses(ticket);
        lapses.is_none_or(|lapses| self.core().clock.now() >= lapses)
    }

    /// Ends a claim in Redis.
    async fn conclude(&self, link: &Link, ticket: &Ticket, idle: Idle) -> Result<(), StoreError> {
        let token = self.token(ticket.token);
        let call = match idle {
            Idle::Released => steps::release(&self.names(), ticket.bid.id, token, false),
            Idle::Unknown => steps::settle(&self.names(), ticket, token, None),
        };
        let concluded = link.ask::<bool>(Part::Records, &call).await;
        Ok(concluded.map(|_| ())?)
    }

    /// Ends a claim in Redis behind the requests; if that cannot be done in its time, it lapses.
    fn conclude_later(self: Arc<Self>, ticket: Ticket, idle: Idle, then: Option<Ending>) {
        let ledger = Arc::clone(&self);
        self.core().finish_later(async move {
            let mut pause = SOONEST;
            while ledger
                .conclude(&ledger.background, &ticket, idle)
                .await
                .is_err()
                && !ledger.has_lapsed(&ticket)
            {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LATEST);
            }
            ledger.leases.let_go(&ticket);
            if let Some(ending) = then {
                ledger.land(&ticket, ending);
            }
        });
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

    async fn free_unknown(&self, id: RecordId) -> Result<bool, StoreError> {
        // A claim of our own may have lapsed without being given up.
        if self.ledger.flights.is_flying(id) {
            return Ok(false);
        }
        let call = steps::free(&self.ledger.names(), id);
        let freed = self.link.ask(Part::Records, &call).await;
        Ok(freed?)
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

impl Desk for Ledger {
    fn abandoned(&self, ticket: Ticket, sent: bool) {
        let Some(ledger) = self.myself.upgrade() else {
            return;
        };
        if sent {
            ledger.conclude_later(ticket, Idle::Unknown, Some(Ending::Unknown));
        } else {
            ledger.conclude_later(ticket, Idle::Released, Some(Ending::Released(None)));
        }
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let (ledger, id, number) = (Arc::clone(self.ledger), self.id, self.number);
        let ends = ledger
            .core()
            .clock
            .now()
            .after(ledger.core().settings.lease);
        self.ledger.core().finish_later(async move {
            let token = ledger.token(number);
            let mut pause = SOONEST;
            loop {
                let call = steps::release(&ledger.names(), id, token, true);
                let released = ledger.background.ask::<bool>(Part::Records, &call).await;
                // What is not called off by then lapses, and its key is unknown.
                if released.is_ok() || ledger.core().clock.now() >= ends {
                    break;
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LATEST);
            }
        });
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

/// A number that nobody else draws.
fn draw() -> u64 {
    getrandom::u64().expect("the system gives random numbers")
}
