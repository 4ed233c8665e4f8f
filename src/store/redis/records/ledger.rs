//! What this gateway has underway in Redis, and how it comes to an end there.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::super::client::{Client, ClientState};
use super::clients::Counted;
use super::leases::Leases;
use super::names::{Names, Token};
use super::steps;
use super::watches::Watches;
use crate::clock::Moment;
use crate::idempotency::{
    Bid, ClientHash, Desk, Ending, Flight, Permit, RecordId, StoreError, Ticket,
};
use crate::store::flights::Flights;

/// Between two attempts to record something: so long at first, and twice as long every time.
const SOONEST: Duration = Duration::from_millis(20);

/// And never longer.
const LATEST: Duration = Duration::from_millis(500);

/// What this gateway has to do with the records.
pub(super) struct Ledger {
    myself: Weak<Ledger>,
    gateway: u64,
    numbers: AtomicU64,
    pub(super) flights: Flights,
    pub(super) leases: Leases,
    pub(super) watches: Watches,
    /// For what is not done for a request.
    pub(super) background: Client,
}

/// A claim whose reply is outstanding. When it is dropped, it is cancelled, and its key is counted no longer.
pub(super) struct Pending<'a> {
    ledger: &'a Arc<Ledger>,
    id: RecordId,
    pub(super) number: u64,
    /// Whether Redis may have stored the claim.
    pub(super) is_open: bool,
    /// The key, if it may be counted for the claim.
    pub(super) counted: Option<Counted>,
}

/// How a claim ends that comes to nothing, or to nothing that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Idle {
    Released,
    Unknown,
}

/// Attempts at something that is to be done in the end, further and further apart.
pub(super) struct Attempts {
    pause: Duration,
}

impl Default for Attempts {
    fn default() -> Self {
        Self { pause: SOONEST }
    }
}

impl Attempts {
    /// Waits before the next one.
    pub(super) async fn pause(&mut self) {
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LATEST);
    }
}

impl Ledger {
    /// Of a gateway that has nothing underway yet; `background` is for what is not done for a request.
    pub(super) fn new(background: Client) -> Arc<Self> {
        Arc::new_cyclic(|myself| Self {
            myself: Weak::clone(myself),
            gateway: draw(),
            numbers: AtomicU64::new(0),
            flights: Flights::default(),
            leases: Leases::default(),
            watches: Watches::default(),
            background,
        })
    }

    pub(super) fn core(&self) -> &ClientState {
        self.background.state()
    }

    pub(super) fn names(&self) -> Names<'_> {
        Names {
            prefix: &self.core().settings.prefix,
        }
    }

    /// Returns how many keys a client may have, if that is bounded.
    pub(super) fn max_keys_per_client(&self) -> Option<NonZeroU32> {
        self.core().settings.max_keys_per_client
    }

    /// Counts a key no longer for a client whose record another client has replaced.
    pub(super) fn uncount_later(self: &Arc<Self>, client: ClientHash, id: RecordId) {
        if self.max_keys_per_client().is_some() {
            let ledger = Arc::clone(self);
            self.core().spawn_tracked(async move {
                ledger.recount(&ledger.background, client, id, None).await;
            });
        }
    }

    pub(super) fn token(&self, number: u64) -> Token {
        Token {
            gateway: self.gateway,
            number,
        }
    }

    pub(super) fn pending(self: &Arc<Self>, id: RecordId) -> Pending<'_> {
        Pending {
            ledger: self,
            id,
            number: self.numbers.fetch_add(1, Ordering::Relaxed),
            is_open: true,
            counted: None,
        }
    }

    pub(super) fn win(self: &Arc<Self>, bid: &Bid, number: u64, lapses: Moment) -> Permit {
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
    pub(super) fn land(&self, ticket: &Ticket, ending: Ending) {
        self.leases.let_go(ticket);
        let token = self.token(ticket.token);
        self.watches.end(ticket.bid.id, token, &ending);
        self.flights.land(ticket, ending);
    }

    pub(super) fn has_lapsed(&self, ticket: &Ticket) -> bool {
        let lapses = self.leases.lapses(ticket);
        lapses.is_none_or(|lapses| self.core().clock.now() >= lapses)
    }

    /// Ends a claim in Redis without a response.
    pub(super) async fn conclude(
        &self,
        link: &Client,
        ticket: &Ticket,
        idle: Idle,
    ) -> Result<(), StoreError> {
        let token = self.token(ticket.token);
        let call = match idle {
            Idle::Released => steps::release(&self.names(), ticket.bid.id, token, false),
            Idle::Unknown => {
                let counted = self.max_keys_per_client().is_some();
                steps::settle(&self.names(), ticket, token, None, counted)
            }
        };
        let (bid, keep) = match idle {
            Idle::Released => (&ticket.bid, None),
            Idle::Unknown => (&ticket.bid, Some(ticket.bid.terms.ttl)),
        };
        let (concluded, ()) = tokio::join!(
            link.run::<bool>(&call),
            self.recount(link, bid.client, bid.id, keep),
        );
        Ok(concluded.map(|_| ())?)
    }

    /// Ends a claim in Redis behind the requests; if that cannot be done in its time, it lapses.
    pub(super) fn conclude_later(
        self: Arc<Self>,
        ticket: Ticket,
        idle: Idle,
        then: Option<Ending>,
    ) {
        let ledger = Arc::clone(&self);
        self.core().spawn_tracked(async move {
            let mut attempts = Attempts::default();
            let conclude = async || ledger.conclude(&ledger.background, &ticket, idle).await;
            while conclude().await.is_err() && !ledger.has_lapsed(&ticket) {
                attempts.pause().await;
            }
            ledger.leases.let_go(&ticket);
            if let Some(ending) = then {
                ledger.land(&ticket, ending);
            }
        });
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
        let (mut is_open, counted) = (self.is_open, self.counted);
        if !is_open && counted.is_none() {
            return;
        }
        let (ledger, id, number) = (Arc::clone(self.ledger), self.id, self.number);
        let ends = ledger
            .core()
            .clock
            .now()
            .after(ledger.core().settings.lease);
        self.ledger.core().spawn_tracked(async move {
            let token = ledger.token(number);
            let mut attempts = Attempts::default();
            while is_open {
                let call = steps::release(&ledger.names(), id, token, true);
                let released = ledger.background.run::<bool>(&call).await;
                // A claim that is not cancelled by then lapses, and its key is unknown.
                is_open = released.is_err() && ledger.core().clock.now() < ends;
                if is_open {
                    attempts.pause().await;
                }
            }
            if let Some(counted) = counted {
                ledger.discount(counted).await;
            }
        });
    }
}

/// A number that nobody else draws.
fn draw() -> u64 {
    getrandom::u64().expect("the system gives random numbers")
}
