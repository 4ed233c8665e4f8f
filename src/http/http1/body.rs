//! Request bodies, as the service receives them, and the trait that response bodies implement.
//!
//! A body that does not arrive with its head passes through a channel that holds at most one part. The connection reads
//! from the client only while the service waits for a part, so a slow service slows down the client, and no data
//! accumulates.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;

use crate::http::IncompleteBody;

/// Trailers are dropped.
#[derive(Debug)]
pub(crate) struct Http1Body(Http1BodySource);

#[derive(Debug)]
enum Http1BodySource {
    Complete(Bytes),
    Channel(Receiver),
}

pub(crate) trait TrackDelivery: http_body::Body<Data = Bytes> {
    /// The server calls this once, after the last byte is written to the socket. Without this call, the client received
    /// a truncated response.
    fn delivered(self: Pin<&mut Self>);

    /// Whether the server resets the connection after the body has failed, instead of closing it.
    fn is_reset(&self) -> bool {
        false
    }
}

#[derive(Debug)]
struct Receiver {
    channel: Arc<Mutex<Channel>>,
    /// Bytes still to be read; `None` without a `Content-Length`.
    remaining: Option<u64>,
    ended: bool,
}

/// If the sender is dropped before the end of the body, the service receives [`IncompleteBody::Disconnected`].
#[derive(Debug)]
pub(super) struct RequestBodySender(Arc<Mutex<Channel>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    More,
    Nothing,
}

#[derive(Debug, Default)]
struct Channel {
    part: Option<Bytes>,
    end: Option<Result<(), IncompleteBody>>,
    receiver: Option<Waker>,
    /// `Some` while the connection waits until the service reads or drops the body.
    sender: Option<Waker>,
    dropped: bool,
}

impl Http1Body {
    /// `remaining` is the value of `Content-Length`, or `None` for a chunked body.
    pub(super) fn channel(remaining: Option<u64>) -> (RequestBodySender, Self) {
        let channel = Arc::new(Mutex::new(Channel::default()));
        let receiver = Receiver {
            channel: Arc::clone(&channel),
            remaining,
            ended: false,
        };
        (
            RequestBodySender(channel),
            Self(Http1BodySource::Channel(receiver)),
        )
    }

    pub(crate) fn into_complete(self) -> Result<Bytes, Self> {
        match self.0 {
            Http1BodySource::Complete(bytes) => Ok(bytes),
            Http1BodySource::Channel(_) => Err(self),
        }
    }
}

impl From<Bytes> for Http1Body {
    fn from(bytes: Bytes) -> Self {
        Self(Http1BodySource::Complete(bytes))
    }
}

impl RequestBodySender {
    pub(super) fn poll_demand(&self, cx: &mut Context<'_>) -> Poll<Demand> {
        let mut channel = self.0.lock();
        if channel.dropped {
            return Poll::Ready(Demand::Nothing);
        }
        // The waker is registered even if the service already waits, because the service can drop the body before the
        // next part.
        channel.sender = Some(cx.waker().clone());
        if channel.receiver.is_some() {
            Poll::Ready(Demand::More)
        } else {
            Poll::Pending
        }
    }

    pub(super) fn is_dropped(&self) -> bool {
        self.0.lock().dropped
    }

    /// Call this only after [`poll_demand`](Self::poll_demand) returned [`Demand::More`].
    pub(super) fn send(&self, part: Bytes) {
        let mut channel = self.0.lock();
        channel.part = Some(part);
        channel.wake_receiver();
    }

    pub(super) fn end(self, end: Result<(), IncompleteBody>) {
        self.0.lock().end(end);
    }
}

impl Drop for RequestBodySender {
    fn drop(&mut self) {
        self.0.lock().end(Err(IncompleteBody::Disconnected));
    }
}

impl Channel {
    fn end(&mut self, end: Result<(), IncompleteBody>) {
        if self.end.is_none() {
            self.end = Some(end);
            self.wake_receiver();
        }
    }

    fn wake_receiver(&mut self) {
        if let Some(receiver) = self.receiver.take() {
            receiver.wake();
        }
    }
}

impl Receiver {
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, IncompleteBody>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let mut channel = self.channel.lock();
        if let Some(part) = channel.part.take() {
            self.remaining = self
                .remaining
                .map(|remaining| remaining - part.len() as u64);
            self.ended = channel.end == Some(Ok(()));
            return Poll::Ready(Some(Ok(part)));
        }
        if let Some(end) = channel.end {
            self.ended = true;
            return Poll::Ready(end.err().map(Err));
        }
        // Further polls before the next part would wake the sender for nothing.
        if channel.receiver.replace(cx.waker().clone()).is_none()
            && let Some(sender) = channel.sender.take()
        {
            sender.wake();
        }
        Poll::Pending
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut channel = self.channel.lock();
        channel.dropped = true;
        if let Some(sender) = channel.sender.take() {
            sender.wake();
        }
    }
}

