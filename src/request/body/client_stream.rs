//! Body of a request that arrives on an HTTP/1 or HTTP/2 connection of the gateway.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use thiserror::Error;

use crate::http::http1::{Http1Body, Http1BodyError, Violation};
use crate::http::http2::{Http2Body, Http2BodyError};
use crate::metrics::Metrics;
use crate::respond::Problem;

/// Body on a client connection, which enforces `body_timeout` and `min_rate`.
pub(super) struct ClientStream {
    source: ClientSource,
    /// Metrics that count a body below `min_rate`.
    metrics: Arc<Metrics>,
}

enum ClientSource {
    Http1(Http1Body),
    Http2(Http2Body),
}

/// Error of a request body that the gateway cannot read from the client connection.
#[derive(Debug, Error)]
pub enum ClientStreamError {
    /// The client disconnected, violated `body_timeout` or `min_rate`, or violated HTTP/1.
    #[error("cannot read the request body from the HTTP/1 connection")]
    Http1(#[source] Http1BodyError),
    /// The client reset the stream, disconnected, violated `body_timeout` or `min_rate`, or violated HTTP/2.
    #[error("cannot read the request body from the HTTP/2 stream")]
    Http2(#[source] Http2BodyError),
}

impl ClientStream {
    pub(super) fn http1(body: Http1Body, metrics: &Arc<Metrics>) -> Self {
        Self {
            source: ClientSource::Http1(body),
            metrics: Arc::clone(metrics),
        }
    }

    pub(super) fn http2(body: Http2Body, metrics: &Arc<Metrics>) -> Self {
        Self {
            source: ClientSource::Http2(body),
            metrics: Arc::clone(metrics),
        }
    }

    /// Polls for the next part of the body. Trailers are dropped.
    pub(super) fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, ClientStreamError>>> {
        let data = ready!(self.source.poll_data(cx));
        if let Some(Err(error)) = &data
            && error.violation() == Some(Violation::BodyTooSlow)
        {
            self.metrics.slow_bodies.inc();
        }
        Poll::Ready(data)
    }

    pub(super) fn is_end_stream(&self) -> bool {
        match &self.source {
            ClientSource::Http1(body) => body.is_end_stream(),
            ClientSource::Http2(body) => body.is_end_stream(),
        }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match &self.source {
            ClientSource::Http1(body) => body.size_hint(),
            ClientSource::Http2(body) => body.size_hint(),
        }
    }
}

impl ClientSource {
    fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, ClientStreamError>>> {
        let body = match self {
            Self::Http1(body) => body,
            Self::Http2(body) => {
                let data = ready!(body.poll_part(cx));
                return Poll::Ready(data.map(|data| data.map_err(ClientStreamError::Http2)));
            }
        };
        loop {
            let frame = ready!(Pin::new(&mut *body).poll_frame(cx));
            match frame.map(|frame| frame.map(Frame::into_data)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(ClientStreamError::Http1(error)))),
                Some(Ok(Ok(data))) => return Poll::Ready(Some(Ok(data))),
                Some(Ok(Err(_trailers))) => {}
            }
        }
    }
}

impl fmt::Debug for ClientStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.source {
            ClientSource::Http1(_) => "Http1",
            ClientSource::Http2(_) => "Http2",
        })
    }
}

impl ClientStreamError {
    /// Returns the violation of HTTP, `body_timeout` or `min_rate` that the gateway reports to the client. Returns
    /// `None` if the client has disconnected.
    pub(super) fn violation(&self) -> Option<Violation> {
        match self {
            Self::Http1(Http1BodyError::Violation(violation))
            | Self::Http2(Http2BodyError::Violation(violation)) => Some(*violation),
            Self::Http1(Http1BodyError::Closed) | Self::Http2(Http2BodyError::Stream(_)) => None,
        }
    }
}

impl From<ClientStreamError> for Problem {
    fn from(error: ClientStreamError) -> Self {
        match error.violation() {
            Some(violation) => violation.into(),
            None => Self::bad_request(
                "The client closed the connection before the request body was complete. Send a complete body.",
            ),
        }
    }
}
