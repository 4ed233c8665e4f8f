//! Which responses are written to the socket.
//!
//! `h2` queues the frames of a response and does not report when they are written. It writes all that the client's
//! windows permit whenever its connection is polled, and a response is queued only as these windows permit. So the
//! queued responses are written when a poll of the connection ends with the socket able to accept more bytes.

use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::wire::ResponseBody;

/// The bodies of responses that are queued to their end. `None` after the connection has ended.
type Queue<B> = Mutex<Option<Vec<Pin<Box<B>>>>>;

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

    /// Reports that all queued responses are written.
    pub(super) fn written(&self) {
        let bodies = match &mut *self.0.lock() {
            Some(bodies) if !bodies.is_empty() => std::mem::take(bodies),
            _ => return,
        };
        for mut body in bodies {
            body.as_mut().delivered();
        }
    }
}

impl<B> Drop for Queued<B> {
    fn drop(&mut self) {
        // Dropped without a report, the bodies count as truncated.
        let bodies = self.0.lock().take();
        drop(bodies);
    }
}

impl<B> QueueEnd<B> {
    /// Adds the body of a response that is queued to its end.
    pub(super) fn push(&self, body: Pin<Box<B>>) {
        if let Some(bodies) = &mut *self.0.lock() {
            bodies.push(body);
        }
    }
}