impl http_body::Body for Http1Body {
    type Data = Bytes;
    type Error = IncompleteBody;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, IncompleteBody>>> {
        let part = match &mut self.0 {
            Http1BodySource::Complete(bytes) if bytes.is_empty() => Poll::Ready(None),
            Http1BodySource::Complete(bytes) => Poll::Ready(Some(Ok(std::mem::take(bytes)))),
            Http1BodySource::Channel(receiver) => receiver.poll_part(cx),
        };
        part.map(|part| part.map(|part| part.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Http1BodySource::Complete(bytes) => bytes.is_empty(),
            Http1BodySource::Channel(receiver) => receiver.ended || receiver.remaining == Some(0),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Http1BodySource::Complete(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Http1BodySource::Channel(receiver) => receiver
                .remaining
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
    use http_body_util::combinators::BoxBody;
    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;

    impl TrackDelivery for Http1Body {
        fn delivered(self: Pin<&mut Self>) {}
    }

    impl TrackDelivery for http_body_util::Full<Bytes> {
        fn delivered(self: Pin<&mut Self>) {}
    }

    impl<E> TrackDelivery for BoxBody<Bytes, E> {
        fn delivered(self: Pin<&mut Self>) {}
    }

    impl<S> TrackDelivery for StreamBody<S>
    where
        StreamBody<S>: http_body::Body<Data = Bytes>,
    {
        fn delivered(self: Pin<&mut Self>) {}
    }

    async fn demand(sender: &RequestBodySender) -> Demand {
        poll_fn(|cx| sender.poll_demand(cx)).await
    }

    async fn part(body: &mut Http1Body) -> Option<Result<Bytes, IncompleteBody>> {
        let frame = body.frame().await?;
        Some(frame.map(|frame| frame.into_data().unwrap()))
    }

    #[tokio::test]
    async fn parts_are_sent_only_on_demand() {
        let (sender, mut body) = Http1Body::channel(None);
        poll_fn(|cx| {
            assert!(sender.poll_demand(cx).is_pending());
            Poll::Ready(())
        })
        .await;
        let reading = tokio::spawn(async move {
            let first = part(&mut body).await;
            let second = part(&mut body).await;
            (first, second, part(&mut body).await)
        });
        assert_eq!(demand(&sender).await, Demand::More);
        sender.send("one".into());
        assert_eq!(demand(&sender).await, Demand::More);
        sender.send("two".into());
        assert_eq!(demand(&sender).await, Demand::More);
        sender.end(Ok(()));
        let (first, second, end) = reading.await.unwrap();
        assert_eq!(first, Some(Ok("one".into())));
        assert_eq!(second, Some(Ok("two".into())));
        assert_eq!(end, None);
    }

    #[tokio::test]
    async fn a_body_of_declared_length_ends_with_its_last_part() {
        let (sender, mut body) = Http1Body::channel(Some(3));
        assert_eq!(body.size_hint().exact(), Some(3));
        sender.send("one".into());
        assert!(!body.is_end_stream());
        assert_eq!(part(&mut body).await, Some(Ok("one".into())));
        assert!(body.is_end_stream());
    }

    #[tokio::test]
    async fn a_body_whose_sender_is_dropped_fails_after_the_received_parts() {
        let (sender, mut body) = Http1Body::channel(Some(6));
        sender.send("one".into());
        drop(sender);
        assert_eq!(part(&mut body).await, Some(Ok("one".into())));
        assert_eq!(
            part(&mut body).await,
            Some(Err(IncompleteBody::Disconnected))
        );
        assert_eq!(part(&mut body).await, None);
    }

    #[tokio::test]
    async fn the_sender_is_notified_when_a_body_with_demand_is_dropped() {
        let (sender, mut body) = Http1Body::channel(None);
        let reading = tokio::spawn(async move { part(&mut body).await });
        assert_eq!(demand(&sender).await, Demand::More);
        let notified = tokio::spawn(poll_fn(move |cx| match sender.poll_demand(cx) {
            Poll::Ready(Demand::Nothing) => Poll::Ready(()),
            _ => Poll::Pending,
        }));
        tokio::task::yield_now().await;
        reading.abort();
        notified.await.unwrap();
    }

    #[tokio::test]
    async fn a_repeated_poll_does_not_wake_the_sender() {
        let (sender, mut body) = Http1Body::channel(None);
        let counter = Arc::new(WakeCounter::default());
        let waker = Waker::from(Arc::clone(&counter));
        let mut connection = Context::from_waker(&waker);
        let mut idle = Context::from_waker(Waker::noop());
        assert!(sender.poll_demand(&mut connection).is_pending());
        for _ in 0..3 {
            assert!(Pin::new(&mut body).poll_frame(&mut idle).is_pending());
            assert!(sender.poll_demand(&mut connection).is_ready());
        }
        assert_eq!(counter.0.load(Ordering::Relaxed), 1);
    }

    /// Waker that counts how often it is woken.
    #[derive(Default)]
    struct WakeCounter(AtomicU32);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[tokio::test]
    async fn the_sender_is_notified_when_a_body_is_dropped() {
        let (sender, body) = Http1Body::channel(None);
        let demanded = tokio::spawn(async move { demand(&sender).await });
        tokio::task::yield_now().await;
        drop(body);
        assert_eq!(demanded.await.unwrap(), Demand::Nothing);
    }
}
