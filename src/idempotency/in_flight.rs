//! Execution in flight, and the duplicate requests that wait for it.
//!
//! The end of the execution wakes all waiters. A waiter can be dropped at any time. The channel is created for the
//! first duplicate, because nearly all executions have none.

use tokio::sync::watch;

use super::claim::RecordView;
use super::{ClaimToken, ExecutionOutcome};
use crate::clock::Moment;

/// Execution in flight in this process.
#[derive(Debug)]
pub(crate) struct InFlightExecution {
    /// Claim of the execution.
    pub token: ClaimToken,
    /// Time of the claim.
    pub since: Moment,
    /// `None` until the first duplicate arrives.
    waiters: Option<Waiters>,
}

/// Sender of the outcome to all requests that wait for an execution in this process or on another gateway.
#[derive(Debug)]
pub(crate) struct Waiters(watch::Sender<Option<ExecutionOutcome>>);

/// Receiver of the outcome, for one request that waits for an execution.
#[derive(Debug)]
pub struct Waiter(watch::Receiver<Option<ExecutionOutcome>>);

impl InFlightExecution {
    /// Creates an execution that started at `since` and has no waiters.
    pub(crate) fn new(token: ClaimToken, since: Moment) -> Self {
        Self {
            token,
            since,
            waiters: None,
        }
    }

    /// Adds a waiter, which receives the outcome of the execution.
    pub(crate) fn join(&mut self) -> Waiter {
        self.waiters.get_or_insert_default().join()
    }

    /// Returns the data that decides other claims on the key. A claim in this process has no lease.
    pub(crate) fn view(&self) -> RecordView<'_, Moment> {
        RecordView::in_progress(&self.token.request.fingerprint)
    }

    /// Ends the execution and passes the outcome to its waiters.
    pub(crate) fn end(self, outcome: ExecutionOutcome) {
        if let Some(waiters) = self.waiters {
            waiters.end(outcome);
        }
    }
}

impl Waiters {
    pub(crate) fn join(&self) -> Waiter {
        Waiter(self.0.subscribe())
    }

    /// Returns whether no request is waiting.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.receiver_count() == 0
    }

    /// Passes the outcome to all waiters.
    pub(crate) fn end(self, outcome: ExecutionOutcome) {
        self.0.send_replace(Some(outcome));
    }
}

impl Default for Waiters {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl Waiter {
    /// Waits for the end of the execution and returns its outcome.
    pub async fn ended(mut self) -> ExecutionOutcome {
        match self.0.wait_for(Option::is_some).await {
            Ok(outcome) => outcome
                .clone()
                .expect("wait_for returns only a value that is set"),
            // The store was dropped before it sent an outcome.
            Err(_) => ExecutionOutcome::Unknown,
        }
    }
}
