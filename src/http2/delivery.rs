//! Which responses are written to the socket.
//!
//! `h2` queues the frames of a response and does not report when they are written. It writes all that the client's
//! windows permit whenever its connection is polled, and a response is queued only as these windows permit. So the
//! queued responses are written when a poll of the connection ends with the socket able to accept more bytes, except
//! those whose stream the client has reset: `h2` discards their frames. A client that withdraws a window it has
//! granted is not detected.
//!
//! The queue holds a handle of each stream. A stream that the client has not ended is therefore not reset before its
//! response is written.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;

use bytes::Bytes;
use h2::SendStream;
use parking_lot::Mutex;

use crate::http1::ResponseBody;

/// A response that is queued to its end.
#[derive(Debug)]
struct Response<B> {
    body: Pin<Box<B>>,
    stream: SendStream<Bytes>,
}

/// `None` after the connection has ended.
type Queue<B> = Mutex<Option<Vec<Response<B>>>>;

/// The responses of a connection that are queued to their end and not yet written.
#[derive(Debug)]
pub(super) struct Queued<B>(Arc<Queue<B>>);

/// Adds responses to those that are queued.
#[derive(Debug)]
pub(super) struct QueueEnd<B>(Arc<Queue<B>>);

impl<B: ResponseBody> Queued<B> {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Some(Vec::new()))))
    }

    pub(super) fn end(&self) -> QueueEnd<B> {
        QueueEnd(Arc::clone(&self.0))
    }

    /// Reports that all queued responses are written, except those of streams that were reset.
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

impl<B> Drop for Queued<B> {
    fn drop(&mut self) {
        // Dropped without a report, the responses count as truncated.
        let responses = self.0.lock().take();
        drop(responses);
    }
}

impl<B> QueueEnd<B> {
    /// Adds a response that is queued to its end.
    pub(super) fn push(&self, body: Pin<Box<B>>, stream: SendStream<Bytes>) {
        if let Some(responses) = &mut *self.0.lock() {
            responses.push(Response { body, stream });
        }
    }
}
