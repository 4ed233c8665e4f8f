//! The body of an HTTP/2 request.
//!
//! A body is complete only if its stream ended with `END_STREAM`. A reset of any code, `NO_ERROR` included, and
//! the end of the connection are errors. Upstream is HTTP/1, where a body with a declared length is complete with
//! its last byte; so the last part of such a body is held back until the stream ends.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::RecvStream;
use http::Request;
use http::header::{CONTENT_LENGTH, EXPECT};
use http_body::SizeHint;
use thiserror::Error;
use tokio::sync::oneshot;
use tokio::time::Sleep;

use super::linger::Unread;

/// The body of a request. Trailers are dropped.
#[derive(Debug)]
pub(crate) struct Body {
    /// `Some` until the body is dropped.
    stream: Option<RecvStream>,
    /// Gets the stream if the body is dropped before its end.
    unread: Option<oneshot::Sender<RecvStream>>,
    /// Declared bytes that are still to be received.
    declared: Option<u64>,
    /// The last declared bytes, until the stream ends.
    last: Option<Bytes>,
    /// How long the client may send nothing while the body is read.
    timeout: Duration,
    /// Runs only while the body is awaited.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Reports the first read, for a client that expects `100 Continue`.
    first_read: Option<oneshot::Sender<()>>,
}

const NOT_DROPPED: &str = "only a drop takes the stream";

/// The first read of a body whose client expects `100 Continue`.
#[derive(Debug)]
pub(super) struct FirstRead(Option<oneshot::Receiver<()>>);

/// Why a body ended early.
#[derive(Debug, Error)]
pub enum BodyError {
    /// The client sent nothing for this long.
    #[error("the client sent nothing for {0:?}")]
    Stalled(Duration),
    /// The client reset the stream, violated the protocol or disconnected.
    #[error(transparent)]
    Stream(#[from] h2::Error),
}

/// Replaces the stream of `request` by its body. What the service does not read of the body is left in [`Unread`].
pub(super) fn receive(
    request: Request<RecvStream>,
    timeout: Duration,
) -> (Request<Body>, FirstRead, Unread) {
    let header = |name| request.headers().get(name);
    // A length that is not a number is rejected with the request's other headers.
    let declared = header(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok())
        .and_then(|length| length.parse().ok());
    let expects =
        header(EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    let has_body = !request.body().is_end_stream();
    let (first_read, reported) = if expects && has_body {
        let (sender, receiver) = oneshot::channel();
        (Some(sender), Some(receiver))
    } else {
        (None, None)
    };
    let (unread, rest) = if has_body {
        let (sender, returned) = oneshot::channel();
        (Some(sender), Unread::of(returned))
    } else {
        (None, Unread::nothing())
    };
    let request = request.map(|stream| Body {
        stream: Some(stream),
        unread,
        declared,
        last: None,
        timeout,
        stalled: None,
        first_read,
    });
    (request, FirstRead(reported), rest)
}

impl FirstRead {
    /// Ready once, when the body is read for the first time.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(receiver) = &mut self.0 else {
            return Poll::Pending;
        };
        let reported = ready!(Pin::new(receiver).poll(cx));
        self.0 = None;
        match reported {
            Ok(()) => Poll::Ready(()),
            Err(_dropped) => Poll::Pending,
        }
    }
}

impl Body {
    /// Waits for the end of a body that is declared to be empty, and of no other.
    pub(super) async fn end_if_declared_empty(&mut self) -> Result<(), BodyError> {
        if self.declared != Some(0) || self.is_end_stream() {
            return Ok(());
        }
        // `h2` resets a stream that has more data than declared.
        let part = std::future::poll_fn(|cx| self.poll_part(cx)).await;
        part.transpose().map(|_empty| ())
    }

    /// The next part of the body, or `None` at its end.
    pub(crate) fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, BodyError>>> {
        if let Some(first_read) = self.first_read.take() {
            // The receiver is gone if the response has begun.
            let _ = first_read.send(());
        }
        loop {
            let stream = self.stream.as_mut().expect(NOT_DROPPED);
            let Poll::Ready(part) = stream.poll_data(cx) else {
                let timeout = self.timeout;
                let stalled = self
                    .stalled
                    .get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
                ready!(stalled.as_mut().poll(cx));
                return Poll::Ready(Some(Err(BodyError::Stalled(timeout))));
            };
            self.stalled = None;
            let part = match part {
                None => return Poll::Ready(self.last.take().map(Ok)),
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                Some(Ok(part)) => part,
            };
            // An error means that the stream is closed, which the next read reports.
            let _ = stream.flow_control().release_capacity(part.len());
            if part.is_empty() {
                continue;
            }
            let Some(declared) = &mut self.declared else {
                return Poll::Ready(Some(Ok(part)));
            };
            *declared = declared.saturating_sub(part.len() as u64);
            if *declared > 0 || stream.is_end_stream() {
                return Poll::Ready(Some(Ok(part)));
            }
            self.last = Some(part);
        }
    }

    /// Whether the whole body was read.
    pub(crate) fn is_end_stream(&self) -> bool {
        let stream = self.stream.as_ref().expect(NOT_DROPPED);
        self.last.is_none() && stream.is_end_stream()
    }

    /// The declared length of what is still to be read.
    pub(crate) fn size_hint(&self) -> SizeHint {
        match self.declared {
            Some(declared) => {
                let held = self.last.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(declared + held as u64)
            }
            None => SizeHint::default(),
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        if let (Some(stream), Some(unread)) = (self.stream.take(), self.unread.take())
            && !stream.is_end_stream()
        {
            // The receiver is gone if the exchange has ended.
            let _ = unread.send(stream);
        }
    }
}
