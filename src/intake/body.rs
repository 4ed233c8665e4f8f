//! A request's body as it comes from the client, held to what a client may send.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use thiserror::Error;
use tokio::time::Sleep;

use crate::gateway::echo;
use crate::respond::Rejection;
use crate::wire::Violation;

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
    /// The client broke off, or did not keep to HTTP.
    #[error("the client's request body failed")]
    Client(#[source] hyper::Error),
}

impl RequestBody {
    /// No body at all.
    pub const fn empty() -> Self {
        Self(Source::Whole(Bytes::new()))
    }

    /// `body` as it comes, up to `limit` bytes and without pauses longer than `timeout`.
    pub fn coming(body: Incoming, limit: u64, timeout: Duration) -> Self {
        if body.is_end_stream() {
            return Self::empty();
        }
        Self(Source::Coming(Coming {
            body,
            limit,
            allowance: limit,
            timeout,
            stalled: None,
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
            let noted = echo::noted();
            let frame = Pin::new(&mut self.body).poll_frame(cx);
            if self.body.is_end_stream() {
                noted.and_no_more();
            }
            let frame = match frame {
                Poll::Pending => {
                    ready!(self.poll_stalled(cx));
                    return Poll::Ready(Some(Err(RequestBodyError::Stalled(self.timeout))));
                }
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(Some(Err(RequestBodyError::Client(error))));
                }
                Poll::Ready(Some(Ok(frame))) => frame,
            };
            let Ok(data) = frame.into_data() else {
                continue;
            };
            self.stalled = None;
            let Some(left) = self.allowance.checked_sub(data.len() as u64) else {
                return Poll::Ready(Some(Err(RequestBodyError::TooLarge(self.limit))));
            };
            self.allowance = left;
            return Poll::Ready(Some(Ok(data)));
        }
    }

    /// Whether the client has kept us waiting too long; called while it does.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let timeout = self.timeout;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        stalled.as_mut().poll(cx)
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
            Self::TooLarge(_) => None,
            Self::Stalled(_) => Some(Violation::BodyTimeout),
            Self::Client(error) => Violation::behind(error),
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
