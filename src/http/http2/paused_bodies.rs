//! Counts the request bodies of a connection that the gateway does not read at the moment, for example because their
//! server is slow.
//!
//! Such bodies can fill the flow-control window of the connection, so that its other streams cannot send. So `min_rate`
//! does not apply while the paused bodies can fill the window.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{CONNECTION_WINDOW, STREAM_WINDOW};

/// Clones share the count.
#[derive(Clone, Debug, Default)]
pub(super) struct PausedBodies(Arc<AtomicUsize>);

/// Guard that counts a body as paused until it is dropped.
#[derive(Debug)]
pub(super) struct PausedBody(Arc<AtomicUsize>);

impl PausedBodies {
    pub(super) fn pause(&self) -> PausedBody {
        self.0.fetch_add(1, Ordering::Relaxed);
        PausedBody(Arc::clone(&self.0))
    }

    pub(super) fn can_fill_window(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= (CONNECTION_WINDOW / STREAM_WINDOW) as usize
    }
}

impl Drop for PausedBody {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
