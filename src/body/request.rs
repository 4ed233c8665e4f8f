//! The body of a request, within the bounds on what a client may send.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use thiserror::Error;

use super::BoxError;
use crate::access_log::Notes;
use crate::http1::Violation;
use crate::problem::Problem;
use crate::{http1, http2};

/// The body of a request: all of it, or what the client sends as it arrives.
///
/// Trailers are dropped, because nothing checks them: upstream could take such a field for a checked header.
#[derive(Debug)]
pub(crate) struct RequestBody(Source);

#[derive(Debug)]
enum Source {
    Whole(Bytes),
    Streaming(Streaming),
}

#[derive(Debug)]
struct Streaming {
    body: Transport,
    /// Length of the body in bytes at most.
    limit: u64,
    /// Bytes that may still arrive.
    allowance: u64,
    /// Counts the bytes for the access log.
    notes: Option<Arc<Notes>>,
}

/// The connection that delivers a body. The first two enforce `body_timeout`.
enum Transport {
    Http1(http1::Body),
    Http2(http2::Body),
    Application(UnsyncBoxBody<Bytes, BoxError>),
}

/// Why the body of a request ends early.
#[derive(Debug, Error)]
pub enum RequestBodyError {
    /// The body exceeds the limit, in bytes.
    #[error("the request body is larger than {0} bytes")]
    TooLarge(u64),
    /// The client disconnected, timed out or violated HTTP/1.
    #[error("the client's request body failed")]
    Http1(#[source] http1::BodyError),
    /// The client reset the stream, disconnected, timed out or violated HTTP/2.
    #[error("the client's request body failed")]
    Http2(#[source] http2::BodyError),
    /// The server of the embedding application reports an error.
    #[error("the client's request body failed")]
    Application(#[source] BoxError),
}

impl RequestBody {
    /// Creates an empty body.
    pub(crate) const fn empty() -> Self {
        Self(Source::Whole(Bytes::new()))
    }

    /// Creates a body of an HTTP/1 connection, of up to `limit` bytes. A body that has already arrived is not counted:
    /// the check of the head rejects a larger declared length.
    pub(crate) fn http1(body: http1::Body, limit: u64) -> Self {
        match body.into_whole() {
            Ok(bytes) => bytes.into(),
            Err(body) => Self::streaming(Transport::Http1(body), limit),
        }
    }

    /// Creates a body of an HTTP/2 stream, of up to `limit` bytes.
    pub(crate) fn http2(body: http2::Body, limit: u64) -> Self {
        if body.is_end_stream() {
            Self::empty()
        } else {
            Self::streaming(Transport::Http2(body), limit)
        }
    }

    /// Counts the bytes of the body in `notes`, also those that have already arrived.
    pub(crate) fn count_bytes(&mut self, notes: &Arc<Notes>) {
        match &mut self.0 {
            Source::Whole(bytes) => notes.received(bytes.len()),
            Source::Streaming(streaming) => streaming.notes = Some(Arc::clone(notes)),
        }
    }

    /// Creates a body that the server of an embedding application delivers.
    pub(crate) fn application<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let body = body.map_err(Into::into).boxed_unsync();
        Self::streaming(Transport::Application(body), u64::MAX)
    }

    fn streaming(body: Transport, limit: u64) -> Self {
        Self(Source::Streaming(Streaming {
            body,
            limit,
            allowance: limit,
            notes: None,
        }))
    }

    /// Returns all bytes, if they have arrived.
    pub(crate) fn whole(&self) -> Option<&Bytes> {
        match &self.0 {
            Source::Whole(bytes) => Some(bytes),
            Source::Streaming(_) => None,
        }
    }
}

impl From<Bytes> for RequestBody {
    fn from(bytes: Bytes) -> Self {
        Self(Source::Whole(bytes))
    }
}

impl Streaming {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, RequestBodyError>>> {
        let data = match ready!(self.body.poll_data(cx)) {
            Some(Ok(data)) => data,
            ended => return Poll::Ready(ended),
        };
        if let Some(notes) = &self.notes {
            notes.received(data.len());
        }
        let Some(left) = self.allowance.checked_sub(data.len() as u64) else {
            return Poll::Ready(Some(Err(RequestBodyError::TooLarge(self.limit))));
        };
        self.allowance = left;
        Poll::Ready(Some(Ok(data)))
    }
}

impl Transport {
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, RequestBodyError>>> {
        loop {
            let frame = match self {
                Self::Http1(body) => ready!(Pin::new(body).poll_frame(cx))
                    .map(|frame| frame.map_err(RequestBodyError::Http1)),
                Self::Http2(body) => {
                    let data = ready!(body.poll_part(cx));
                    return Poll::Ready(data.map(|data| data.map_err(RequestBodyError::Http2)));
                }
                Self::Application(body) => ready!(Pin::new(body).poll_frame(cx))
                    .map(|frame| frame.map_err(RequestBodyError::Application)),
            };
            match frame.map(|frame| frame.map(Frame::into_data)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(Ok(data))) => return Poll::Ready(Some(Ok(data))),
                Some(Ok(Err(_trailers))) => {}
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_end_stream(),
            Self::Http2(body) => body.is_end_stream(),
            Self::Application(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.size_hint(),
            Self::Http2(body) => body.size_hint(),
            Self::Application(body) => body.size_hint(),
        }
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http1(_) => "Http1",
            Self::Http2(_) => "Http2",
            Self::Application(_) => "Application",
        })
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
            Source::Streaming(streaming) => streaming
                .poll_data(cx)
                .map(|data| data.map(|data| data.map(Frame::data))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Source::Whole(bytes) => bytes.is_empty(),
            Source::Streaming(streaming) => streaming.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Source::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::Streaming(streaming) => streaming.body.size_hint(),
        }
    }
}

impl RequestBodyError {
    /// Returns the violation to report to the client, if it is still connected.
    pub fn violation(&self) -> Option<Violation> {
        match self {
            Self::Http2(http2::BodyError::Stalled(_)) => Some(Violation::BodyTimeout),
            Self::Http1(http1::BodyError::Violation(violation)) => Some(*violation),
            Self::Http1(http1::BodyError::Closed)
            | Self::Http2(http2::BodyError::Stream(_))
            | Self::Application(_)
            | Self::TooLarge(_) => None,
        }
    }
}

impl From<RequestBodyError> for Problem {
    fn from(error: RequestBodyError) -> Self {
        match (&error, error.violation()) {
            (RequestBodyError::TooLarge(limit), _) => Self::payload_too_large(*limit),
            (_, Some(violation)) => violation.into(),
            (RequestBodyError::Application(_), None) => {
                Self::bad_request("The request body could not be read.")
            }
            (_, None) => Self::bad_request("The request body broke off."),
        }
    }
}
