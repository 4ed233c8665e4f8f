//! A body read to its end, up to a cap.

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;

/// What came of reading a body.
pub(super) enum Gathered {
    /// All of it. Trailers are dropped.
    Whole(Bytes),
    /// More than fits. This was read of it, which is a part more than fits at most; the rest is still to
    /// come.
    TooLarge(Bytes),
}

/// What was read of a body so far. Nearly every body comes in one part, which then is not copied; of more
/// than one each is, because a body in a million parts would otherwise cost far more than its bytes.
enum Held {
    Part(Bytes),
    Parts(BytesMut),
}

impl Held {
    fn add(&mut self, part: Bytes) {
        match self {
            Self::Part(first) if first.is_empty() => *first = part,
            Self::Part(first) => {
                let mut parts = BytesMut::with_capacity(2 * (first.len() + part.len()));
                parts.extend_from_slice(first);
                parts.extend_from_slice(&part);
                *self = Self::Parts(parts);
            }
            Self::Parts(parts) => parts.extend_from_slice(&part),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Part(part) => part.len(),
            Self::Parts(parts) => parts.len(),
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Part(part) => part,
            Self::Parts(parts) => parts.freeze(),
        }
    }
}

/// Reads `body` to its end, or until it is longer than `cap`. It is read where it is: to move it in and
/// out again would cost more than to read the usual one.
pub(super) async fn gather<B>(body: &mut B, cap: usize) -> Result<Gathered, B::Error>
where
    B: Body<Data = Bytes> + Unpin,
{
    let announced = body.size_hint().lower();
    if announced > cap as u64 {
        return Ok(Gathered::TooLarge(Bytes::new()));
    }
    let mut held = Held::Part(Bytes::new());
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await else {
            break;
        };
        if let Ok(part) = frame?.into_data() {
            held.add(part);
        }
        if held.len() > cap {
            return Ok(Gathered::TooLarge(held.into_bytes()));
        }
    }
    Ok(Gathered::Whole(held.into_bytes()))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use http_body::Frame;

    use super::*;

    /// A body in parts.
    struct Parts(std::vec::IntoIter<&'static str>);

    impl Body for Parts {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let part = self
                .0
                .next()
                .map(|part| Frame::data(Bytes::from_static(part.as_bytes())));
            Poll::Ready(part.map(Ok))
        }
    }

    /// What came of reading it, and what is still to come.
    async fn of(parts: Vec<&'static str>, cap: usize) -> (Gathered, Parts) {
        let mut body = Parts(parts.into_iter());
        match gather(&mut body, cap).await {
            Ok(gathered) => (gathered, body),
        }
    }

    #[tokio::test]
    async fn parts_are_put_together_in_order() {
        for parts in [
            vec!["abcd"],
            vec!["ab", "", "cd"],
            vec!["", "a", "b", "c", "d"],
        ] {
            let (Gathered::Whole(whole), _) = of(parts, 4).await else {
                panic!("too large");
            };
            assert_eq!(whole, "abcd");
        }
        assert!(matches!(of(vec![], 0).await, (Gathered::Whole(whole), _) if whole.is_empty()));
    }

    #[tokio::test]
    async fn of_what_is_too_large_nothing_is_lost() {
        let (Gathered::TooLarge(held), rest) = of(vec!["ab", "cd", "ef", "gh"], 4).await else {
            panic!("it does not fit");
        };
        assert_eq!(held, "abcdef");
        assert_eq!(rest.0.as_slice(), ["gh"]);
    }
}
