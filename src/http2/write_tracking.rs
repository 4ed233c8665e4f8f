//! Tracks which HTTP/2 responses are completely written to the socket.
//!
//! `h2` queues the frames of a response and does not report when they are written. A poll of the connection writes as
//! much as the client's flow-control windows permit, and a response is queued only within these windows. So if the
//! socket is still writable after a poll, all queued responses are written. Streams that the client has reset are an
//! exception, because `h2` discards their frames. If a client reduces a window that it has already granted, a response
//! can be reported as written too early.
//!
//! `h2` resets an unfinished stream when its last handle is dropped. The queue keeps a handle of each stream until the
//! response is written, so the reset does not discard the response.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;

use bytes::Bytes;
use h2::SendStream;
use parking_lot::Mutex;

use crate::http1::TrackDelivery;

/// A response whose frames `h2` has queued completely.
#[derive(Debug)]
struct QueuedResponse<B> {
    body: Pin<Box<B>>,
    stream: SendStream<Bytes>,
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

    /// Marks all queued responses as delivered, except those whose stream was reset. Call this when all queued frames
    /// are written.
    pub(super) fn written(&self, cx: &mut Context<'_>) {
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
    pub(super) fn push(&self, body: Pin<Box<B>>, stream: SendStream<Bytes>) {
        if let Some(responses) = &mut *self.0.lock() {
            responses.push(QueuedResponse { body, stream });
        }
    }
}
