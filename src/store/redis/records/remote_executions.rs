//! Executions on other gateways that requests of this gateway wait for.
//!
//! If a claim finds an execution in flight, the claim script sets a field in the idempotency record. Because of this
//! field, the script that later ends the execution publishes a message. A message can be lost when a connection is
//! closed or a gateway crashes, and the Redis user can lack the permission for the channel. So the gateway also polls
//! these records every 250 ms.

use std::collections::HashMap;
use std::sync::Weak;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::calls::{self, ReadReply};
use super::claims::GatewayClaims;
use super::names::OwnerToken;
use crate::idempotency::{ExecutionOutcome, RecordId, RecordState, Waiter, Waiters};
use crate::store::Part;

/// Interval between two polls of the records that requests wait for.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Pause after a subscription has failed or ended, before the next attempt to subscribe.
const SUBSCRIBE_PAUSE: Duration = Duration::from_secs(1);

/// How long the gateway waits for a message before it subscribes again. A connection can stop delivering messages
/// without an error, for example after a failover.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// Executions on other gateways, with the requests of this gateway that wait for them.
#[derive(Debug, Default)]
pub(super) struct RemoteExecutions(Mutex<HashMap<RecordId, RemoteExecution>>);

#[derive(Debug)]
struct RemoteExecution {
    owner: OwnerToken,
    waiters: Waiters,
}

impl RemoteExecutions {
    /// Adds a waiter for the execution that belongs to the claim `owner` of the record `id`.
    pub(super) fn join(&self, id: RecordId, owner: OwnerToken) -> Waiter {
        let mut executions = self.0.lock();
        match executions.get(&id) {
            Some(execution) if execution.owner == owner => execution.waiters.join(),
            _ => {
                let waiters = Waiters::default();
                let waiter = waiters.join();
                let earlier = executions.insert(id, RemoteExecution { owner, waiters });
                if let Some(earlier) = earlier {
                    // A new claim of the same idempotency key was won. So the earlier claim no longer has a record, and
                    // its outcome will not arrive.
                    earlier.waiters.end(ExecutionOutcome::Released(None));
                }
                waiter
            }
        }
    }

    /// Passes `outcome` to the requests that wait for the execution of the claim `owner`.
    pub(super) fn end(&self, id: RecordId, owner: OwnerToken, outcome: &ExecutionOutcome) {
        let mut executions = self.0.lock();
        if executions
            .get(&id)
            .is_some_and(|execution| execution.owner == owner)
            && let Some(execution) = executions.remove(&id)
        {
            execution.waiters.end(outcome.clone());
        }
    }

    /// Returns the executions that requests still wait for, and removes the others.
    fn awaited(&self) -> Vec<(RecordId, OwnerToken)> {
        let mut executions = self.0.lock();
        executions.retain(|_, execution| !execution.waiters.is_empty());
        executions
            .iter()
            .map(|(&id, execution)| (id, execution.owner))
            .collect()
    }

    fn owner(&self, id: RecordId) -> Option<OwnerToken> {
        self.0.lock().get(&id).map(|execution| execution.owner)
    }
}

/// Polls the records of all remote executions every 250 ms, until `claims` is dropped.
pub(super) async fn poll(claims: Weak<GatewayClaims>) {
    let mut ticks = interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(claims) = claims.upgrade() else {
            return;
        };
        for (id, owner) in claims.remote.awaited() {
            check(&claims, id, owner).await;
        }
    }
}

/// Receives the messages about ended executions and reads their records, until `claims` is dropped.
pub(super) async fn receive_messages(claims: Weak<GatewayClaims>) {
    loop {
        let Some(subscription) = subscribe(&claims).await else {
            return;
        };
        if let Some(mut messages) = subscription {
            while let Ok(Some(name)) = timeout(SILENCE_TIMEOUT, messages.next()).await {
                let Some(claims) = claims.upgrade() else {
                    return;
                };
                let id = RecordId::from_bytes(&name);
                if let Some(owner) = claims.remote.owner(id) {
                    check(&claims, id, owner).await;
                }
            }
        }
        tokio::time::sleep(SUBSCRIBE_PAUSE).await;
    }
}

/// Subscribes to the ids of records whose execution has ended. Returns `Some(None)` if the subscription fails, and
/// `None` if `claims` is dropped.
async fn subscribe(claims: &Weak<GatewayClaims>) -> Option<Option<BoxStream<'static, [u8; 32]>>> {
    let claims = claims.upgrade()?;
    let state = claims.state();
    if state.breaker(Part::Records).is_open() {
        return Some(None);
    }
    let messages = match state.endpoint.subscribe(&claims.names().channel()).await {
        Ok(messages) => messages,
        Err(error) => {
            tracing::debug!(
                %error,
                "cannot subscribe to Redis channel of idempotency records, polling these records every 250 ms"
            );
            return Some(None);
        }
    };
    let names = messages.filter_map(async |message| {
        let name: Vec<u8> = message.get_payload().ok()?;
        <[u8; 32]>::try_from(name).ok()
    });
    Some(Some(names.boxed()))
}

/// Reads the record of `id`. If its execution has ended, passes the outcome to the requests that wait for it.
async fn check(claims: &GatewayClaims, id: RecordId, owner: OwnerToken) {
    let call = calls::read(&claims.names(), id);
    let Ok(ReadReply(record)) = claims.background.run(&call).await else {
        return;
    };
    let outcome = match record {
        // Redis has no record, so the execution ended without one.
        None => ExecutionOutcome::Released(None),
        // The record belongs to a later claim, possibly for another request. The waiting requests must not receive its
        // outcome.
        Some(record) if record.owner != owner => ExecutionOutcome::Released(None),
        Some(record) => match (record.state, record.response) {
            (RecordState::InProgress, _) => return,
            (RecordState::Tombstone, _) => ExecutionOutcome::Tombstone,
            (RecordState::Completed, Some(response)) => match calls::decode_response(id, &response)
            {
                Ok(response) => ExecutionOutcome::Completed(response),
                Err(error) => {
                    tracing::error!(
                        key = %id.key,
                        %error,
                        "cannot decode response of idempotency key from Redis, duplicate requests are rejected"
                    );
                    ExecutionOutcome::Tombstone
                }
            },
            (RecordState::Completed, None) | (RecordState::Unknown, _) => ExecutionOutcome::Unknown,
        },
    };
    claims.remote.end(id, owner, &outcome);
}
