//! What the two ends of a connection tell each other: the wire, which reads requests before hyper,
//! and the service, which answers them after it.
//!
//! hyper serves a connection's requests one at a time and in order, each exactly once. So both ends
//! only count: the wire the heads it passed, the service the requests it began and those it finished.
//! A refused head is known by its number, which no client can forge as it could a marking header, and
//! which stays right however many heads hyper holds in its buffer. That a response is outstanding is
//! the difference between two counts.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};

use http_body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use pin_project_lite::pin_project;

use super::violation::Violation;

/// The service's end: one for each connection.
#[derive(Clone, Debug)]
pub struct Exchanges(Arc<Shared>);

/// One request being answered. It ends when this is dropped, which must not be before hyper has the
/// whole response: let the response's body [`carry`](Exchange::carry) it.
#[derive(Debug)]
#[must_use = "the exchange ends when this is dropped"]
pub struct Exchange {
    shared: Arc<Shared>,
    violation: Option<Violation>,
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    begun: AtomicU32,
    finished: AtomicU32,
    tunnel: AtomicBool,
    cut: AtomicBool,
    refused: OnceLock<Refused>,
    waits: AtomicBool,
    waiting: Mutex<Option<Waker>>,
}

#[derive(Debug)]
struct Refused {
    number: u32,
    violation: Violation,
}

impl Exchanges {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self(shared)
    }

    /// To be called exactly once for each request, as the first thing the service does.
    pub fn begin(&self) -> Exchange {
        let number = self.0.begun.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let refused = self.0.refused.get();
        Exchange {
            violation: refused
                .filter(|refused| refused.number == number)
                .map(|refused| refused.violation),
            shared: Arc::clone(&self.0),
        }
    }
}

impl Exchange {
    /// Why the request must be refused, if it must. Everything else about such a request is made up:
    /// the bytes received were not a request.
    pub fn violation(&self) -> Option<Violation> {
        self.violation
    }

    /// Says that the answer is `101 Switching Protocols` (or a success to CONNECT): what the client
    /// sends after this request is passed on as it is.
    pub fn tunnel(&self) {
        self.shared.tunnel.store(true, Ordering::SeqCst);
        self.shared.wake();
    }

    /// The body, ending the exchange when hyper is done with it.
    pub fn carry<B>(self, body: B) -> Carried<B> {
        Carried {
            body,
            exchange: self,
            to_close: false,
        }
    }

    /// The body as [`carry`](Self::carry) has it, of a response that only the end of the connection
    /// ends, as HTTP/1.0 has them. One that fails must not end like one that is complete, so the
    /// connection is reset then.
    pub fn carry_to_close<B>(self, body: B) -> Carried<B> {
        Carried {
            to_close: true,
            ..self.carry(body)
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.shared.finished.fetch_add(1, Ordering::SeqCst);
        self.shared.wake();
    }
}

impl Shared {
    /// Refuses the head with this number, counted from one. Nothing follows a refused head, so there
    /// is at most one.
    pub(super) fn refuse(&self, number: u32, violation: Violation) {
        self.refused.get_or_init(|| Refused { number, violation });
    }

    /// Whether all of the `passed` requests were answered.
    pub(super) fn all_finished(&self, passed: u32) -> bool {
        self.finished.load(Ordering::SeqCst) == passed
    }

    /// Whether a response broke off whose end would be the connection's.
    pub(super) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    pub(super) fn is_tunnel(&self) -> bool {
        self.tunnel.load(Ordering::SeqCst)
    }

    /// Wakes this task at the end of an exchange. The caller must look again afterwards: the end may
    /// have come between its look and this.
    pub(super) fn wait(&self, waker: &Waker) {
        self.waiting
            .lock()
            .get_or_insert_with(|| waker.clone())
            .clone_from(waker);
        self.waits.store(true, Ordering::SeqCst);
    }

    fn wake(&self) {
        // Nearly always nobody waits; the flag spares the lock. Sequential consistency makes sure
        // that either this sees the flag or the waiting side sees what was stored before.
        if self.waits.load(Ordering::SeqCst) {
            self.waits.store(false, Ordering::SeqCst);
            if let Some(waker) = self.waiting.lock().take() {
                waker.wake();
            }
        }
    }
}

pin_project! {
    /// A response's body together with its exchange.
    #[derive(Debug)]
    pub struct Carried<B> {
        #[pin]
        body: B,
        exchange: Exchange,
        to_close: bool,
    }
}

impl<B: Body> Body for Carried<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let frame = this.body.poll_frame(cx);
        if *this.to_close && matches!(frame, Poll::Ready(Some(Err(_)))) {
            this.exchange.shared.cut.store(true, Ordering::Relaxed);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_request_with_the_refused_number_is_refused() {
        let shared = Arc::new(Shared::default());
        let exchanges = Exchanges::new(Arc::clone(&shared));
        let first = exchanges.begin();
        shared.refuse(3, Violation::BareLf);
        assert_eq!(first.violation(), None);
        assert_eq!(exchanges.begin().violation(), None);
        assert_eq!(exchanges.begin().violation(), Some(Violation::BareLf));
    }

    #[test]
    fn an_exchange_lasts_as_long_as_the_body_that_carries_it() {
        let shared = Arc::new(Shared::default());
        let exchanges = Exchanges::new(Arc::clone(&shared));
        let body = exchanges.begin().carry(String::from("answer"));
        assert!(!shared.all_finished(1));
        drop(body);
        assert!(shared.all_finished(1));
    }
}
