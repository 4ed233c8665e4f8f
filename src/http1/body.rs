//! A request's body on its way from the connection that reads it to whoever wants it.
//!
//! A small body is mostly here together with its head, and is then handed over whole. Any other passes
//! through a place for one part: the connection reads on when a part is asked for and not before, so a
//! client is read from as fast as its body is used up, and nothing piles up in between.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use thiserror::Error;

use super::violation::Violation;

/// A request's body.
#[derive(Debug)]
pub struct Body(Source);

#[derive(Debug)]
enum Source {
    Whole(Bytes),
    Coming(Receiver),
}

/// Why a request's body ended early.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BodyError {
    /// It is none, or did not come in time.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The client broke off, or the gateway did.
    #[error("the connection was closed before the request was complete")]
    Closed,
}

/// The end that takes parts.
#[derive(Debug)]
struct Receiver {
    shared: Arc<Mutex<Place>>,
    /// Bytes that are still to come, where that was declared.
    left: Option<u64>,
    ended: bool,
}

/// The end that gives parts. If it goes before the body's end, so does the body.
#[derive(Debug)]
pub(super) struct Sender(Arc<Mutex<Place>>);

/// What is asked of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// The next part.
    More,
    /// Nothing any more: the body was let go of.
    Nothing,
}

/// The place for one part, and who waits at either side of it.
#[derive(Debug, Default)]
struct Place {
    part: Option<Bytes>,
    end: Option<Result<(), BodyError>>,
    /// Waits for a part.
    taker: Option<Waker>,
    /// Waits to be asked for one.
    giver: Option<Waker>,
    let_go: bool,
}

impl Body {
    /// A body that is coming, of which so many bytes were declared.
    pub(super) fn coming(left: Option<u64>) -> (Sender, Self) {
        let shared = Arc::new(Mutex::new(Place::default()));
        let receiver = Receiver {
            shared: Arc::clone(&shared),
            left,
            ended: false,
        };
        (Sender(shared), Self(Source::Coming(receiver)))
    }

    /// All of it, if it is here already.
    pub fn into_whole(self) -> Result<Bytes, Self> {
        match self.0 {
            Source::Whole(bytes) => Ok(bytes),
            Source::Coming(_) => Err(self),
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self(Source::Whole(bytes))
    }
}

impl Sender {
    /// What is asked for, once something is.
    pub(super) fn poll_demand(&self, cx: &mut Context<'_>) -> Poll<Demand> {
        let mut place = self.0.lock();
        if place.let_go {
            return Poll::Ready(Demand::Nothing);
        }
        // Also where a part is asked for: it may be let go of before it is here.
        place.giver = Some(cx.waker().clone());
        if place.taker.is_some() {
            Poll::Ready(Demand::More)
        } else {
            Poll::Pending
        }
    }

    /// Whether nobody wants the body any more.
    pub(super) fn is_let_go(&self) -> bool {
        self.0.lock().let_go
    }

    /// Gives the part that was asked for.
    pub(super) fn give(&self, part: Bytes) {
        let mut place = self.0.lock();
        place.part = Some(part);
        place.wake_taker();
    }

    /// Ends the body, well or badly.
    pub(super) fn end(self, end: Result<(), BodyError>) {
        self.0.lock().end(end);
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.0.lock().end(Err(BodyError::Closed));
    }
}

impl Place {
    fn end(&mut self, end: Result<(), BodyError>) {
        if self.end.is_none() {
            self.end = Some(end);
            self.wake_taker();
        }
    }

