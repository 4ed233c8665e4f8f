//! The body of an answer that came past the store: kept, passing, or begun and then passing.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// The body of an answer that came past the store.
#[derive(Debug)]
pub struct Told<B>(Source<B>);

#[derive(Debug)]
enum Source<B> {
    /// All of it, in hand.
    Whole(Bytes),
    /// As it comes.
    Passing(B),
    /// Some of it in hand, which turned out to be too large to keep; the rest as it comes.
    Resumed { held: Bytes, rest: B },
}

impl<B> Told<B> {
    /// A body that passes as it comes.
    pub fn passing(body: B) -> Self {
        Self(Source::Passing(body))
    }

    /// Puts back in front of a passing body what was already read of it.
    pub(super) fn put_back(&mut self, held: Bytes) {
        let source = std::mem::replace(&mut self.0, Source::Whole(Bytes::new()));
        self.0 = match source {
            Source::Passing(rest) => Source::Resumed { held, rest },
            other => other,
        };
    }
}

impl<B> From<Bytes> for Told<B> {
    fn from(bytes: Bytes) -> Self {
        Self(Source::Whole(bytes))
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Told<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match &mut self.0 {
            Source::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Source::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Source::Passing(body) => Pin::new(body).poll_frame(cx),
            Source::Resumed { held, rest } if held.is_empty() => Pin::new(rest).poll_frame(cx),
            Source::Resumed { held, .. } => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(held)))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Source::Whole(bytes) => bytes.is_empty(),
            Source::Passing(body) => body.is_end_stream(),
            Source::Resumed { held, rest } => held.is_empty() && rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Source::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::Passing(body) => body.size_hint(),
            Source::Resumed { held, rest } => {
                let held = held.len() as u64;
                let rest = rest.size_hint();
                let mut hint = SizeHint::new();
                if let Some(upper) = rest.upper() {
                    hint.set_upper(upper + held);
                }
                hint.set_lower(rest.lower() + held);
                hint
            }
        }
    }
}
