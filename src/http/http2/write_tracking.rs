//! Tracks which HTTP/2 responses are completely written to the socket.
//!
//! `h2` queues the frames of a response and does not report when they are written. A poll of the connection writes as
//! much as the client's flow-control windows permit, and a response is queued only within these windows. So if the
//! socket is still writable after a poll, all queued responses are written, except those of streams that the client has
//! reset. If a client reduces a window that it has already granted, a response can be reported as written too early.
//!
//! `h2` resets an unfinished stream when its last handle is dropped, so the queue keeps a handle of each stream until
//! the response is written.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::SendStream;
use parking_lot::Mutex;

use crate::http::connections::ActiveRequest;
use crate::http::http1::{SocketState, TrackDelivery};

#[derive(Debug)]
struct QueuedResponse<B> {
    body: Pin<Box<B>>,
    stream: SendStream<Bytes>,
    /// The request is in flight until its response is written.
    _active: ActiveRequest,
}

/// `None` after the connection has ended.
type Queue<B> = Mutex<Option<Vec<QueuedResponse<B>>>>;

#[derive(Debug)]
pub(super) struct QueuedResponses<B>(Arc<Queue<B>>);

#[derive(Debug)]
pub(super) struct QueueSender<B>(Arc<Queue<B>>);

impl<B: TrackDelivery> QueuedResponses<B> {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Some(Vec::new()))))
    }

    pub(super) fn sender(&self) -> QueueSender<B> {
        QueueSender(Arc::clone(&self.0))
    }

    /// Marks all queued responses as delivered if their frames are written, except those whose stream was reset.
    /// `accepted` is the result of a poll of the connection.
    pub(super) fn polled<T>(
        &self,
        accepted: Poll<Option<T>>,
        socket: &SocketState,
        cx: &mut Context<'_>,
    ) -> Poll<Option<T>> {
        let is_written = match accepted {
            // While the connection closes because of an error, `h2` has discarded the queued frames.
            Poll::Pending => !socket.is_closing(),
            // After a graceful shutdown, all responses are written. If the client closed the connection, some can be
            // unwritten.
            Poll::Ready(None) => !socket.is_ended(),
            Poll::Ready(Some(_)) => false,
        };
        if is_written
            && !socket.is_blocked()
            && let Some(queued) = &mut *self.0.lock()
        {
            for mut response in queued.drain(..) {
                if response.stream.poll_reset(cx).is_pending() {
                    response.body.as_mut().delivered();
                }
            }
        }
        accepted
    }
}

impl<B> Drop for QueuedResponses<B> {
    fn drop(&mut self) {
        // The remaining responses are recorded as truncated, because `delivered` is not called for them.
        let responses = self.0.lock().take();
        drop(responses);
    }
}

impl<B> QueueSender<B> {
    /// Drops the response if the connection has ended.
    pub(super) fn push(&self, body: Pin<Box<B>>, stream: SendStream<Bytes>, active: ActiveRequest) {
        if let Some(responses) = &mut *self.0.lock() {
            responses.push(QueuedResponse {
                body,
                stream,
                _active: active,
            });
        }
    }
}
