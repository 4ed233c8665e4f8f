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
    /// The beginning of a body that is too large to store, and the rest as it arrives.
    Resumed { held: Bytes, next: Bytes, rest: B },
}

impl<B> Told<B> {
    /// A body that passes as it comes.
    pub fn passing(body: B) -> Self {
        Self(Source::Passing(body))
    }

    /// Puts `held` and then `next` before the rest of a body that was read in part.
    pub(super) fn put_back(&mut self, held: Bytes, next: Bytes) {
        let source = std::mem::replace(&mut self.0, Source::Whole(Bytes::new()));
        let (held, next) = if held.is_empty() {
            (next, held)
        } else {
            (held, next)
        };
        self.0 = match source {
            Source::Passing(rest) => Source::Resumed { held, next, rest },
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
            Source::Resumed { held, rest, .. } if held.is_empty() => Pin::new(rest).poll_frame(cx),
            Source::Resumed { held, next, .. } => {
                let part = std::mem::replace(held, std::mem::take(next));
                Poll::Ready(Some(Ok(Frame::data(part))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Source::Whole(bytes) => bytes.is_empty(),
            Source::Passing(body) => body.is_end_stream(),
            Source::Resumed { held, rest, .. } => held.is_empty() && rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Source::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Source::Passing(body) => body.size_hint(),
            Source::Resumed { held, next, rest } => {
                let held = (held.len() + next.len()) as u64;
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