    fn wake_taker(&mut self) {
        if let Some(taker) = self.taker.take() {
            taker.wake();
        }
    }
}

impl Receiver {
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let mut place = self.shared.lock();
        if let Some(part) = place.part.take() {
            self.left = self.left.map(|left| left - part.len() as u64);
            self.ended = place.end == Some(Ok(()));
            return Poll::Ready(Some(Ok(part)));
        }
        if let Some(end) = place.end {
            self.ended = true;
            return Poll::Ready(end.err().map(Err));
        }
        // Who asks again is known to be waiting.
        if place.taker.replace(cx.waker().clone()).is_none()
            && let Some(giver) = place.giver.take()
        {
            giver.wake();
        }
        Poll::Pending
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut place = self.shared.lock();
        place.let_go = true;
        if let Some(giver) = place.giver.take() {
            giver.wake();
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            Source::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Source::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Source::Coming(receiver) => receiver
                .poll_part(cx)
                .map(|part| part.map(|part| part.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Source::Whole(bytes) => bytes.is_empty(),
            Source::Coming(receiver) => receiver.ended || receiver.left == Some(0),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Source::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::Coming(receiver) => receiver
                .left
                .map_or_else(SizeHint::new, SizeHint::with_exact),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use http_body::Body as _;
    use http_body_util::BodyExt as _;

    use super::*;

    async fn demand(sender: &Sender) -> Demand {
        poll_fn(|cx| sender.poll_demand(cx)).await
    }

    async fn part(body: &mut Body) -> Option<Result<Bytes, BodyError>> {
        let frame = body.frame().await?;
        Some(frame.map(|frame| frame.into_data().unwrap()))
    }

    #[tokio::test]
    async fn parts_are_given_when_they_are_asked_for_and_not_before() {
        let (sender, mut body) = Body::coming(None);
        poll_fn(|cx| {
            assert!(sender.poll_demand(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        let taking = tokio::spawn(async move {
            let first = part(&mut body).await;
            let second = part(&mut body).await;
            (first, second, part(&mut body).await)
        });
        assert_eq!(demand(&sender).await, Demand::More);
        sender.give("one".into());
        assert_eq!(demand(&sender).await, Demand::More);
        sender.give("two".into());
        assert_eq!(demand(&sender).await, Demand::More);
        sender.end(Ok(()));
        let (first, second, end) = taking.await.unwrap();
        assert_eq!(first, Some(Ok("one".into())));
        assert_eq!(second, Some(Ok("two".into())));
        assert_eq!(end, None);
    }

    #[tokio::test]
    async fn a_declared_body_knows_its_end_with_its_last_part() {
        let (sender, mut body) = Body::coming(Some(3));
        assert_eq!(body.size_hint().exact(), Some(3));
        sender.give("one".into());
        assert!(!body.is_end_stream());
        assert_eq!(part(&mut body).await, Some(Ok("one".into())));
        assert!(body.is_end_stream());
    }

    #[tokio::test]
    async fn a_body_whose_connection_is_gone_has_broken_off_after_what_there_was() {
        let (sender, mut body) = Body::coming(Some(6));
        sender.give("one".into());
        drop(sender);
        assert_eq!(part(&mut body).await, Some(Ok("one".into())));
        assert_eq!(part(&mut body).await, Some(Err(BodyError::Closed)));
        assert_eq!(part(&mut body).await, None);
    }

    #[tokio::test]
    async fn a_connection_is_told_when_a_body_is_let_go_of_while_it_is_asked_for() {
        let (sender, mut body) = Body::coming(None);
        let taking = tokio::spawn(async move { part(&mut body).await });
        assert_eq!(demand(&sender).await, Demand::More);
        let told = tokio::spawn(poll_fn(move |cx| match sender.poll_demand(cx) {
            Poll::Ready(Demand::Nothing) => Poll::Ready(()),
            _ => Poll::Pending,
        }));
        tokio::task::yield_now().await;
        taking.abort();
        told.await.unwrap();
    }

    #[tokio::test]
    async fn asking_again_wakes_nobody() {
        let (sender, mut body) = Body::coming(None);
        let asked = Arc::new(Counted::default());
        let waker = Waker::from(Arc::clone(&asked));
        let mut connection = Context::from_waker(&waker);
        let mut idle = Context::from_waker(Waker::noop());
        assert!(sender.poll_demand(&mut connection).is_pending());
        for _ in 0..3 {
            assert!(Pin::new(&mut body).poll_frame(&mut idle).is_pending());
            assert!(sender.poll_demand(&mut connection).is_ready());
        }
        assert_eq!(asked.0.load(Ordering::Relaxed), 1);
    }

    /// Counts how often it is woken.
    #[derive(Default)]
    struct Counted(AtomicU32);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn a_connection_is_told_when_a_body_is_let_go_of() {
        let (sender, body) = Body::coming(None);
        let asked = tokio::spawn(async move { demand(&sender).await });
        tokio::task::yield_now().await;
        drop(body);
        assert_eq!(asked.await.unwrap(), Demand::Nothing);
    }
}
