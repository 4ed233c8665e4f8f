//! Permit to execute a request with an idempotency key. The permit exists from the claim on the key to the end of the
//! execution.
//!
//! The idempotency stage returns the permit to the idempotency store with the outcome of the execution. If the permit
//! is dropped instead, by a panic or a runtime that shuts down, the store ends the claim. The key is released if the
//! request was not sent. Otherwise the outcome of the key is unknown. So a request that was not executed is never
//! recorded as completed.

use std::fmt;
use std::sync::Arc;

use super::{ClaimRequest, ExecutionOutcome};
use crate::clock::Moment;

/// Identity of a claim in the idempotency store that granted it.
#[derive(Clone, Copy, Debug)]
pub struct ClaimToken {
    /// Data with which the request claimed its idempotency key.
    pub request: ClaimRequest,
    /// Number that distinguishes the claim from all other claims of this process.
    pub number: u64,
}

/// Exclusive right to execute the request that has claimed an idempotency key. The permit is returned to the
/// idempotency store with [`end`](super::Records::end).
#[must_use = "dropping a permit ends its claim, and after the request was sent its outcome is then unknown"]
pub struct Permit {
    token: ClaimToken,
    sent: bool,
    /// Time at which the lease of the claim ends; `None` if the claim has no lease.
    lease_ends: Option<Moment>,
    on_abandon: Option<Arc<dyn OnAbandon>>,
}

/// Handler for permits that are dropped instead of being returned to the idempotency store.
pub trait OnAbandon: Send + Sync {
    /// Ends the claim of a dropped permit with `outcome`. The function must not block, because destructors call it.
    fn abandoned(&self, token: ClaimToken, outcome: ExecutionOutcome);
}

impl Permit {
    /// Creates the permit of the claim `token`. `on_abandon` is called if the permit is dropped.
    pub fn new(token: ClaimToken, on_abandon: Arc<dyn OnAbandon>) -> Self {
        Self {
            token,
            sent: false,
            lease_ends: None,
            on_abandon: Some(on_abandon),
        }
    }

    /// Sets the time at which the lease of the claim ends.
    pub fn with_lease_end(mut self, at: Moment) -> Self {
        self.lease_ends = Some(at);
        self
    }

    /// Returns whether the lease of the claim has ended at `now`. If so, the request must not be sent, because other
    /// gateways already treat its outcome as unknown.
    pub fn is_lease_over(&self, now: Moment) -> bool {
        self.lease_ends.is_some_and(|lease_ends| now >= lease_ends)
    }

    /// Returns the claim for which the permit was granted.
    pub fn token(&self) -> &ClaimToken {
        &self.token
    }

    /// Marks the request as sent. The caller must call this function before it sends the first byte to the upstream.
    pub fn mark_sent(&mut self) {
        self.sent = true;
    }

    /// Returns whether the request is marked as sent. If so, the upstream may have received the request.
    pub fn is_sent(&self) -> bool {
        self.sent
    }

    /// Converts the permit into its claim, which the store then ends. The handler for dropped permits is not called.
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
