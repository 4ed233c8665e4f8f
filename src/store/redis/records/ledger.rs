//! Claims of this gateway in Redis: how they begin, and how they end.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::super::client::Client;
use super::super::client::ClientState;
use super::super::script::Call;
use super::clients::Counted;
use super::leases::Leases;
use super::names::{Names, OwnerToken};
use super::steps;
use super::watches::Watches;
use crate::clock::Moment;
use crate::idempotency::{
    ClaimRequest, ClaimToken, ClientHash, ExecutionOutcome, InFlightExecution, OnAbandon, Permit,
    RecordId, StoreError,
};
use crate::store::in_flight::InFlightTable;

/// First pause between two attempts to end a claim. It doubles with each attempt.
const SOONEST: Duration = Duration::from_millis(20);

/// Longest pause between two attempts.
const LATEST: Duration = Duration::from_millis(500);

/// The claims of this gateway, and its requests that wait for other gateways.
pub(super) struct Ledger {
    myself: Weak<Ledger>,
    gateway: u64,
    numbers: AtomicU64,
    pub(super) in_flight: InFlightTable,
    pub(super) leases: Leases,
    pub(super) watches: Watches,
    /// The connection for work that no request waits for.
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

/// The pauses between attempts to end a claim.
pub(super) struct Attempts {
    pause: Duration,
}

impl Default for Attempts {
    fn default() -> Self {
        Self { pause: SOONEST }
    }
}

impl Attempts {
    /// Waits before the next attempt.
    pub(super) async fn pause(&mut self) {
        tokio::time::sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LATEST);
    }
}

impl Ledger {
    /// Creates the ledger of a gateway without claims. `background` is for work that no request waits for.
    pub(super) fn new(background: Client) -> Arc<Self> {
        Arc::new_cyclic(|myself| Self {
            myself: Weak::clone(myself),
            gateway: draw(),
            numbers: AtomicU64::new(0),
            in_flight: InFlightTable::default(),
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

    pub(super) fn owner(&self, number: u64) -> OwnerToken {
        OwnerToken {
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

    pub(super) fn win(
        self: &Arc<Self>,
        request: &ClaimRequest,
        number: u64,
        lapses: Moment,
    ) -> Permit {
        let token = ClaimToken {
            request: *request,
            number,
        };
        self.leases.hold(&token, lapses);
        self.in_flight
            .begin(InFlightExecution::new(token, request.at));
        let on_abandon: Arc<dyn OnAbandon> = Arc::<Self>::clone(self);
        Permit::new(token, on_abandon).with_lease_end(lapses)
    }

    /// Ends an execution in this process and passes its outcome to all waiters here.
    pub(super) fn end(&self, token: &ClaimToken, outcome: ExecutionOutcome) {
        self.leases.let_go(token);
        let owner = self.owner(token.number);
        self.watches.end(token.request.id, owner, &outcome);
        self.in_flight.end(token, outcome);
    }

    pub(super) fn has_lapsed(&self, token: &ClaimToken) -> bool {
        let lapses = self.leases.lapses(token);
        lapses.is_none_or(|lapses| self.core().clock.now() >= lapses)
    }

    /// Returns the script call that ends a claim.
    pub(super) fn end_call(&self, token: &ClaimToken, outcome: &ExecutionOutcome) -> Call {
        let (names, owner) = (self.names(), self.owner(token.number));
        match outcome.record() {
            None => steps::release(&names, token.request.id, owner, false),
            Some((state, response)) => {
                let counted = self.max_keys_per_client().is_some();
                steps::settle(
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

    /// Ends a claim of a request that was not executed, or whose outcome is unknown. Makes one attempt.
    pub(super) async fn conclude(
        &self,
        link: &Client,
        token: &ClaimToken,
        outcome: &ExecutionOutcome,
    ) -> Result<(), StoreError> {
        let call = self.end_call(token, outcome);
        let request = &token.request;
        let keep = outcome.record().map(|_| request.settings.ttl);
        let (concluded, ()) = tokio::join!(
            link.run::<bool>(&call),
            self.recount(link, request.client, request.id, keep),
        );
        Ok(concluded.map(|_| ())?)
    }

    /// Ends a claim as [`conclude`](Self::conclude) does, with retries until its lease has ended.
    pub(super) async fn conclude_or_lapse(&self, token: &ClaimToken, outcome: &ExecutionOutcome) {
        let mut attempts = Attempts::default();
        let conclude = async || self.conclude(&self.background, token, outcome).await;
        while conclude().await.is_err() && !self.has_lapsed(token) {
            attempts.pause().await;
        }
    }
}

impl OnAbandon for Ledger {
    fn abandoned(&self, token: ClaimToken, outcome: ExecutionOutcome) {
        let Some(ledger) = self.myself.upgrade() else {
            return;
        };
        self.core().spawn_tracked(async move {
            ledger.conclude_or_lapse(&token, &outcome).await;
            ledger.end(&token, outcome);
        });
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
            let owner = ledger.owner(number);
            let mut attempts = Attempts::default();
            while is_open {
                let call = steps::release(&ledger.names(), id, owner, true);
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

/// Returns a random number that identifies this gateway.
fn draw() -> u64 {
    getrandom::u64().expect("the system gives random numbers")
}
