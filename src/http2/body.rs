//! Body of an HTTP/2 request.
//!
//! A body is complete only if its stream ends with `END_STREAM`. A reset with any code, including `NO_ERROR`, and a
//! close of the connection are errors. Upstream is HTTP/1, where a body of declared length is complete with its last
//! byte. So the last part of such a body is withheld until the stream ends.

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

/// The body of an HTTP/2 request. Trailers are dropped.
#[derive(Debug)]
pub(crate) struct Http2Body {
    /// `Some` until the body is dropped.
    stream: Option<RecvStream>,
    /// Receives the stream if the body is dropped before its end.
    unread: Option<oneshot::Sender<RecvStream>>,
    /// Bytes still to be received, if the client declared a length.
    declared: Option<u64>,
    /// The last declared bytes, withheld until the stream ends.
    last: Option<Bytes>,
    /// Longest time without data while the service waits for the body.
    timeout: Duration,
    /// Timer of `timeout`. It runs only while the service waits for the body.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Notified of the first read, if the client expects `100 Continue`.
    first_read: Option<oneshot::Sender<()>>,
}

const NOT_DROPPED: &str = "only `drop` takes the stream";

/// Notification of the first read of a body whose client expects `100 Continue`.
#[derive(Debug)]
pub(super) struct FirstRead(Option<oneshot::Receiver<()>>);

/// Why an HTTP/2 request body ended early.
#[derive(Debug, Error)]
pub enum Http2BodyError {
    /// The client sent no data for this time.
    #[error("the client sent no data for {0:?}")]
    Stalled(Duration),
    /// The client reset the stream, violated the protocol or disconnected.
    #[error(transparent)]
    Stream(#[from] h2::Error),
}

/// Replaces the stream of `request` by its body. [`Unread`] receives the part of the body that the service does not
/// read.
pub(super) fn receive(
    request: Request<RecvStream>,
    timeout: Duration,
) -> (Request<Http2Body>, FirstRead, Unread) {
    let header = |name| request.headers().get(name);
    // `intake` rejects a length that is not a number.
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
    let request = request.map(|stream| Http2Body {
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
    /// Is ready once, when the body is read for the first time.
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

impl Http2Body {
    /// Waits for the end of the stream if the body is declared empty. Otherwise returns immediately.
    pub(super) async fn end_if_declared_empty(&mut self) -> Result<(), Http2BodyError> {
        if self.declared != Some(0) || self.is_end_stream() {
            return Ok(());
        }
        // There is no data to lose: `h2` resets a stream that has more data than declared.
        let part = std::future::poll_fn(|cx| self.poll_part(cx)).await;
        part.transpose().map(|_empty| ())
    }

    /// Returns the next part of the body, or `None` at its end.
    pub(crate) fn poll_part(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Http2BodyError>>> {
        if let Some(first_read) = self.first_read.take() {
            // The receiver no longer exists if the response has started.
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
                return Poll::Ready(Some(Err(Http2BodyError::Stalled(timeout))));
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

    /// Whether the body was read completely.
    pub(crate) fn is_end_stream(&self) -> bool {
        let stream = self.stream.as_ref().expect(NOT_DROPPED);
        self.last.is_none() && stream.is_end_stream()
    }

    /// Returns the declared length of the part that is still to be read.
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

impl Drop for Http2Body {
    fn drop(&mut self) {
        if let (Some(stream), Some(unread)) = (self.stream.take(), self.unread.take())
            && !stream.is_end_stream()
        {
            // The receiver no longer exists if the exchange has ended.
            let _ = unread.send(stream);
        }
    }
}
