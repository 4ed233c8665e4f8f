//! Executions on other gateways that requests of this gateway wait for. A task for each of them polls its record.
//!
//! The polls stop when no request waits any more: 4 reads per second for each key, after a few quicker ones, and fewer
//! above 500 keys, so that a gateway makes about 2,000 reads per second at most. Redis could publish the outcome
//! instead. That saves at most [`LONGEST_POLL`], but a message can be lost, so the records would be polled too.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::sleep;

use super::calls::{self, ReadReply};
use super::claims::GatewayClaims;
use super::names::OwnerToken;
use crate::idempotency::{ExecutionOutcome, RecordId, RecordState, Waiter, Waiters};

/// It doubles with each further poll.
const FIRST_POLL: Duration = Duration::from_millis(20);

const LONGEST_POLL: Duration = Duration::from_millis(250);

/// Pause per awaited key between two polls of one of them.
const POLL_SPACING: Duration = Duration::from_micros(500);

#[derive(Debug, Default)]
pub(super) struct RemoteExecutions(Mutex<HashMap<RecordId, RemoteExecution>>);

#[derive(Debug)]
struct RemoteExecution {
    owner: OwnerToken,
    waiters: Waiters,
}

impl RemoteExecutions {
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

    fn spacing(&self) -> Duration {
        let awaited = u32::try_from(self.0.lock().len()).unwrap_or(u32::MAX);
        POLL_SPACING.saturating_mul(awaited)
    }

    /// Forgets an execution without waiters.
    fn is_awaited(&self, id: RecordId, owner: OwnerToken) -> bool {
        let mut executions = self.0.lock();
        match executions.get(&id) {
            Some(execution) if execution.owner != owner => false,
            Some(execution) if execution.waiters.is_empty() => {
                executions.remove(&id);
                false
            }
            known => known.is_some(),
        }
    }
}

impl GatewayClaims {
    /// Adds a waiter for the claim `owner` of another gateway.
    pub(super) fn join(self: &Arc<Self>, id: RecordId, owner: OwnerToken) -> Waiter {
        let mut executions = self.remote.0.lock();
        match executions.get(&id) {
            Some(execution) if execution.owner == owner => execution.waiters.join(),
            _ => {
                let waiters = Waiters::default();
                let waiter = waiters.join();
                let earlier = executions.insert(id, RemoteExecution { owner, waiters });
                if let Some(earlier) = earlier {
                    // A new claim was won, so the earlier claim has no record any more, and its outcome will not
                    // arrive.
                    earlier.waiters.end(ExecutionOutcome::Released(None));
                }
                self.state().spawn(poll(Arc::downgrade(self), id, owner));
                waiter
            }
        }
    }
}

async fn poll(claims: Weak<GatewayClaims>, id: RecordId, owner: OwnerToken) {
    let mut pause = FIRST_POLL;
    loop {
        let Some(spacing) = claims.upgrade().map(|claims| claims.remote.spacing()) else {
            return;
        };
        sleep(pause.max(spacing)).await;
        pause = (pause * 2).min(LONGEST_POLL);
        let Some(claims) = claims.upgrade() else {
            return;
        };
        if !claims.remote.is_awaited(id, owner) {
            return;
        }
        if let Some(outcome) = read_outcome(&claims, id, owner).await {
            claims.remote.end(id, owner, &outcome);
        }
    }
}

/// Returns `None` while the execution runs, and if the record cannot be read.
async fn read_outcome(
    claims: &GatewayClaims,
    id: RecordId,
    owner: OwnerToken,
) -> Option<ExecutionOutcome> {
    let call = calls::read(&claims.names(), id, calls::WHOLE_RESPONSE);
    let ReadReply(record) = claims.background.run(&call).await.ok()?;
    // The execution ended without a record. A record with another owner belongs to a later claim, possibly for another
    // request.
    let Some(record) = record.filter(|record| record.owner == owner) else {
        return Some(ExecutionOutcome::Released(None));
    };
    match (record.state, record.response) {
        (RecordState::InProgress, _) => None,
        (RecordState::Tombstone, _) => Some(ExecutionOutcome::Tombstone),
        (RecordState::Completed, Some(response)) => {
            Some(match calls::decode_response(id, &response) {
                Ok(response) => ExecutionOutcome::Completed(response),
                Err(error) => {
                    tracing::error!(
                        key = %id.key,
                        %error,
                        "cannot decode response of idempotency key from Redis, duplicate requests are rejected"
                    );
                    ExecutionOutcome::Tombstone
                }
            })
        }
        (RecordState::Completed, None) | (RecordState::Unknown, _) => {
            Some(ExecutionOutcome::Unknown)
        }
    }
}
