//! An execution in flight and the duplicate requests that wait for it.
//!
//! All waiters are woken at once when the execution ends. A waiter that is dropped leaves nothing behind. The channel is
//! created for the first duplicate, because nearly all executions have none.

use tokio::sync::watch;

use super::claim::RecordView;
use super::{ClaimToken, ExecutionOutcome};
use crate::clock::Moment;

/// An execution in flight in this process.
#[derive(Debug)]
pub(crate) struct InFlightExecution {
    /// The claim of the execution.
    pub token: ClaimToken,
    /// When the claim was made.
    pub since: Moment,
    /// `None` until the first duplicate arrives.
    waiters: Option<Waiters>,
}

/// The requests that wait for an execution, in this process or on another gateway.
#[derive(Debug)]
pub(crate) struct Waiters(watch::Sender<Option<ExecutionOutcome>>);

/// A request that waits for an execution.
#[derive(Debug)]
pub struct Waiter(watch::Receiver<Option<ExecutionOutcome>>);

impl InFlightExecution {
    /// Creates an execution that begins at `since`, without waiters.
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

    /// Returns what a claim depends on. The claim has no lease in this process.
    pub(crate) fn view(&self) -> RecordView<'_, Moment> {
        RecordView::in_progress(&self.token.request.fingerprint)
    }

    /// Passes the outcome to the waiters.
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

    /// Whether all waiters are gone.
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
            Ok(outcome) => outcome.clone().expect("waited until there is one"),
            // The store was dropped, so the outcome cannot be known.
            Err(_) => ExecutionOutcome::Unknown,
        }
    }
}
