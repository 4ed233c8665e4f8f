//! A request's body as it comes from the client, held to what a client may send.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use thiserror::Error;

use crate::access_log::Notes;
use crate::http2;
use crate::respond::Rejection;
use crate::wire::{self, Violation};

/// A request's body: all of it, or what the client sends as it comes.
///
/// Trailers are dropped: a field that arrives behind the body could otherwise pass for one that was
/// checked.
#[derive(Debug)]
pub struct RequestBody(Source);

#[derive(Debug)]
enum Source {
    Whole(Bytes),
    Coming(Coming),
}

#[derive(Debug)]
struct Coming {
    body: Incoming,
    limit: u64,
    /// Bytes that may still come.
    allowance: u64,
    /// Counts what is read, for the access log.
    notes: Option<Arc<Notes>>,
}

/// A body as its connection delivers it. Both kinds enforce `body_timeout`.
#[derive(Debug)]
pub enum Incoming {
    /// The body of an HTTP/1 request.
    Http1(wire::Body),
    /// The body of an HTTP/2 stream.
    Http2(http2::Body),
}

/// Why a request's body ended early.
#[derive(Debug, Error)]
pub enum RequestBodyError {
    /// It grew larger than the gateway takes.
    #[error("the request body is larger than {0} bytes")]
    TooLarge(u64),
    /// The client disconnected, timed out or violated HTTP/1.
    #[error("the client's request body failed")]
    Http1(#[source] wire::BodyError),
    /// The client reset the stream, disconnected, timed out or violated HTTP/2.
    #[error("the client's request body failed")]
    Http2(#[source] http2::BodyError),
}

impl RequestBody {
    /// No body at all.
    pub const fn empty() -> Self {
        Self(Source::Whole(Bytes::new()))
    }

    /// A body that is read as it arrives, up to `limit` bytes, which `notes` count. A body that is already here was
    /// declared to be no larger.
    pub fn coming(body: Incoming, limit: u64, notes: Option<&Arc<Notes>>) -> Self {
        let body = match body {
            Incoming::Http1(body) => match body.into_whole() {
                Ok(bytes) => {
                    if let Some(notes) = notes {
                        notes.received(bytes.len());
                    }
                    return bytes.into();
                }
                Err(body) => Incoming::Http1(body),
            },
            Incoming::Http2(body) if body.is_end_stream() => return Self::empty(),
            Incoming::Http2(body) => Incoming::Http2(body),
        };
        Self(Source::Coming(Coming {
            body,
            limit,
            allowance: limit,
            notes: notes.cloned(),
        }))
    }
}

impl RequestBody {
    /// All of it, where it is here already.
    pub fn whole(&self) -> Option<&Bytes> {
        match &self.0 {
            Source::Whole(bytes) => Some(bytes),
            Source::Coming(_) => None,
        }
    }
}

impl From<Bytes> for RequestBody {
    fn from(bytes: Bytes) -> Self {
        Self(Source::Whole(bytes))
    }
}

impl Coming {
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, RequestBodyError>>> {
        loop {
            let frame = match ready!(self.body.poll_frame(cx)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => frame,
            };
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if let Some(notes) = &self.notes {
                notes.received(data.len());
            }
            let Some(left) = self.allowance.checked_sub(data.len() as u64) else {
                return Poll::Ready(Some(Err(RequestBodyError::TooLarge(self.limit))));
            };
            self.allowance = left;
            return Poll::Ready(Some(Ok(data)));
        }
    }
}

impl Incoming {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        match self {
            Self::Http1(body) => {
                let frame = Pin::new(body).poll_frame(cx);
                frame.map_err(RequestBodyError::Http1)
            }
            Self::Http2(body) => {
                let part = ready!(body.poll_part(cx));
                Poll::Ready(part.map(|part| part.map(Frame::data).map_err(RequestBodyError::Http2)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            Self::Http2(body) => body.size_hint(),
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        match &mut self.0 {
            Source::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Source::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Source::Coming(coming) => coming
                .poll_part(cx)
                .map(|part| part.map(|part| part.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Source::Whole(bytes) => bytes.is_empty(),
            Source::Coming(coming) => coming.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Source::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::Coming(coming) => coming.body.size_hint(),
        }
    }
}

impl RequestBodyError {
    /// The violation to report to the client, if it is still connected.
    pub fn violation(&self) -> Option<Violation> {
        match self {
            Self::Http2(http2::BodyError::Stalled(_)) => Some(Violation::BodyTimeout),
            Self::Http1(wire::BodyError::Violation(violation)) => Some(*violation),
            Self::Http1(wire::BodyError::Closed)
            | Self::Http2(http2::BodyError::Stream(_))
            | Self::TooLarge(_) => None,
        }
    }
}

impl From<&RequestBodyError> for Rejection {
    fn from(error: &RequestBodyError) -> Self {
        match (error, error.violation()) {
            (RequestBodyError::TooLarge(limit), _) => Self::PayloadTooLarge { limit: *limit },
            (_, Some(violation)) => violation.into(),
            (_, None) => Self::bad_request("The request body broke off."),
        }
    }
}
