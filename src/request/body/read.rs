//! Reads a request or response body into memory, up to a maximum length and within the bounds on all buffered bodies.

use std::future::poll_fn;
use std::pin::Pin;

use bytes::Bytes;
use http_body::Body;

use crate::request::buffers::{BufferCharge, Exceeded};

pub(crate) enum ReadBody {
    /// Without its trailers.
    Whole(Bytes),
    Partial {
        /// The `BufferCharge` includes their length.
        held: Bytes,
        /// Exceeds the bound, and follows `held`. The `BufferCharge` does not include its length.
        next: Bytes,
        exceeded: ExceededBound,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExceededBound {
    /// Maximum length of a single body.
    Cap,
    /// Bound `max_buffered` or `max_buffered_per_client`
    Buffers,
}

/// Most bodies arrive in one part, which is not copied. Several parts are copied into one buffer, because a part of one
/// byte can keep a read buffer of several KiB in memory.
enum GatheredBytes {
    Part(Bytes),
    Copy(Vec<u8>),
}

impl GatheredBytes {
    /// Charges the part, or returns it if it exceeds a bound on buffered bodies. The capacity of the buffer grows to at
    /// most `most` bytes.
    fn add(&mut self, part: Bytes, most: usize, charge: &mut BufferCharge) -> Result<(), Bytes> {
        let charged = match self {
            Self::Part(first) if first.is_empty() => charge.grow(part.len()),
            _ => charge.reserve(self.copy(), part.len(), most),
        };
        if charged == Err(Exceeded) {
            return Err(part);
        }
        match self {
            Self::Part(first) => *first = part,
            Self::Copy(copy) => copy.extend_from_slice(&part),
        }
        Ok(())
    }

    /// So that the read buffer of the connection can be freed.
    fn copy(&mut self) -> &mut Vec<u8> {
        if let Self::Part(part) = self {
            *self = Self::Copy(part.to_vec());
        }
        match self {
            Self::Copy(copy) => copy,
            Self::Part(_) => unreachable!("replaced by a copy"),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Part(part) => part.len(),
            Self::Copy(copy) => copy.len(),
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Part(part) => part,
            Self::Copy(copy) => copy.into(),
        }
    }
}

/// Reads `body` to its end, or until it exceeds `cap` bytes or a bound on buffered bodies. Reads nothing if the
/// declared length is above `cap`. The body is borrowed, because moving it takes longer than reading a body of usual
/// size.
pub(crate) async fn read_body<B>(
    body: &mut B,
    cap: usize,
    charge: &mut BufferCharge,
) -> Result<ReadBody, B::Error>
where
    B: Body<Data = Bytes> + Unpin,
{
    if body.size_hint().lower() > cap as u64 {
        return Ok(ReadBody::Partial {
            held: Bytes::new(),
            next: Bytes::new(),
            exceeded: ExceededBound::Cap,
        });
    }
    read_start(body, cap, charge).await
}

/// Like [`read_body`], but also reads the start of a body whose declared length is above `cap`.
pub(super) async fn read_start<B>(
    body: &mut B,
    cap: usize,
    charge: &mut BufferCharge,
) -> Result<ReadBody, B::Error>
where
    B: Body<Data = Bytes> + Unpin,
{
    let partial = |held: GatheredBytes, next, exceeded| ReadBody::Partial {
        held: held.into_bytes(),
        next,
        exceeded,
    };
    let mut held = GatheredBytes::Part(Bytes::new());
    // The client can declare a length and never send the bytes, so no memory is allocated for them.
    let declared = body.size_hint().upper();
    let declared = declared.and_then(|upper| usize::try_from(upper).ok());
    let most = declared.map_or(cap, |declared| declared.min(cap));
    while !body.is_end_stream() {
        let frame = poll_fn(|cx| {
            let frame = Pin::new(&mut *body).poll_frame(cx);
            if frame.is_pending() && held.len() > 0 {
                // Otherwise the read buffer of the first part would stay in memory without being charged.
                held.copy();
            }
            frame
        });
        let Some(frame) = frame.await else {
            break;
        };
        let Ok(part) = frame?.into_data() else {
            continue;
        };
        if part.len() > cap - held.len() {
            return Ok(partial(held, part, ExceededBound::Cap));
        }
        if let Err(part) = held.add(part, most, charge) {
            return Ok(partial(held, part, ExceededBound::Buffers));
        }
    }
    Ok(ReadBody::Whole(held.into_bytes()))
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use std::sync::Arc;

    use http_body::{Frame, SizeHint};

    use super::*;
    use crate::request::buffers::{BufferBounds, Buffered, Buffers};
    use crate::request::client::ClientId;

    /// Body that arrives in the given parts. An empty part makes the body return `Poll::Pending` once.
    struct ScriptedBody {
        parts: VecDeque<&'static str>,
        declared: Option<u64>,
    }

    impl Body for ScriptedBody {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let part = self.parts.pop_front();
            if part == Some("") {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let part = part.map(|part| Frame::data(Bytes::from_static(part.as_bytes())));
            Poll::Ready(part.map(Ok))
        }

        fn size_hint(&self) -> SizeHint {
            self.declared
                .map_or_else(SizeHint::default, SizeHint::with_exact)
        }
    }

    fn body(parts: &[&'static str]) -> ScriptedBody {
        ScriptedBody {
            parts: parts.iter().copied().collect(),
            declared: None,
        }
    }

    /// Returns buffers that are bounded to `total` bytes, and a charge of zero bytes on them.
    fn charge(total: usize) -> (Arc<Buffers>, BufferCharge) {
        let bounds = BufferBounds {
            total,
            per_client: total,
        };
        let buffers = Arc::new(Buffers::new(bounds));
        let client = ClientId::of([127, 0, 0, 1].into(), 64);
        let charge = buffers.charge(client, Buffered::Request);
        (buffers, charge)
    }

    #[tokio::test]
    async fn parts_are_joined_in_order() {
        for parts in [
            &["abcd"][..],
            &["ab", "cd"],
            &["", "ab", "", "cd", ""],
            &["a", "b", "c", "d"],
        ] {
            let (buffers, mut charge) = charge(4);
            let read = read_body(&mut body(parts), 4, &mut charge).await;
            let Ok(ReadBody::Whole(whole)) = read else {
                panic!("the body exceeds a bound: {parts:?}");
            };
            assert_eq!(whole, "abcd");
            assert_eq!(buffers.in_use(), 4, "{parts:?}");
        }
        let (_, mut charge) = charge(0);
        let read = read_body(&mut body(&[]), 0, &mut charge).await;
        assert!(matches!(read, Ok(ReadBody::Whole(whole)) if whole.is_empty()));
    }

    #[tokio::test]
    async fn all_parts_of_a_body_that_exceeds_a_bound_are_returned() {
        let parts = ["ab", "c", "def", "gh"];
        for (cap, total, reason) in [
            (5, 100, ExceededBound::Cap),
            (100, 5, ExceededBound::Buffers),
        ] {
            let (buffers, mut charge) = charge(total);
            let mut body = body(&parts);
            let read = read_body(&mut body, cap, &mut charge).await;
            let Ok(ReadBody::Partial {
                held,
                next,
                exceeded,
            }) = read
            else {
                panic!("the body does not exceed the bound {reason:?}");
            };
            assert_eq!((held, next), ("abc".into(), "def".into()));
            assert_eq!(exceeded, reason);
            assert_eq!(body.parts, ["gh"]);
            assert!((3..=5).contains(&buffers.in_use()), "{}", buffers.in_use());
        }
    }

    #[tokio::test]
    async fn a_body_with_a_declared_length_above_the_cap_is_not_read() {
        let mut body = body(&["abcdef"]);
        body.declared = Some(6);
        let (buffers, mut charge) = charge(100);
        let read = read_body(&mut body, 5, &mut charge).await;
        assert!(matches!(
            read,
            Ok(ReadBody::Partial { held, next, exceeded: ExceededBound::Cap })
                if held.is_empty() && next.is_empty()
        ));
        assert_eq!(body.parts.len(), 1);
        assert_eq!(buffers.in_use(), 0);
    }

    #[tokio::test]
    async fn a_declared_length_is_charged_only_as_the_bytes_arrive() {
        let mut parts = body(&["ab", ""]);
        parts.declared = Some(6);
        let (buffers, mut charge) = charge(100);
        let read = read_body(&mut parts, 50, &mut charge).await;
        assert!(matches!(read, Ok(ReadBody::Whole(whole)) if whole == "ab"));
        assert_eq!(buffers.in_use(), 2);
        drop(charge);
        let mut parts = body(&["ab", "cd", "e", "f"]);
        parts.declared = Some(6);
        let mut charge = buffers.charge(ClientId::of([127, 0, 0, 1].into(), 64), Buffered::Request);
        let read = read_body(&mut parts, 50, &mut charge).await;
        assert!(matches!(read, Ok(ReadBody::Whole(whole)) if whole == "abcdef"));
        assert_eq!(buffers.in_use(), 6);
    }
}
