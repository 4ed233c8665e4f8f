//! Execution in flight, and the duplicate requests that wait for its outcome. The channel to the waiters is created for
//! the first duplicate, because nearly all executions have none.

use tokio::sync::watch;

use super::claim::{RecordView, StateView};
use super::{ClaimToken, ExecutionOutcome};
use crate::clock::Moment;

#[derive(Debug)]
pub(crate) struct InFlightExecution {
    pub token: ClaimToken,
    /// On the monotonic clock of this process.
    pub since: Moment,
    /// `None` until the first duplicate arrives.
    waiters: Option<Waiters>,
}

/// The execution can run in this process or on another gateway.
#[derive(Debug)]
pub(crate) struct Waiters(watch::Sender<Option<ExecutionOutcome>>);

/// Receives the outcome of an execution in flight.
#[derive(Debug)]
pub struct Waiter(watch::Receiver<Option<ExecutionOutcome>>);

impl InFlightExecution {
    pub(crate) fn new(token: ClaimToken, since: Moment) -> Self {
        Self {
            token,
            since,
            waiters: None,
        }
    }

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

    pub(crate) fn is_empty(&self) -> bool {
        self.0.receiver_count() == 0
    }

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
    /// Waits for the outcome.
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
