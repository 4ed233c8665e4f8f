//! The strict reading of a chunked body: where it ends, and whether it is one.
//!
//! The body is not decoded here, only followed, so that the next head is looked for in the right
//! place; hyper decodes it. Whoever follows must agree with whoever decodes, and the way to be sure
//! is to allow less: no white space around a size, at most 16 digits of it, extensions of visible
//! characters, bounded over the whole message, and CRLF wherever a line ends. Trailers are held to
//! the rules of header lines.

use super::octets::is_token;
use super::violation::Violation;

/// What the extensions of one message may amount to. hyper's limit, to the byte.
const EXTENSION_BYTES: usize = 16 * 1024;

/// The longest size that always fits a `u64`.
const SIZE_DIGITS: u8 = 16;

/// A chunked body, followed up to some place in it.
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

/// How far a stretch of bytes could be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// To its end, and the body goes on.
    Open,
    /// The body ended after so many of its bytes.
    Ended(usize),
    /// So many of its bytes are good, and the next one is not.
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

    /// Follows the body over its next bytes.
    pub fn follow(&mut self, bytes: &[u8]) -> Progress {
        let mut at = 0;
        while at < bytes.len() {
            if let Place::Data { left } = &mut self.place {
                let here = (bytes.len() - at).min(usize::try_from(*left).unwrap_or(usize::MAX));
                at += here;
                *left -= here as u64;
                if *left == 0 {
                    self.place = Place::DataCr;
                }
                continue;
            }
            match self.step(bytes[at]) {
                Ok(place) => self.place = place,
                Err(violation) => return Progress::Broken(at, violation),
            }
            at += 1;
            if let Place::End = self.place {
                return Progress::Ended(at);
            }
        }
        Progress::Open
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

    fn follow(body: &[u8]) -> Progress {
        Chunked::new(TRAILER_LIMIT).follow(body)
    }

    fn accepted(body: &[u8]) {
        assert_eq!(follow(body), Progress::Ended(body.len()), "{body:?}");
    }

    fn rejected(body: &[u8], at: usize, violation: Violation) {
        assert_eq!(
            follow(body),
            Progress::Broken(at, violation),
            "{}",
            body.escape_ascii()
        );
    }

    #[test]
    fn a_body_ends_after_its_last_chunk() {
        accepted(b"0\r\n\r\n");
        accepted(b"5\r\nhello\r\n0\r\n\r\n");
        accepted(b"A\r\n0123456789\r\n0a\r\n0123456789\r\n000\r\n\r\n");
        assert_eq!(follow(b"0\r\n\r\nGET / HTTP/1.1"), Progress::Ended(5));
    }

    #[test]
    fn extensions_and_trailers_are_part_of_the_body() {
        accepted(b"2;a=b;c=\"d e\"\r\nhi\r\n0;last\r\n\r\n");
        accepted(b"0\r\nexpires: never\r\nx-empty:\r\n\r\n");
    }

    #[test]
    fn data_may_look_like_anything() {
        accepted(b"9\r\n0\r\n\r\nGET \r\n0\r\n\r\n");
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
        assert_eq!(largest.follow(b"ffffffffffffffff\r\nx"), Progress::Open);
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
        assert_eq!(body.follow(&once), Progress::Open);
        assert!(matches!(
            body.follow(&once),
            Progress::Broken(_, Violation::ChunkExtension)
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
            let whole = follow(&body);
            let mut chunked = Chunked::new(TRAILER_LIMIT);
            let mut start = 0;
            let mut pieces = Progress::Open;
            for piece in body.chunks(size) {
                pieces = match chunked.follow(piece) {
                    Progress::Open => Progress::Open,
                    Progress::Ended(at) => Progress::Ended(start + at),
                    Progress::Broken(at, violation) => Progress::Broken(start + at, violation),
                };
                if pieces != Progress::Open {
                    break;
                }
                start += piece.len();
            }
            prop_assert_eq!(pieces, whole);
        }
    }
}
