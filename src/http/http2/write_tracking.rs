//! Tracks which HTTP/2 responses are completely written to the socket.
//!
//! `h2` queues the frames of a response and does not report when they are written. A poll of the connection writes as
//! much as the client's flow-control windows permit, and a response is queued only within these windows. So if the
//! socket is still writable after a poll, all queued responses are written. Streams that the client has reset are an
//! exception, because `h2` discards their frames. If a client reduces a window that it has already granted, a response
//! can be reported as written too early.
//!
//! For a stream whose response is not yet complete, [`UnwrittenBytes`] counts the bytes that `h2` has queued. `h2`
//! consumes a [`TrackedPart`] as it writes the part, so the count needs no support from `h2`.
//!
//! `h2` resets an unfinished stream when its last handle is dropped. The queue keeps a handle of each stream until the
//! response is written, so the reset does not discard the response.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use h2::SendStream;
use parking_lot::Mutex;

use crate::http::connections::ActiveRequest;
use crate::http::http1::{SocketState, TrackDelivery};

/// A response whose frames `h2` has queued completely.
#[derive(Debug)]
struct QueuedResponse<B> {
    body: Pin<Box<B>>,
    stream: SendStream<TrackedPart>,
    /// The request is in flight until its response is written.
    _active: ActiveRequest,
}

/// Number of body bytes of one stream that `h2` has queued and not yet written. Memory is allocated for the first part.
#[derive(Debug, Default)]
pub(super) struct UnwrittenBytes(Option<Arc<AtomicUsize>>);

/// Part of a response body. It is subtracted from its [`UnwrittenBytes`] as `h2` writes it.
#[derive(Debug)]
pub(super) struct TrackedPart {
    bytes: Bytes,
    /// `None` for the last part of a response, which no count includes.
    unwritten: Option<Arc<AtomicUsize>>,
}

/// Queue of responses that wait to be written. `None` after the connection has ended.
type Queue<B> = Mutex<Option<Vec<QueuedResponse<B>>>>;

/// The responses of a connection that `h2` has queued completely but not yet written to the socket.
#[derive(Debug)]
pub(super) struct QueuedResponses<B>(Arc<Queue<B>>);

/// Handle with which stream tasks add their responses to the queue.
#[derive(Debug)]
pub(super) struct QueueSender<B>(Arc<Queue<B>>);

impl<B: TrackDelivery> QueuedResponses<B> {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Some(Vec::new()))))
    }

    pub(super) fn sender(&self) -> QueueSender<B> {
        QueueSender(Arc::clone(&self.0))
    }

    /// Marks all queued responses as delivered, except those whose stream was reset, if all queued frames are written.
    /// `accepted` is the result of a poll of the connection.
    pub(super) fn polled<T>(
        &self,
        accepted: &Poll<Option<T>>,
        socket: &SocketState,
        cx: &mut Context<'_>,
    ) {
        let is_written = match accepted {
            // While the connection closes because of an error, `h2` has discarded the queued frames.
            Poll::Pending => !socket.is_closing(),
            // The connection has ended. If it ended by a graceful shutdown, all responses are written. If the client
            // closed it, some responses can be unwritten.
            Poll::Ready(None) => !socket.is_ended(),
            Poll::Ready(Some(_)) => false,
        };
        if !is_written || socket.is_blocked() {
            return;
        }
        let responses = match &mut *self.0.lock() {
            Some(responses) if !responses.is_empty() => std::mem::take(responses),
            _ => return,
        };
        for mut response in responses {
            if response.stream.poll_reset(cx).is_pending() {
                response.body.as_mut().delivered();
            }
        }
    }
}

impl<B> Drop for QueuedResponses<B> {
    fn drop(&mut self) {
        // The remaining bodies are dropped, and `delivered` is not called for them. So their responses are recorded as
        // truncated.
        let responses = self.0.lock().take();
        drop(responses);
    }
}

impl<B> QueueSender<B> {
    /// Adds a response whose frames `h2` has queued completely. Drops the response if the connection has ended.
    pub(super) fn push(
        &self,
        body: Pin<Box<B>>,
        stream: SendStream<TrackedPart>,
        active: ActiveRequest,
    ) {
        if let Some(responses) = &mut *self.0.lock() {
            responses.push(QueuedResponse {
                body,
                stream,
                _active: active,
            });
        }
    }
}

impl UnwrittenBytes {
    /// Counts `bytes` as unwritten until `h2` has consumed the returned part.
    pub(super) fn track(&mut self, bytes: Bytes) -> TrackedPart {
        let unwritten = self.0.get_or_insert_default();
        unwritten.fetch_add(bytes.len(), Ordering::Relaxed);
        TrackedPart {
            bytes,
            unwritten: Some(Arc::clone(unwritten)),
        }
    }

    /// Whether `h2` has written all parts of the stream.
    pub(super) fn is_empty(&self) -> bool {
        let unwritten = self.0.as_ref();
        unwritten.is_none_or(|unwritten| unwritten.load(Ordering::Relaxed) == 0)
    }
}

impl TrackedPart {
    /// Creates the last part of a response. It is not counted, because no further part waits for it.
    pub(super) fn last(bytes: Bytes) -> Self {
        Self {
            bytes,
            unwritten: None,
        }
    }
}

impl Buf for TrackedPart {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if let Some(unwritten) = &self.unwritten {
            unwritten.fetch_sub(count, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut as _, BytesMut};

    use super::*;

    #[test]
    fn a_part_is_unwritten_until_all_its_bytes_are_consumed() {
        let mut unwritten = UnwrittenBytes::default();
        let mut first = unwritten.track(Bytes::from_static(b"hello"));
        let second = unwritten.track(Bytes::from_static(b" world"));
        let mut written = BytesMut::new();
        written.put((&mut first).take(3));
        written.put(first);
        assert!(!unwritten.is_empty());
        written.put(second);
        assert!(unwritten.is_empty());
        assert_eq!(&written[..], b"hello world");
    }
}
