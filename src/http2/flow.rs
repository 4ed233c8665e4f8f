//! Whether a stream without capacity waits for its client or for its turn.
//!
//! `h2` gives the window of the connection to its streams in the order in which they ask for it, about. A stream that
//! gets nothing while twice as many grants are made as streams wait was passed over: its own window is empty. A
//! stream that gets nothing while fewer grants are made waits for its turn behind the others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::http1::SocketState;

/// Grants of capacity on one connection. Only the worker's thread uses it.
#[derive(Debug)]
pub(super) struct Flow {
    granted: AtomicU64,
    waiting: AtomicUsize,
    socket: Arc<SocketState>,
}

/// A stream that waits for capacity.
pub(super) struct Waiting<'a> {
    flow: &'a Flow,
    granted_before: u64,
}

impl Flow {
    /// The grants of a connection over this socket.
    pub(super) fn new(socket: Arc<SocketState>) -> Self {
        Self {
            granted: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            socket,
        }
    }

    /// Whether the socket accepts no bytes.
    pub(super) fn is_blocked(&self) -> bool {
        self.socket.is_blocked()
    }

    /// Counts a grant of capacity to a stream.
    pub(super) fn grant(&self) {
        self.granted.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a stream as waiting until the result is dropped.
    pub(super) fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting {
            flow: self,
            granted_before: self.granted.load(Ordering::Relaxed),
        }
    }
}

impl Waiting<'_> {
    /// Whether the stream has had no turn since it waits.
    pub(super) fn is_behind_others(&self) -> bool {
        let granted = self.flow.granted.load(Ordering::Relaxed) - self.granted_before;
        let waiting = self.flow.waiting.load(Ordering::Relaxed) as u64;
        granted > 0 && granted < 2 * waiting
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.flow.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_waits_for_its_turn_until_twice_as_many_grants_are_made_as_streams_wait() {
        let flow = Flow::new(Arc::default());
        let (stream, _second, third) = (flow.wait(), flow.wait(), flow.wait());
        // No stream gets anything: the client takes nothing.
        assert!(!stream.is_behind_others());
        for _ in 0..5 {
            flow.grant();
            assert!(stream.is_behind_others());
        }
        flow.grant();
        assert!(!stream.is_behind_others());
        drop(third);
        assert_eq!(flow.waiting.load(Ordering::Relaxed), 2);
    }
}
