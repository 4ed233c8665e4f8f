//! Tracks which responses are written to the socket.
//!
//! `h2` queues the frames of a response and does not report when they are written. A poll of the connection writes as
//! much as the client's windows permit, and a response is only queued within these windows. So if the socket is still
//! writable after a poll, all queued responses are written. Streams that the client has reset are an exception,
//! because `h2` discards their frames. A client that reduces a window it has already granted is not detected.
//!
//! The queue holds a handle of each stream, because `h2` resets an unfinished stream when its last handle is dropped.
//! The response is thus written before the reset.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;

use bytes::Bytes;
use h2::SendStream;
use parking_lot::Mutex;

use crate::http1::TrackDelivery;

/// A response whose frames are all queued in `h2`.
#[derive(Debug)]
struct QueuedResponse<B> {
    body: Pin<Box<B>>,
    stream: SendStream<Bytes>,
}

/// Queue of responses, or `None` after the connection has ended.
type Queue<B> = Mutex<Option<Vec<QueuedResponse<B>>>>;

/// The responses of a connection that are completely queued in `h2` and not yet written.
#[derive(Debug)]
pub(super) struct QueuedResponses<B>(Arc<Queue<B>>);

/// Sender that adds responses to the queue.
#[derive(Debug)]
pub(super) struct QueueSender<B>(Arc<Queue<B>>);

impl<B: TrackDelivery> QueuedResponses<B> {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Some(Vec::new()))))
    }

    pub(super) fn sender(&self) -> QueueSender<B> {
        QueueSender(Arc::clone(&self.0))
    }

    /// Notifies all queued responses that they are delivered, except those whose stream was reset.
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
        // A body that is dropped without a notification counts as truncated.
        let responses = self.0.lock().take();
        drop(responses);
    }
}

impl<B> QueueSender<B> {
    /// Adds a response whose frames are all queued in `h2`.
    pub(super) fn push(&self, body: Pin<Box<B>>, stream: SendStream<Bytes>) {
        if let Some(responses) = &mut *self.0.lock() {
            responses.push(QueuedResponse { body, stream });
        }
    }
}
