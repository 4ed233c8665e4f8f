//! Execution of a request in flight, and the duplicate requests that wait for its outcome.
//!
//! When the execution ends, all waiters receive its outcome. A waiter can be dropped at any time. The channel to the
//! waiters is created when the first duplicate request arrives, because nearly all executions have no duplicates.

use tokio::sync::watch;

use super::claim::{RecordView, StateView};
use super::{ClaimToken, ExecutionOutcome};
use crate::clock::Moment;

/// Execution in this process that has not ended yet. Its request has claimed an idempotency key.
#[derive(Debug)]
pub(crate) struct InFlightExecution {
    /// Claim under which the request is executed.
    pub token: ClaimToken,
    /// Time of the claim, on the monotonic clock of this process.
    pub since: Moment,
    /// Channel to the duplicate requests; `None` until the first of them arrives.
    waiters: Option<Waiters>,
}

/// Sender of the outcome of an execution to all requests that wait for it. The execution can run in this process or on
/// another gateway.
#[derive(Debug)]
pub(crate) struct Waiters(watch::Sender<Option<ExecutionOutcome>>);

/// Receiver of the outcome of an execution, for one request that waits for it.
#[derive(Debug)]
pub struct Waiter(watch::Receiver<Option<ExecutionOutcome>>);

impl InFlightExecution {
    /// Creates an execution without waiters. Its request claimed the idempotency key at `since`.
    pub(crate) fn new(token: ClaimToken, since: Moment) -> Self {
        Self {
            token,
            since,
            waiters: None,
        }
    }

    /// Adds a waiter, which receives the outcome when the execution ends.
    pub(crate) fn join(&mut self) -> Waiter {
        self.waiters.get_or_insert_default().join()
    }

    pub(crate) fn view<R>(&mut self) -> RecordView<Moment, &mut Self, R> {
        RecordView {
            fingerprint: self.token.request.fingerprint,
            expires: None,
            state: StateView::InFlight(self),
        }
    }

    /// Ends the execution and passes its outcome to all waiters.
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

    /// Returns whether no request is waiting for the outcome.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.receiver_count() == 0
    }

    /// Passes the outcome of the execution to all waiting requests.
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
    /// Waits until the execution has ended and returns its outcome.
    pub async fn ended(mut self) -> ExecutionOutcome {
        match self.0.wait_for(Option::is_some).await {
            Ok(outcome) => outcome
                .clone()
                .expect("wait_for returns only a value that is set"),
            // The outcome is unknown, because the idempotency store was dropped before it sent an outcome.
            Err(_) => ExecutionOutcome::Unknown,
        }
    }
}
