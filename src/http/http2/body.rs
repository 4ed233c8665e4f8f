//! Body of an HTTP/2 request.
//!
//! A body is complete only if its stream ends with `END_STREAM`, and not if the client resets it, also with `NO_ERROR`.
//! The upstream uses HTTP/1, where a body with `Content-Length` is complete with its last byte. So the last part of
//! such a body is withheld from the service until the stream ends.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::Fuse;
use h2::RecvStream;
use http::Request;
use http::header::{CONTENT_LENGTH, EXPECT};
use http_body::{Body, Frame, SizeHint};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep_until};

use super::linger::Unread;
use super::{CONNECTION_WINDOW, STREAM_WINDOW};
use crate::http::IncompleteBody;
use crate::http::http1::{BodyWait, Violation};
use crate::http::settings::ClientTimeouts;

/// Trailers are dropped.
#[derive(Debug)]
pub(crate) struct Http2Body {
    /// `None` only in the destructor, after it has taken the stream.
    stream: Option<RecvStream>,
    /// Passes the stream to [`Unread`] if the service drops the body before its end.
    unread: Option<oneshot::Sender<RecvStream>>,
    /// Bytes still to be received; `None` without a `Content-Length`.
    declared: Option<u64>,
    /// Withheld from the service until the stream ends.
    last: Option<Bytes>,
    wait: BodyWait,
    /// Start of the wait for the client, and its timer. `Some` only while the service waits for the body.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
    paused_bodies: Weak<()>,
    /// `Some` while the service does not wait for the body.
    paused: Option<Arc<()>>,
    /// Reports the first read. `None` after it, or if the client does not wait for `100 Continue`.
    first_read: Option<oneshot::Sender<()>>,
}

const NOT_DROPPED: &str = "only `drop` takes the stream";

/// Ready when the service reads the body for the first time, if the client waits for `100 Continue`.
pub(super) type FirstRead = Fuse<oneshot::Receiver<()>>;

/// [`Unread`] receives the stream if the service drops the body before its end.
pub(super) fn receive(
    request: Request<RecvStream>,
    timeouts: &ClientTimeouts,
    paused_bodies: &Arc<()>,
) -> (Request<Http2Body>, FirstRead, Unread) {
    let header = |name| request.headers().get(name);
    // The entry of the request rejects an invalid length later.
    let declared = header(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok())
        .and_then(|length| length.parse().ok());
    let expects =
        header(EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    let has_body = !request.body().is_end_stream();
    let (first_read, reported) = if expects && has_body {
        let (sender, receiver) = oneshot::channel();
        (Some(sender), receiver.fuse())
    } else {
        (None, Fuse::terminated())
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
        wait: BodyWait::new(timeouts),
        waiting: None,
        paused_bodies: Arc::downgrade(paused_bodies),
        paused: has_body.then(|| Arc::clone(paused_bodies)),
        first_read,
    });
    (request, reported, rest)
}

impl Http2Body {
    /// Waits for the end of the stream if the request has `content-length: 0`.
    pub(super) async fn end_if_declared_empty(&mut self) -> Result<(), IncompleteBody> {
        if self.declared != Some(0) || self.is_end_stream() {
            return Ok(());
        }
        // The part is empty, because `h2` resets a stream that has more data than declared.
        let part = std::future::poll_fn(|cx| self.poll_part(cx)).await;
        part.transpose().map(|_empty| ())
    }

    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, IncompleteBody>>> {
        if let Some(first_read) = self.first_read.take() {
            // On an error, the response has started, and `100 Continue` is not needed.
            let _ = first_read.send(());
        }
        self.paused = None;
        let part = ready!(self.poll_received(cx));
        if let Some(Ok(_)) = part {
            self.paused = self.paused_bodies.upgrade();
        }
        Poll::Ready(part)
    }

    fn poll_received(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, IncompleteBody>>> {
        loop {
            let stream = self.stream.as_mut().expect(NOT_DROPPED);
            let Poll::Ready(part) = stream.poll_data(cx) else {
                let violation = ready!(self.poll_timeout(cx));
                return Poll::Ready(Some(Err(violation.into())));
            };
            let part = match part {
                None => return Poll::Ready(self.last.take().map(Ok)),
                Some(Err(error)) => {
                    tracing::debug!(%error, "cannot read request body from HTTP/2 stream");
                    return Poll::Ready(Some(Err(IncompleteBody::Disconnected)));
                }
                Some(Ok(part)) => part,
            };
            if part.is_empty() {
                // An empty DATA frame does not end the wait.
                continue;
            }
            // On an error, the stream is closed, and the next read reports this.
            let _ = stream.flow_control().release_capacity(part.len());
            let waited = self.waiting.take().map(|(start, _)| start.elapsed());
            self.wait.received(waited.unwrap_or_default(), part.len());
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

    /// Waits until the client has sent nothing for too long.
    fn poll_timeout(&mut self, cx: &mut Context<'_>) -> Poll<Violation> {
        let (start, timer) = self.waiting.get_or_insert_with(|| {
            let start = Instant::now();
            (start, Box::pin(sleep_until(start)))
        });
        loop {
            // So many paused bodies can fill the window of the connection, so that this stream cannot send. The connection
            // itself has one reference.
            let paused = self.paused_bodies.strong_count().saturating_sub(1);
            let (limit, violation) = if paused >= (CONNECTION_WINDOW / STREAM_WINDOW) as usize {
                self.wait.longest_pause()
            } else {
                self.wait.limit()
            };
            // The limit changes with the number of paused bodies.
            let due = *start + limit;
            if timer.deadline() != due {
                timer.as_mut().reset(due);
            }
            ready!(timer.as_mut().poll(cx));
            if Instant::now() >= due {
                return Poll::Ready(violation);
            }
        }
    }
}

impl Body for Http2Body {
    type Data = Bytes;
    type Error = IncompleteBody;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, IncompleteBody>>> {
        let part = self.poll_part(cx);
        part.map(|part| part.map(|part| part.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        let stream = self.stream.as_ref().expect(NOT_DROPPED);
        self.last.is_none() && stream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
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
            // On an error, the exchange has ended, and `h2` resets the stream.
            let _ = unread.send(stream);
        }
    }
}
