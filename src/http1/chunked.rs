//! The strict reading of a chunked body: what of it is data, where it ends, and whether it is one.
//!
//! What another server could read differently is refused: no white space around a size, at most 16
//! digits of it, extensions of visible characters, bounded over the whole message, and CRLF wherever a
//! line ends. Trailers are held to the rules of header lines, and dropped.

use std::ops::Range;

use super::octets::is_token;
use super::violation::Violation;

/// What the extensions of one message may amount to.
const EXTENSION_BYTES: usize = 16 * 1024;

/// The longest size that always fits a `u64`.
const SIZE_DIGITS: u8 = 16;

/// A chunked body, read up to some place in it.
#[derive(Clone, Debug)]
pub struct Chunked {
    place: Place,
    extension_bytes: usize,
    trailer_bytes: usize,
    trailer_limit: usize,
}

/// What the next byte is part of.
#[derive(Clone, Copy, Debug)]
enum Place {
    Size { digits: u8, size: u64 },
    Extension { size: u64 },
    SizeLf { size: u64 },
    Data { left: u64 },
    DataCr,
    DataLf,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    LastLf,
    End,
}

/// What the next bytes of a body are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// These of them are data; what is before is not, and what is after was not looked at.
    Data(Range<usize>),
    /// None of them is data, and the body goes on.
    Open,
    /// None of them is data, and the body ended after so many.
    Ended(usize),
    /// So many of them are good, and the next one is not.
    Broken(usize, Violation),
}

impl Chunked {
    /// A body of which nothing was read. Its trailer section may have `trailer_limit` bytes.
    pub fn new(trailer_limit: usize) -> Self {
        Self {
            place: Place::Size { digits: 0, size: 0 },
            extension_bytes: 0,
            trailer_bytes: 0,
            trailer_limit,
        }
    }

    /// Reads the body's next bytes up to the end of the first stretch of data among them.
    pub fn read(&mut self, bytes: &[u8]) -> Next {
        let mut at = 0;
        while at < bytes.len() {
            if let Place::Data { left } = &mut self.place {
                let here = (bytes.len() - at).min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= here as u64;
                if *left == 0 {
                    self.place = Place::DataCr;
                }
                return Next::Data(at..at + here);
            }
            match self.step(bytes[at]) {
                Ok(place) => self.place = place,
                Err(violation) => return Next::Broken(at, violation),
            }
            at += 1;
            if let Place::End = self.place {
                return Next::Ended(at);
            }
        }
        Next::Open
    }

    fn step(&mut self, byte: u8) -> Result<Place, Violation> {
        match self.place {
            Place::Size { digits, size } => size_digit(digits, size, byte),
            Place::Extension { size } => self.extension(size, byte),
            Place::SizeLf { size } => match (byte, size) {
                (b'\n', 0) => Ok(Place::TrailerStart),
                (b'\n', left) => Ok(Place::Data { left }),
                _ => Err(Violation::ChunkEnd),
            },
            Place::DataCr if byte == b'\r' => Ok(Place::DataLf),
            Place::DataLf if byte == b'\n' => Ok(Place::Size { digits: 0, size: 0 }),
            // Data is passed over by length and nothing is read after the end.
            Place::DataCr | Place::DataLf | Place::Data { .. } | Place::End => {
                Err(Violation::ChunkEnd)
            }
            Place::TrailerStart
            | Place::TrailerName
            | Place::TrailerValue
            | Place::TrailerLf
            | Place::LastLf => self.trailer(byte),
        }
    }

    fn extension(&mut self, size: u64, byte: u8) -> Result<Place, Violation> {
        match byte {
            b'\r' => Ok(Place::SizeLf { size }),
            b'\t' | b' '..=b'~' => {
                self.extension_bytes += 1;
                if self.extension_bytes >= EXTENSION_BYTES {
                    return Err(Violation::ChunkExtension);
                }
                Ok(Place::Extension { size })
            }
            _ => Err(Violation::ChunkExtension),
        }
    }

