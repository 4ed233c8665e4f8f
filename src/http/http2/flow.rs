//! Determines why a stream has no send capacity: because its client is slow, or because other streams are served first.
//!
//! `h2` grants the connection's flow-control window to the waiting streams roughly in turn. Suppose that n streams
//! wait, and one of them has received no capacity. The grants of capacity to other streams are counted from the time at
//! which this stream started to wait. If there were at least 2n grants, `h2` has skipped this stream, because the
//! window of the stream is exhausted. So the stream waits for its client. If there was at least one grant, but fewer
//! than 2n, the stream waits because other streams are served first. If there was no grant, the client accepts no data
//! on any stream.
//!
//! A full send buffer of the socket delays only the streams with unwritten data, because `h2` grants windows even while
//! the socket is blocked. A stream without unwritten data waits for its client or for other streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::http::http1::SocketState;

/// Number of capacity grants and of waiting streams of one connection. Only the worker's thread uses these counts.
#[derive(Debug)]
pub(super) struct FlowControl {
    /// Number of capacity grants since the connection started.
    granted: AtomicU64,
    /// Number of streams that wait for send capacity.
    waiting: AtomicUsize,
    socket: Arc<SocketState>,
}

/// Guard that counts a stream as waiting for send capacity until the guard is dropped.
pub(super) struct WaitingStream<'a> {
    flow: &'a FlowControl,
    granted_before: u64,
}

impl FlowControl {
    /// Creates the counts for the connection of this socket.
    pub(super) fn new(socket: Arc<SocketState>) -> Self {
        Self {
            granted: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            socket,
        }
    }

    /// Whether the send buffer of the connection's socket is full.
    pub(super) fn is_blocked(&self) -> bool {
        self.socket.is_blocked()
    }

    /// Counts one grant of send capacity to a stream.
    pub(super) fn grant(&self) {
        self.granted.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a stream as waiting for send capacity until the returned guard is dropped.
    pub(super) fn wait(&self) -> WaitingStream<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        WaitingStream {
            flow: self,
            granted_before: self.granted.load(Ordering::Relaxed),
        }
    }
}

impl WaitingStream<'_> {
    /// Whether the stream has no capacity because other streams are served first. False means that its client is slow.
    pub(super) fn is_behind_others(&self) -> bool {
        self.granted() > 0 && !self.is_skipped()
    }

    /// Whether other streams received so many grants that `h2` has skipped this stream. Its window is exhausted.
    pub(super) fn is_skipped(&self) -> bool {
        let waiting = self.flow.waiting.load(Ordering::Relaxed) as u64;
        self.granted() >= 2 * waiting
    }

    fn granted(&self) -> u64 {
        self.flow.granted.load(Ordering::Relaxed) - self.granted_before
    }
}

impl Drop for WaitingStream<'_> {
    fn drop(&mut self) {
        self.flow.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_behind_others_until_twice_as_many_grants_are_made_as_streams_wait() {
        let flow = FlowControl::new(Arc::default());
        let (stream, _second, third) = (flow.wait(), flow.wait(), flow.wait());
        // `h2` has granted no capacity to any stream, so no other stream is served first. The client is slow.
        assert!(!stream.is_behind_others() && !stream.is_skipped());
        for _ in 0..5 {
            flow.grant();
            assert!(stream.is_behind_others() && !stream.is_skipped());
        }
        flow.grant();
        assert!(!stream.is_behind_others() && stream.is_skipped());
        drop(third);
        assert_eq!(flow.waiting.load(Ordering::Relaxed), 2);
    }
}
