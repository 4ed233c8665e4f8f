//! A response's body: the gateway's own few bytes, or what upstream sends as it comes.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};

use crate::upstream::Relay;

/// What goes wrong with a body on its way.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A response's body.
#[derive(Debug)]
pub struct Body(Source);

#[derive(Debug)]
enum Source {
    /// All of it, made here.
    Own(Bytes),
    /// Coming from upstream. Boxed: a response is moved from stage to stage, and would be twice as large.
    Relayed(Box<Relay>),
}

impl Body {
    /// No body.
    pub fn empty() -> Self {
        Self::from(Bytes::new())
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        Self(Source::Own(bytes))
    }
}

impl From<Relay> for Body {
    fn from(relay: Relay) -> Self {
        Self(Source::Relayed(Box::new(relay)))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.0 {
            Source::Own(bytes) if bytes.is_empty() => Poll::Ready(None),
            Source::Own(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Source::Relayed(relay) => Pin::new(&mut **relay).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Source::Own(bytes) => bytes.is_empty(),
            Source::Relayed(relay) => relay.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Source::Own(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::Relayed(relay) => relay.size_hint(),
        }
    }
}
