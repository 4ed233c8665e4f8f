//! The permit that the winner of a key holds during its execution.
//!
//! A permit is returned to the store with the outcome of the execution. If it is dropped instead (a panic, a runtime
//! that shuts down), the store ends the claim by itself: the key is free if the request was not sent, and unknown
//! afterwards. So no code path can report an execution as done that was not.

use std::fmt;
use std::sync::Arc;

use super::{ClaimRequest, ExecutionOutcome};
use crate::clock::Moment;

/// Identifies a claim in the store that granted it.
#[derive(Clone, Copy, Debug)]
pub struct ClaimToken {
    /// The request for which the key is claimed.
    pub request: ClaimRequest,
    /// Number of the claim. No other claim of this process has it.
    pub number: u64,
}

/// The right to execute the request of a key, to be returned to the store with [`end`](super::Records::end).
#[must_use = "a dropped permit leaves its key unknown"]
pub struct Permit {
    token: ClaimToken,
    sent: bool,
    /// When the lease of the claim ends, unless the store renews it; `None` if it has no lease.
    lapses: Option<Moment>,
    on_abandon: Option<Arc<dyn OnAbandon>>,
}

/// Handles permits that are dropped.
pub trait OnAbandon: Send + Sync {
    /// Ends the claim of a dropped permit. Must not block.
    fn abandoned(&self, token: ClaimToken, outcome: ExecutionOutcome);
}

impl Permit {
    /// Creates the permit of `token`. `on_abandon` handles it if it is dropped.
    pub fn new(token: ClaimToken, on_abandon: Arc<dyn OnAbandon>) -> Self {
        Self {
            token,
            sent: false,
            lapses: None,
            on_abandon: Some(on_abandon),
        }
    }

    /// Sets the end of the lease of the claim.
    pub fn lapsing(mut self, at: Moment) -> Self {
        self.lapses = Some(at);
        self
    }

    /// Whether the lease of the claim may have ended, so that nothing may be sent.
    pub fn has_lapsed(&self, now: Moment) -> bool {
        self.lapses.is_some_and(|lapses| now >= lapses)
    }

    /// Returns the claim of the permit.
    pub fn token(&self) -> &ClaimToken {
        &self.token
    }

    /// Notes that the request is sent. Call this before its first byte is sent.
    pub fn sending(&mut self) {
        self.sent = true;
    }

    /// Whether the request may have been sent.
    pub fn is_sent(&self) -> bool {
        self.sent
    }

    /// Returns the claim for the store to end. From here on the handler of dropped permits is not called.
    pub fn redeem(mut self) -> ClaimToken {
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
