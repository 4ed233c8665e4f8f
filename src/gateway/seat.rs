//! A connection's place among those that may be open at once.

use tokio::sync::OwnedSemaphorePermit;

use crate::admin::metrics::Connected;

/// A connection's place, given back when the last who holds it lets go: the connection itself, or a
/// tunnel that outlives its HTTP.
#[derive(Debug)]
pub struct Seat {
    _counted: Connected,
    /// None for what was still in the kernel's queue when the drain began.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Seat {
    pub(super) fn new(counted: Connected, permit: Option<OwnedSemaphorePermit>) -> Self {
        Self {
            _counted: counted,
            _permit: permit,
        }
    }
}
