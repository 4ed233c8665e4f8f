//! The body of a response: bytes in memory, or what its source sends as it arrives.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use thiserror::Error;

use super::BoxError;
use crate::problem::TimeoutPhase;

/// The body of a response.
pub struct ResponseBody {
    /// Bytes that precede the stream: the whole body, or what was read of a stream before it was found too large to
    /// store.
    held: [Bytes; 2],
    /// The rest. Boxed, because a response is moved from stage to stage.
    stream: Option<Stream>,
}

type Stream = Pin<Box<dyn Body<Data = Bytes, Error = BodyError> + Send>>;

/// Why the body of a response ends early.
#[derive(Debug, Error)]
pub enum BodyError {
    /// Upstream sent nothing for the whole `idle_timeout`.
    #[error("upstream sent nothing for {0:?}")]
    Stalled(Duration),
    /// The exchange exceeded `timeout`.
    #[error("the exchange exceeded its timeout")]
    TimedOut,
    /// Upstream closed the connection in the body, or sent a body that is not valid HTTP.
    #[error("upstream's response failed: {0}")]
    Upstream(#[source] hyper::Error),
    /// The body of the embedding application reports an error.
    #[error(transparent)]
    Application(BoxError),
}

impl ResponseBody {
    /// Creates an empty body.
    pub fn empty() -> Self {
        Self::from(Bytes::new())
    }

    /// Creates a body that is forwarded as it arrives.
    pub fn streaming(body: impl Body<Data = Bytes, Error = BodyError> + Send + 'static) -> Self {
        Self {
            held: [Bytes::new(), Bytes::new()],
            stream: Some(Box::pin(body)),
        }
    }

    /// Puts bytes that were read from the body before its rest.
    pub(crate) fn put_back(&mut self, first: Bytes, second: Bytes) {
        self.held = if first.is_empty() {
            [second, first]
        } else {
            [first, second]
        };
    }
}

impl From<Bytes> for ResponseBody {
    fn from(bytes: Bytes) -> Self {
        Self {
            held: [bytes, Bytes::new()],
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
        if !self.held[0].is_empty() {
            let [first, second] = &mut self.held;
            let part = std::mem::replace(first, std::mem::take(second));
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        match &mut self.stream {
            Some(stream) => stream.as_mut().poll_frame(cx),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.held[0].is_empty() && self.stream.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let held = (self.held[0].len() + self.held[1].len()) as u64;
        let Some(stream) = &self.stream else {
            return SizeHint::with_exact(held);
        };
        let rest = stream.size_hint();
        let mut hint = SizeHint::new();
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper + held);
        }
        hint.set_lower(rest.lower() + held);
        hint
    }
}

impl fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody")
            .field("held", &(self.held[0].len() + self.held[1].len()))
            .field("is_streaming", &self.stream.is_some())
            .finish()
    }
}

impl BodyError {
    /// Returns whether the body violates HTTP, as a chunk without a valid size does. A truncated body does not.
    pub fn is_invalid_http(&self) -> bool {
        use io::ErrorKind::{InvalidData, InvalidInput};
        let Self::Upstream(error) = self else {
            return false;
        };
        let source = std::error::Error::source(error);
        let Some(error) = source.and_then(|source| source.downcast_ref::<io::Error>()) else {
            return false;
        };
        // hyper reports malformed chunks and trailers with these two kinds, and rustls malformed records.
        let is_tls = matches!(error.get_ref(), Some(inner) if inner.is::<rustls::Error>());
        matches!(error.kind(), InvalidData | InvalidInput) && !is_tls
    }

    /// Returns the timeout that expired, if any.
    pub fn timeout(&self) -> Option<TimeoutPhase> {
        match self {
            Self::Stalled(_) => Some(TimeoutPhase::Idle),
            Self::TimedOut => Some(TimeoutPhase::Total),
            Self::Upstream(_) | Self::Application(_) => None,
        }
    }
}
