//! A body read to its end, up to a cap.

use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use smallvec::SmallVec;

/// Parts of a body; nearly always there is one.
pub(super) type Held = SmallVec<[Bytes; 1]>;

/// What came of reading a body.
pub(super) enum Gathered<B> {
    /// All of it. Trailers are dropped.
    Whole(Bytes),
    /// More than fits: what was read of it, in order, and the rest.
    TooLarge {
        /// What was read, which is a part more than fits at most.
        held: Held,
        /// What is still to come.
        rest: B,
    },
}

/// Reads `body` to its end, or until it is longer than `cap`.
pub(super) async fn gather<B>(mut body: B, cap: usize) -> Result<Gathered<B>, B::Error>
where
    B: Body<Data = Bytes> + Unpin,
{
    let announced = body.size_hint().lower();
    if announced > cap as u64 {
        let (held, rest) = (Held::new(), body);
        return Ok(Gathered::TooLarge { held, rest });
    }
    // Nearly every body comes in one piece, which then need not be copied.
    let mut held = Held::new();
    let mut length = 0;
    while !body.is_end_stream() {
        let Some(frame) = Pin::new(&mut body).frame().await else {
            break;
        };
        let Ok(part) = frame?.into_data() else {
            continue;
        };
        length += part.len();
        if !part.is_empty() {
            held.push(part);
        }
        if length > cap {
            return Ok(Gathered::TooLarge { held, rest: body });
        }
    }
    Ok(Gathered::Whole(match held.len() {
        0 => Bytes::new(),
        1 => held.remove(0),
        _ => {
            let mut whole = BytesMut::with_capacity(length);
            for part in &held {
                whole.extend_from_slice(part);
            }
            whole.freeze()
        }
    }))
}