    fn trailer(&mut self, byte: u8) -> Result<Place, Violation> {
        self.trailer_bytes += 1;
        if self.trailer_bytes > self.trailer_limit {
            return Err(Violation::Trailer);
        }
        match (self.place, byte) {
            (Place::TrailerStart, b'\r') => Ok(Place::LastLf),
            (Place::TrailerName, b':') | (Place::TrailerValue, b'\t' | b' '..=b'~' | 0x80..) => {
                Ok(Place::TrailerValue)
            }
            (Place::TrailerStart | Place::TrailerName, _) if is_token(byte) => {
                Ok(Place::TrailerName)
            }
            (Place::TrailerValue, b'\r') => Ok(Place::TrailerLf),
            (Place::TrailerLf, b'\n') => Ok(Place::TrailerStart),
            (Place::LastLf, b'\n') => Ok(Place::End),
            _ => Err(Violation::Trailer),
        }
    }
}

fn size_digit(digits: u8, size: u64, byte: u8) -> Result<Place, Violation> {
    match (byte, char::from(byte).to_digit(16)) {
        (_, Some(digit)) if digits < SIZE_DIGITS => Ok(Place::Size {
            digits: digits + 1,
            size: size << 4 | u64::from(digit),
        }),
        (b';', _) if digits > 0 => Ok(Place::Extension { size }),
        (b'\r', _) if digits > 0 => Ok(Place::SizeLf { size }),
        _ => Err(Violation::ChunkSize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TRAILER_LIMIT: usize = 64;

    /// Reads `bytes` to their end or the body's: its data, and how that came out.
    fn read_on(chunked: &mut Chunked, bytes: &[u8]) -> (Vec<u8>, Next) {
        let (mut data, mut start) = (Vec::new(), 0);
        loop {
            match chunked.read(&bytes[start..]) {
                Next::Data(here) => {
                    data.extend_from_slice(&bytes[start..][here.clone()]);
                    start += here.end;
                }
                Next::Open => return (data, Next::Open),
                Next::Ended(at) => return (data, Next::Ended(start + at)),
                Next::Broken(at, violation) => return (data, Next::Broken(start + at, violation)),
            }
        }
    }

    fn read(body: &[u8]) -> (Vec<u8>, Next) {
        read_on(&mut Chunked::new(TRAILER_LIMIT), body)
    }

    fn accepted(body: &[u8], data: &[u8]) {
        let expected = (data.to_vec(), Next::Ended(body.len()));
        assert_eq!(read(body), expected, "{}", body.escape_ascii());
    }

    fn rejected(body: &[u8], at: usize, violation: Violation) {
        let (_, end) = read(body);
        assert_eq!(end, Next::Broken(at, violation), "{}", body.escape_ascii());
    }

    #[test]
    fn a_body_ends_after_its_last_chunk() {
        accepted(b"0\r\n\r\n", b"");
        accepted(b"5\r\nhello\r\n0\r\n\r\n", b"hello");
        accepted(
            b"A\r\n0123456789\r\n0a\r\n9876543210\r\n000\r\n\r\n",
            b"01234567899876543210",
        );
        assert_eq!(read(b"0\r\n\r\nGET / HTTP/1.1").1, Next::Ended(5));
    }

    #[test]
    fn extensions_and_trailers_are_part_of_the_body() {
        accepted(b"2;a=b;c=\"d e\"\r\nhi\r\n0;last\r\n\r\n", b"hi");
        accepted(b"0\r\nexpires: never\r\nx-empty:\r\n\r\n", b"");
    }

    #[test]
    fn data_may_look_like_anything() {
        accepted(b"9\r\n0\r\n\r\nGET \r\n0\r\n\r\n", b"0\r\n\r\nGET ");
    }

    #[test]
    fn a_size_is_nothing_but_hexadecimal_digits() {
        rejected(b"0x5\r\nhello\r\n", 1, Violation::ChunkSize);
        rejected(b"-1\r\n", 0, Violation::ChunkSize);
        rejected(b"+5\r\n", 0, Violation::ChunkSize);
        rejected(b" 5\r\n", 0, Violation::ChunkSize);
        rejected(b"5 \r\nhello\r\n", 1, Violation::ChunkSize);
        rejected(b"5 5\r\nhello\r\n", 1, Violation::ChunkSize);
        rejected(b"\r\n", 0, Violation::ChunkSize);
        rejected(b";a=b\r\n", 0, Violation::ChunkSize);
        rejected(b"g\r\n", 0, Violation::ChunkSize);
    }

    #[test]
    fn a_size_has_at_most_sixteen_digits() {
        let mut largest = Chunked::new(TRAILER_LIMIT);
        let (data, end) = read_on(&mut largest, b"ffffffffffffffff\r\nx");
        assert_eq!((&data[..], end), (&b"x"[..], Next::Open));
        rejected(b"00000000000000005\r\n", 16, Violation::ChunkSize);
        rejected(b"fffffffffffffffff\r\n", 16, Violation::ChunkSize);
    }

    #[test]
    fn lines_end_in_carriage_return_and_line_feed() {
        rejected(b"5\nhello\r\n", 1, Violation::ChunkSize);
        rejected(b"5\rhello\r\n", 2, Violation::ChunkEnd);
        rejected(b"5\r\nhello\n0\r\n\r\n", 8, Violation::ChunkEnd);
        rejected(b"5\r\nhello0\r\n\r\n", 8, Violation::ChunkEnd);
        rejected(b"5\r\nhello\rx", 9, Violation::ChunkEnd);
        rejected(b"5\r\nhelloo\r\n", 8, Violation::ChunkEnd);
        rejected(b"0\r\n\n", 3, Violation::Trailer);
        rejected(b"0\r\n\rx", 4, Violation::Trailer);
    }

    #[test]
    fn an_extension_is_visible_and_bounded_over_the_message() {
        rejected(b"5;a\nb\r\nhello\r\n", 3, Violation::ChunkExtension);
        rejected(b"5;a\0b\r\nhello\r\n", 3, Violation::ChunkExtension);
        let mut once = b"1;".to_vec();
        once.extend([b'a'; EXTENSION_BYTES / 2]);
        once.extend(b"\r\nx\r\n");
        let mut body = Chunked::new(TRAILER_LIMIT);
        assert_eq!(read_on(&mut body, &once).1, Next::Open);
        assert!(matches!(
            read_on(&mut body, &once).1,
            Next::Broken(_, Violation::ChunkExtension)
        ));
    }

    #[test]
    fn trailers_are_header_lines_and_bounded() {
        rejected(b"0\r\na : b\r\n\r\n", 4, Violation::Trailer);
        rejected(b"0\r\n: b\r\n\r\n", 3, Violation::Trailer);
        rejected(b"0\r\n a: b\r\n\r\n", 3, Violation::Trailer);
        rejected(b"0\r\na: b\n\r\n", 7, Violation::Trailer);
        rejected(b"0\r\na: \0\r\n\r\n", 6, Violation::Trailer);
        rejected(b"0\r\na\r\n\r\n", 4, Violation::Trailer);
        let mut long = b"0\r\na: ".to_vec();
        long.extend([b'b'; 100]);
        rejected(&long, 3 + TRAILER_LIMIT, Violation::Trailer);
    }

    proptest! {
        #[test]
        fn reading_in_pieces_changes_nothing(
            body in proptest::collection::vec(
                prop::sample::select(&b"0123af;= \r\n\0x:"[..]), 0..120),
            size in 1usize..9,
        ) {
            let whole = read(&body);
            let mut chunked = Chunked::new(TRAILER_LIMIT);
            let (mut data, mut end, mut start) = (Vec::new(), Next::Open, 0);
            for piece in body.chunks(size) {
                let (more, reached) = read_on(&mut chunked, piece);
                data.extend(more);
                end = match reached {
                    Next::Ended(at) => Next::Ended(start + at),
                    Next::Broken(at, violation) => Next::Broken(start + at, violation),
                    open => open,
                };
                if end != Next::Open {
                    break;
                }
                start += piece.len();
            }
            prop_assert_eq!((data, end), whole);
        }
    }
}
