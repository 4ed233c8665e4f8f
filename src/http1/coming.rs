//! A request's body, taken out of the bytes it comes in.

use bytes::{Buf as _, Bytes, BytesMut};

use super::chunked::{Chunked, Next};
use super::violation::Violation;

/// What is still to come of a body.
#[derive(Clone, Debug)]
pub(super) enum Coming {
    /// So many bytes.
    Length(u64),
    /// Chunks.
    Chunked(Chunked),
}

/// What was found of a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The next bytes of it; never none.
    Data(Bytes),
    /// Its end.
    End,
}

impl Coming {
    /// The next part of the body among the bytes `received`, which lose what was looked at; `None` if more
    /// have to come.
    pub(super) fn take(&mut self, received: &mut BytesMut) -> Result<Option<Part>, Violation> {
        match self {
            Self::Length(0) => Ok(Some(Part::End)),
            Self::Length(_) if received.is_empty() => Ok(None),
            Self::Length(left) => {
                let here = (received.len()).min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= here as u64;
                Ok(Some(Part::Data(received.split_to(here).freeze())))
            }
            Self::Chunked(chunked) => match chunked.read(received) {
                Next::Data(here) => {
                    received.advance(here.start);
                    Ok(Some(Part::Data(received.split_to(here.len()).freeze())))
                }
                Next::Open => {
                    received.clear();
                    Ok(None)
                }
                Next::Ended(at) => {
                    received.advance(at);
                    Ok(Some(Part::End))
                }
                Next::Broken(_, violation) => Err(violation),
            },
        }
    }

    /// How many bytes are still to come, where that was declared.
    pub(super) fn left(&self) -> Option<u64> {
        match self {
            Self::Length(left) => Some(*left),
            Self::Chunked(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(bytes: &'static [u8]) -> Part {
        Part::Data(Bytes::from_static(bytes))
    }

    #[test]
    fn a_body_of_known_length_leaves_what_follows_it() {
        let mut coming = Coming::Length(5);
        let mut received = BytesMut::from(&b"abc"[..]);
        assert_eq!(coming.take(&mut received), Ok(Some(data(b"abc"))));
        assert_eq!(coming.take(&mut received), Ok(None));
        received.extend_from_slice(b"deGET");
        assert_eq!(coming.take(&mut received), Ok(Some(data(b"de"))));
        assert_eq!(coming.take(&mut received), Ok(Some(Part::End)));
        assert_eq!(&received[..], b"GET");
    }

    #[test]
    fn chunks_lose_their_framing_and_leave_what_follows_them() {
        let mut coming = Coming::Chunked(Chunked::new(64));
        let mut received = BytesMut::from(&b"3;x\r\nabc\r"[..]);
        assert_eq!(coming.take(&mut received), Ok(Some(data(b"abc"))));
        assert_eq!(coming.take(&mut received), Ok(None));
        received.extend_from_slice(b"\n2\r\nde\r\n0\r\nt: r\r\n\r\nGET");
        assert_eq!(coming.take(&mut received), Ok(Some(data(b"de"))));
        assert_eq!(coming.take(&mut received), Ok(Some(Part::End)));
        assert_eq!(&received[..], b"GET");
    }

    #[test]
    fn a_broken_chunk_is_named() {
        let mut coming = Coming::Chunked(Chunked::new(64));
        let mut received = BytesMut::from(&b"1\r\nabc"[..]);
        assert_eq!(coming.take(&mut received), Ok(Some(data(b"a"))));
        assert_eq!(coming.take(&mut received), Err(Violation::ChunkEnd));
    }
}
