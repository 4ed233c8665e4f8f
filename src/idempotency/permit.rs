//! Permit that a request holds while it is executed.
//!
//! The stage returns the permit to the store with the outcome of the execution. If the permit is dropped instead, by a
//! panic or a runtime that shuts down, the store ends the claim. The key is released if the request was not sent, and
//! its outcome is unknown otherwise. So no code path can record an execution as completed that was not.

use std::fmt;
use std::sync::Arc;

use super::{ClaimRequest, ExecutionOutcome};
use crate::clock::Moment;

/// Identity of a claim in the store that granted it.
#[derive(Clone, Copy, Debug)]
pub struct ClaimToken {
    /// Request that claimed the key.
    pub request: ClaimRequest,
    /// Number of the claim, unique within the process.
    pub number: u64,
}

/// Exclusive right to execute the request of a key. It is returned to the store with [`end`](super::Records::end).
#[must_use = "a dropped permit leaves its key unknown"]
pub struct Permit {
    token: ClaimToken,
    sent: bool,
    /// End of the lease as granted with the claim; `None` if the claim has no lease.
    lease_ends: Option<Moment>,
    on_abandon: Option<Arc<dyn OnAbandon>>,
}

/// Handler of permits that are dropped before they are returned to the store.
pub trait OnAbandon: Send + Sync {
    /// Ends the claim of a dropped permit. Must not block.
    fn abandoned(&self, token: ClaimToken, outcome: ExecutionOutcome);
}

impl Permit {
    /// Creates the permit of `token`. `on_abandon` is called if it is dropped.
    pub fn new(token: ClaimToken, on_abandon: Arc<dyn OnAbandon>) -> Self {
        Self {
            token,
            sent: false,
            lease_ends: None,
            on_abandon: Some(on_abandon),
        }
    }

    /// Sets the end of the lease of the claim.
    pub fn with_lease_end(mut self, at: Moment) -> Self {
        self.lease_ends = Some(at);
        self
    }

    /// Returns whether the lease may have ended. If so, the request must not be sent.
    pub fn is_lease_over(&self, now: Moment) -> bool {
        self.lease_ends.is_some_and(|lease_ends| now >= lease_ends)
    }

    /// Returns the claim of the permit.
    pub fn token(&self) -> &ClaimToken {
        &self.token
    }

    /// Marks the request as sent. Must be called before its first byte is sent.
    pub fn mark_sent(&mut self) {
        self.sent = true;
    }

    /// Returns whether the request may have been sent.
    pub fn is_sent(&self) -> bool {
        self.sent
    }

    /// Converts the permit into its claim, which the store then ends. The handler of dropped permits is not called.
    pub fn into_token(mut self) -> ClaimToken {
        self.on_abandon = None;
        self.token
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(on_abandon) = self.on_abandon.take() {
            let outcome = if self.sent {
                ExecutionOutcome::Unknown
            } else {
                ExecutionOutcome::Released(None)
            };
            on_abandon.abandoned(self.token, outcome);
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("token", &self.token)
            .field("sent", &self.sent)
            .finish_non_exhaustive()
    }
}
