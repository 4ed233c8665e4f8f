//! A request's body as it comes from the client, held to what a client may send.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use thiserror::Error;
use tokio::time::Sleep;

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
}

/// A body as its connection gives it.
#[derive(Debug)]
pub enum Incoming {
    /// By HTTP/1, which keeps the client to its time.
    Http1(wire::Body),
    /// By HTTP/2, which does not.
    Http2(Timed),
}

/// A body that may not pause for long.
#[derive(Debug)]
pub struct Timed {
    body: hyper::body::Incoming,
    /// How long the client may send nothing.
    timeout: Duration,
    /// Runs only while the client keeps us waiting.
    stalled: Option<Pin<Box<Sleep>>>,
}

/// Why a request's body ended early.
#[derive(Debug, Error)]
pub enum RequestBodyError {
    /// It grew larger than the gateway takes.
    #[error("the request body is larger than {0} bytes")]
    TooLarge(u64),
    /// The client sent nothing for too long.
    #[error("the client sent nothing for {0:?}")]
    Stalled(Duration),
    /// The client broke off, or did not keep to HTTP/1.
    #[error("the client's request body failed")]
    Http1(#[source] wire::BodyError),
    /// The client broke off, or did not keep to HTTP/2.
    #[error("the client's request body failed")]
    Http2(#[source] hyper::Error),
}

impl RequestBody {
    /// No body at all.
    pub const fn empty() -> Self {
        Self(Source::Whole(Bytes::new()))
    }

    /// `body` as it comes, up to `limit` bytes. One that is here whole was declared to be no larger.
    pub fn coming(body: Incoming, limit: u64) -> Self {
        let body = match body {
            Incoming::Http1(body) => match body.into_whole() {
                Ok(bytes) => return bytes.into(),
                Err(body) => Incoming::Http1(body),
            },
            Incoming::Http2(timed) if timed.body.is_end_stream() => return Self::empty(),
            Incoming::Http2(timed) => Incoming::Http2(timed),
        };
        Self(Source::Coming(Coming {
            body,
            limit,
            allowance: limit,
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
            let Some(left) = self.allowance.checked_sub(data.len() as u64) else {
                return Poll::Ready(Some(Err(RequestBodyError::TooLarge(self.limit))));
            };
            self.allowance = left;
            return Poll::Ready(Some(Ok(data)));
        }
    }
}

impl Incoming {
    /// A body that comes by HTTP/2, without pauses longer than `timeout`.
    pub fn http2(body: hyper::body::Incoming, timeout: Duration) -> Self {
        Self::Http2(Timed {
            body,
            timeout,
            stalled: None,
        })
    }

    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        match self {
            Self::Http1(body) => {
                let frame = Pin::new(body).poll_frame(cx);
                frame.map_err(RequestBodyError::Http1)
            }
            Self::Http2(timed) => timed.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(timed) => timed.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            Self::Http2(timed) => timed.body.size_hint(),
        }
    }
}

impl Timed {
    fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.stalled = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(RequestBodyError::Http2)));
        }
        let timeout = self.timeout;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Some(Err(RequestBodyError::Stalled(timeout))))
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
    /// What the client did wrong, if it is still there to be told.
    pub fn violation(&self) -> Option<Violation> {
        match self {
            Self::Stalled(_) => Some(Violation::BodyTimeout),
            Self::Http1(wire::BodyError::Violation(violation)) => Some(*violation),
            Self::Http1(wire::BodyError::Closed) | Self::Http2(_) | Self::TooLarge(_) => None,
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
