//! Permit to execute a request, from the claim on its key to the end of the execution.
//!
//! If the permit is dropped, by a panic or a runtime that shuts down, the store ends the claim: the key is released if
//! the request was not sent, and its outcome is unknown otherwise. So a request that was not executed is never recorded
//! as completed.

use std::fmt;
use std::sync::Arc;

use super::{ClaimRequest, ExecutionOutcome};
use crate::clock::Moment;

#[derive(Clone, Copy, Debug)]
pub struct ClaimToken {
    pub request: ClaimRequest,
    /// Distinguishes the claim from all others of this process.
    pub number: u64,
}

/// Exclusive right to execute the request that won a claim, until [`end`](super::Records::end).
#[must_use = "dropping a permit ends its claim, and after the request was sent its outcome is then unknown"]
pub struct Permit {
    token: ClaimToken,
    sent: bool,
    /// `None` if the claim has no lease.
    lease_ends: Option<Moment>,
    on_abandon: Option<Arc<dyn OnAbandon>>,
}

pub trait OnAbandon: Send + Sync {
    /// Must not block, because destructors call it.
    fn abandoned(&self, token: ClaimToken, outcome: ExecutionOutcome);
}

impl Permit {
    /// Creates a permit. `on_abandon` is called if it is dropped.
    pub fn new(token: ClaimToken, on_abandon: Arc<dyn OnAbandon>) -> Self {
        Self {
            token,
            sent: false,
            lease_ends: None,
            on_abandon: Some(on_abandon),
        }
    }

    /// Sets when the lease of the claim ends.
    pub fn with_lease_end(mut self, at: Moment) -> Self {
        self.lease_ends = Some(at);
        self
    }

    /// Whether the lease has ended. The request must then not be sent, because other gateways treat its outcome as
    /// unknown.
    pub fn is_lease_over(&self, now: Moment) -> bool {
        self.lease_ends.is_some_and(|lease_ends| now >= lease_ends)
    }

    /// Returns the claim.
    pub fn token(&self) -> &ClaimToken {
        &self.token
    }

    /// To be called before the first byte is sent to the upstream.
    pub fn mark_sent(&mut self) {
        self.sent = true;
    }

    /// Whether the upstream may have received the request.
    pub fn is_sent(&self) -> bool {
        self.sent
    }

    /// Ends the permit without a call of the handler for dropped permits.
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
