//! Executions on other gateways that requests here wait for.
//!
//! A request that waits leaves a note in the record, and the script that ends the execution then publishes a message.
//! Messages can be lost with a connection or with a gateway, and the Redis user may have no right to the channel.
//! So all records that requests wait for are also polled every 250 ms.

use std::collections::HashMap;
use std::sync::Weak;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::ledger::Ledger;
use super::names::OwnerToken;
use super::steps::{self, Peek};
use crate::idempotency::{ExecutionOutcome, RecordId, RecordState, Waiter, Waiters};
use crate::store::Part;

/// Interval between two polls of all records that requests wait for.
const LOOK: Duration = Duration::from_millis(250);

/// Between two attempts to hear what Redis tells.
const SUBSCRIBE_AGAIN: Duration = Duration::from_secs(1);

/// How long nothing may be heard before that is taken for being deaf: whoever told may have moved.
const SUBSCRIPTION: Duration = Duration::from_secs(30);

/// Executions elsewhere that somebody here waits for.
#[derive(Debug, Default)]
pub(super) struct Watches(Mutex<HashMap<RecordId, Watch>>);

#[derive(Debug)]
struct Watch {
    owner: OwnerToken,
    waiters: Waiters,
}

impl Watches {
    /// One more who waits for the claim `owner`.
    pub(super) fn join(&self, id: RecordId, owner: OwnerToken) -> Waiter {
        let mut watches = self.0.lock();
        match watches.get(&id) {
            Some(watch) if watch.owner == owner => watch.waiters.join(),
            _ => {
                let waiters = Waiters::default();
                let waiter = waiters.join();
                let earlier = watches.insert(id, Watch { owner, waiters });
                if let Some(earlier) = earlier {
                    // Somebody claimed the key anew, so the claim before it left nothing.
                    earlier.waiters.end(ExecutionOutcome::Released(None));
                }
                waiter
            }
        }
    }

    /// Tells those who wait for the claim `owner` how it ended.
    pub(super) fn end(&self, id: RecordId, owner: OwnerToken, outcome: &ExecutionOutcome) {
        let mut watches = self.0.lock();
        if watches.get(&id).is_some_and(|watch| watch.owner == owner)
            && let Some(watch) = watches.remove(&id)
        {
            watch.waiters.end(outcome.clone());
        }
    }

    /// All that somebody still waits for.
    fn open(&self) -> Vec<(RecordId, OwnerToken)> {
        let mut watches = self.0.lock();
        watches.retain(|_, watch| !watch.waiters.is_empty());
        watches
            .iter()
            .map(|(&id, watch)| (id, watch.owner))
            .collect()
    }

    fn owner(&self, id: RecordId) -> Option<OwnerToken> {
        self.0.lock().get(&id).map(|watch| watch.owner)
    }
}

/// Looks at all of them now and then, while there is a ledger.
pub(super) async fn look(ledger: Weak<Ledger>) {
    let mut looks = interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        let Some(ledger) = ledger.upgrade() else {
            return;
        };
        for (id, owner) in ledger.watches.open() {
            look_at(&ledger, id, owner).await;
        }
    }
}

/// Listens to what Redis tells of them, while there is a ledger.
pub(super) async fn listen(ledger: Weak<Ledger>) {
    loop {
        let Some(subscription) = subscribe(&ledger).await else {
            return;
        };
        if let Some(mut told) = subscription {
            while let Ok(Some(name)) = timeout(SUBSCRIPTION, told.next()).await {
                let Some(ledger) = ledger.upgrade() else {
                    return;
                };
                let id = RecordId::from_bytes(&name);
                if let Some(owner) = ledger.watches.owner(id) {
                    look_at(&ledger, id, owner).await;
                }
            }
        }
        tokio::time::sleep(SUBSCRIBE_AGAIN).await;
    }
}

/// The names of records that Redis tells of, or nothing if it cannot be heard, or not even that if there is
/// no ledger any more.
async fn subscribe(ledger: &Weak<Ledger>) -> Option<Option<BoxStream<'static, [u8; 32]>>> {
    let ledger = ledger.upgrade()?;
    let core = ledger.core();
    if core.breaker(Part::Records).is_open() {
        return Some(None);
    }
    let told = match core.endpoint.subscribe(&ledger.names().channel()).await {
        Ok(told) => told,
        Err(error) => {
            tracing::debug!(%error, "Redis cannot be heard");
            return Some(None);
        }
    };
    let names = told.filter_map(async |message| {
        let name: Vec<u8> = message.get_payload().ok()?;
        <[u8; 32]>::try_from(name).ok()
    });
    Some(Some(names.boxed()))
}

async fn look_at(ledger: &Ledger, id: RecordId, owner: OwnerToken) {
    let call = steps::peek(&ledger.names(), id);
    let Ok(Peek(peeked)) = ledger.background.run(&call).await else {
        return;
    };
    let outcome = match peeked {
        // It left nothing, and somebody else may have claimed the key since.
        None => ExecutionOutcome::Released(None),
        // What it came to is not for those who waited for another, and may have asked for something else.
        Some(peeked) if peeked.owner != owner => ExecutionOutcome::Released(None),
        Some(peeked) => match (peeked.state, peeked.response) {
            (RecordState::InProgress, _) => return,
            (RecordState::Tombstone, _) => ExecutionOutcome::Tombstone,
            (RecordState::Completed, Some(response)) => match steps::read_response(id, &response) {
                Ok(response) => ExecutionOutcome::Completed(response),
                Err(error) => {
                    tracing::error!(%error, "a response is of no use");
                    ExecutionOutcome::Tombstone
                }
            },
            (RecordState::Completed, None) | (RecordState::Unknown, _) => ExecutionOutcome::Unknown,
        },
    };
    ledger.watches.end(id, owner, &outcome);
}
