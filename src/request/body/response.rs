//! Body of a response to a client: bytes in memory, a stream, or bytes followed by a stream.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use thiserror::Error;

use super::BoxError;
use super::held::HeldParts;
use crate::respond::TimeoutPhase;

/// Body of a response to a client.
pub struct ResponseBody {
    /// The complete body, or the part of a stream that the gateway had read when it found the body too large to store.
    held: HeldParts,
    /// Boxed to keep the response small, because each stage moves it.
    stream: Option<Stream>,
}

type Stream = Pin<Box<dyn Body<Data = Bytes, Error = BodyError> + Send>>;

/// Error that ends the body of a response before it is complete.
#[derive(Debug, Error)]
pub enum BodyError {
    /// The upstream sent no data for this duration, which is the `idle_timeout` of the upstream.
    #[error("upstream sent no response data for {0:?} (`idle_timeout`)")]
    Stalled(Duration),
    /// The request with all its attempts took longer than the `timeout` of the upstream.
    #[error(
        "upstream response was not complete within the `timeout` of the upstream (total timeout)"
    )]
    TimedOut,
    /// The upstream closed the connection before the end of the body, or sent a body that is not valid HTTP.
    #[cfg(feature = "gateway")]
    #[error("cannot read the response body from the upstream: {0}")]
    Upstream(#[source] hyper::Error),
    /// The response body of the embedding application returned an error.
    #[error(transparent)]
    Application(BoxError),
    /// The scenario of the route ends the response at this point.
    #[error("the scenario of the route aborts the response")]
    Scenario {
        /// Whether the server resets the connection instead of closing it.
        resets: bool,
    },
}

impl ResponseBody {
    /// Creates the body of a response without content.
    pub fn empty() -> Self {
        Self::from(Bytes::new())
    }

    /// Creates a body that is streamed to the client while it is read from `body`.
    pub fn streaming(body: impl Body<Data = Bytes, Error = BodyError> + Send + 'static) -> Self {
        Self {
            held: HeldParts::default(),
            stream: Some(Box::pin(body)),
        }
    }

    /// The client receives `first`, then `second`, then the stream.
    pub(crate) fn put_back(&mut self, first: Bytes, second: Bytes) {
        self.held = HeldParts::new(first, second);
    }
}

impl From<Bytes> for ResponseBody {
    fn from(bytes: Bytes) -> Self {
        Self {
            held: HeldParts::new(bytes, Bytes::new()),
            stream: None,
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(part) = self.held.take() {
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        match &mut self.stream {
            Some(stream) => stream.as_mut().poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_empty() && self.stream.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.stream.as_ref().map(Body::size_hint);
        let rest = rest.unwrap_or_else(|| SizeHint::with_exact(0));
        self.held.size_with(&rest)
    }
}

impl fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody")
            .field("held", &self.held.len())
            .field("is_streaming", &self.stream.is_some())
            .finish()
    }
}

impl BodyError {
    /// Returns whether the body is malformed HTTP, for example because of a chunk with an invalid size. A truncated
    /// body is not malformed.
    pub fn is_invalid_http(&self) -> bool {
        match self {
            #[cfg(feature = "gateway")]
            Self::Upstream(error) => is_malformed(error),
            _ => false,
        }
    }

    /// Returns the timeout that expired; `None` if the error is not a timeout.
    pub fn timeout(&self) -> Option<TimeoutPhase> {
        match self {
            Self::Stalled(_) => Some(TimeoutPhase::Idle),
            Self::TimedOut => Some(TimeoutPhase::Total),
            _ => None,
        }
    }
}

#[cfg(feature = "gateway")]
fn is_malformed(error: &hyper::Error) -> bool {
    use std::io::{Error, ErrorKind};
    let source = std::error::Error::source(error);
    let Some(error) = source.and_then(|source| source.downcast_ref::<Error>()) else {
        return false;
    };
    // hyper reports malformed chunks and trailers with these two kinds, but rustls uses them for malformed TLS records,
    // which are not HTTP.
    let is_tls = matches!(error.get_ref(), Some(inner) if inner.is::<rustls::Error>());
    let is_malformed = matches!(
        error.kind(),
        ErrorKind::InvalidData | ErrorKind::InvalidInput
    );
    is_malformed && !is_tls
}
