//! Decoder of request bodies with `Content-Length` or chunked transfer coding.
//!
//! The chunked decoder rejects everything that another server could interpret differently, such as white space around a
//! chunk size or a line that does not end in CRLF. It checks trailers and drops them.

use bytes::{Buf as _, Bytes, BytesMut};

use super::head::is_token;
use super::violation::Violation;

/// Maximum total size of the chunk extensions of a message, in bytes.
const EXTENSION_BYTES: usize = 16 * 1024;

/// Sixteen hexadecimal digits always fit in a `u64`.
const SIZE_DIGITS: u8 = 16;

#[derive(Debug)]
pub(super) enum Decoder {
    /// Number of bytes that are not decoded yet.
    Length(u64),
    Chunked(Chunked),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decoded {
    /// At least one byte.
    Data(Bytes),
    End,
    /// All buffered bytes are consumed.
    Incomplete,
}

impl Decoder {
    /// A trailer section of more than `trailer_limit` bytes is a violation.
    pub(super) fn chunked(trailer_limit: usize) -> Self {
        Self::Chunked(Chunked {
            state: ChunkState::Size { digits: 0, size: 0 },
            extension_bytes: 0,
            trailer_bytes: 0,
            trailer_limit,
        })
    }

    /// Removes the decoded bytes from `input`. Bytes after the end of the body remain. After a violation, `input`
    /// starts with the invalid byte.
    pub(super) fn decode(&mut self, input: &mut BytesMut) -> Result<Decoded, Violation> {
        match self {
            Self::Length(0) => Ok(Decoded::End),
            Self::Length(_) if input.is_empty() => Ok(Decoded::Incomplete),
            Self::Length(remaining) => Ok(Decoded::Data(split_data(input, remaining))),
            Self::Chunked(chunked) => chunked.decode(input),
        }
    }

    pub(super) fn remaining(&self) -> Option<u64> {
        match self {
            Self::Length(remaining) => Some(*remaining),
            Self::Chunked(_) => None,
        }
    }
}

fn split_data(input: &mut BytesMut, remaining: &mut u64) -> Bytes {
    let count = (input.len()).min(usize::try_from(*remaining).unwrap_or(usize::MAX));
    *remaining -= count as u64;
    input.split_to(count).freeze()
}

#[derive(Debug)]
pub(super) struct Chunked {
    state: ChunkState,
    extension_bytes: usize,
    trailer_bytes: usize,
    trailer_limit: usize,
}

#[derive(Clone, Copy, Debug)]
enum ChunkState {
    Size { digits: u8, size: u64 },
    Extension { size: u64 },
    SizeLf { size: u64 },
    Data { remaining: u64 },
    DataCr,
    DataLf,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    LastLf,
    End,
}

impl Chunked {
    fn decode(&mut self, input: &mut BytesMut) -> Result<Decoded, Violation> {
        let mut at = 0;
        while let Some(&byte) = input.get(at) {
            if let ChunkState::Data { remaining } = &mut self.state {
                input.advance(at);
                let data = split_data(input, remaining);
                if *remaining == 0 {
                    self.state = ChunkState::DataCr;
                }
                return Ok(Decoded::Data(data));
            }
            match self.step(byte) {
                Ok(state) => self.state = state,
                Err(violation) => {
                    input.advance(at);
                    return Err(violation);
                }
            }
            at += 1;
            if let ChunkState::End = self.state {
                input.advance(at);
                return Ok(Decoded::End);
            }
        }
        input.clear();
        Ok(Decoded::Incomplete)
    }

    fn step(&mut self, byte: u8) -> Result<ChunkState, Violation> {
        match self.state {
            ChunkState::Size { digits, size } => size_digit(digits, size, byte),
            ChunkState::Extension { size } => self.extension(size, byte),
            ChunkState::SizeLf { size } => match (byte, size) {
                (b'\n', 0) => Ok(ChunkState::TrailerStart),
                (b'\n', remaining) => Ok(ChunkState::Data { remaining }),
                _ => Err(Violation::ChunkEnd),
            },
            ChunkState::DataCr if byte == b'\r' => Ok(ChunkState::DataLf),
            ChunkState::DataLf if byte == b'\n' => Ok(ChunkState::Size { digits: 0, size: 0 }),
            // `decode` handles `Data` and `End`.
            ChunkState::DataCr | ChunkState::DataLf | ChunkState::Data { .. } | ChunkState::End => {
                Err(Violation::ChunkEnd)
            }
            ChunkState::TrailerStart
            | ChunkState::TrailerName
            | ChunkState::TrailerValue
            | ChunkState::TrailerLf
            | ChunkState::LastLf => self.trailer(byte),
        }
    }

    fn extension(&mut self, size: u64, byte: u8) -> Result<ChunkState, Violation> {
        match byte {
            b'\r' => Ok(ChunkState::SizeLf { size }),
            b'\t' | b' '..=b'~' => {
                self.extension_bytes += 1;
                if self.extension_bytes >= EXTENSION_BYTES {
                    return Err(Violation::ChunkExtension);
                }
                Ok(ChunkState::Extension { size })
            }
            _ => Err(Violation::ChunkExtension),
        }
    }

    fn trailer(&mut self, byte: u8) -> Result<ChunkState, Violation> {
        self.trailer_bytes += 1;
        if self.trailer_bytes > self.trailer_limit {
            return Err(Violation::Trailer);
        }
        match (self.state, byte) {
            (ChunkState::TrailerStart, b'\r') => Ok(ChunkState::LastLf),
            (ChunkState::TrailerName, b':')
            | (ChunkState::TrailerValue, b'\t' | b' '..=b'~' | 0x80..) => {
                Ok(ChunkState::TrailerValue)
            }
            (ChunkState::TrailerStart | ChunkState::TrailerName, _) if is_token(byte) => {
                Ok(ChunkState::TrailerName)
            }
            (ChunkState::TrailerValue, b'\r') => Ok(ChunkState::TrailerLf),
            (ChunkState::TrailerLf, b'\n') => Ok(ChunkState::TrailerStart),
            (ChunkState::LastLf, b'\n') => Ok(ChunkState::End),
            _ => Err(Violation::Trailer),
        }
    }
}

fn size_digit(digits: u8, size: u64, byte: u8) -> Result<ChunkState, Violation> {
    match (byte, char::from(byte).to_digit(16)) {
        (_, Some(digit)) if digits < SIZE_DIGITS => Ok(ChunkState::Size {
            digits: digits + 1,
            size: size << 4 | u64::from(digit),
        }),
        (b';', _) if digits > 0 => Ok(ChunkState::Extension { size }),
        (b'\r', _) if digits > 0 => Ok(ChunkState::SizeLf { size }),
        _ => Err(Violation::ChunkSize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TRAILER_LIMIT: usize = 64;

    /// Where decoding stopped. `Ok(Some)` is the end of the body, `Ok(None)` the end of the input, and `Err` the
    /// position of the invalid byte.
    type DecodeEnd = Result<Option<usize>, (usize, Violation)>;

    fn chunked() -> Decoder {
        Decoder::chunked(TRAILER_LIMIT)
    }

    /// Decodes `bytes` up to the end of the body or of the input. Returns the decoded data and where decoding stopped.
    fn decode_all(decoder: &mut Decoder, bytes: &[u8]) -> (Vec<u8>, DecodeEnd) {
        let (mut data, mut input) = (Vec::new(), BytesMut::from(bytes));
        let stop = loop {
            match decoder.decode(&mut input) {
                Ok(Decoded::Data(part)) => data.extend_from_slice(&part),
                Ok(Decoded::Incomplete) => break Ok(None),
                Ok(Decoded::End) => break Ok(Some(bytes.len() - input.len())),
                Err(violation) => break Err((bytes.len() - input.len(), violation)),
            }
        };
        (data, stop)
    }

    fn decode(body: &[u8]) -> (Vec<u8>, DecodeEnd) {
        decode_all(&mut chunked(), body)
    }

    fn accepted(body: &[u8], data: &[u8]) {
        let expected = (data.to_vec(), Ok(Some(body.len())));
        assert_eq!(decode(body), expected, "{}", body.escape_ascii());
    }

    fn rejected(body: &[u8], at: usize, violation: Violation) {
        let (_, stop) = decode(body);
        assert_eq!(stop, Err((at, violation)), "{}", body.escape_ascii());
    }

    #[test]
    fn a_body_ends_after_its_last_chunk() {
        accepted(b"0\r\n\r\n", b"");
        accepted(b"5\r\nhello\r\n0\r\n\r\n", b"hello");
        accepted(
            b"A\r\n0123456789\r\n0a\r\n9876543210\r\n000\r\n\r\n",
            b"01234567899876543210",
        );
        assert_eq!(decode(b"0\r\n\r\nGET / HTTP/1.1").1, Ok(Some(5)));
    }

    #[test]
    fn extensions_and_trailers_are_accepted_and_dropped() {
        accepted(b"2;a=b;c=\"d e\"\r\nhi\r\n0;last\r\n\r\n", b"hi");
        accepted(b"0\r\nexpires: never\r\nx-empty:\r\n\r\n", b"");
    }

    #[test]
    fn chunk_data_can_contain_chunk_syntax() {
        accepted(b"9\r\n0\r\n\r\nGET \r\n0\r\n\r\n", b"0\r\n\r\nGET ");
    }

    #[test]
    fn a_chunk_size_with_other_characters_than_hexadecimal_digits_is_rejected() {
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
    fn a_chunk_size_with_more_than_16_digits_is_rejected() {
        let (data, stop) = decode(b"ffffffffffffffff\r\nx");
        assert_eq!((&data[..], stop), (&b"x"[..], Ok(None)));
        rejected(b"00000000000000005\r\n", 16, Violation::ChunkSize);
        rejected(b"fffffffffffffffff\r\n", 16, Violation::ChunkSize);
    }

    #[test]
    fn a_line_that_does_not_end_in_crlf_is_rejected() {
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
    fn extensions_with_control_characters_or_over_the_limit_are_rejected() {
        rejected(b"5;a\nb\r\nhello\r\n", 3, Violation::ChunkExtension);
        rejected(b"5;a\0b\r\nhello\r\n", 3, Violation::ChunkExtension);
        let mut once = b"1;".to_vec();
        once.extend([b'a'; EXTENSION_BYTES / 2]);
        once.extend(b"\r\nx\r\n");
        let mut decoder = chunked();
        assert_eq!(decode_all(&mut decoder, &once).1, Ok(None));
        assert!(matches!(
            decode_all(&mut decoder, &once).1,
            Err((_, Violation::ChunkExtension))
        ));
    }

    #[test]
    fn malformed_trailers_and_trailers_over_the_limit_are_rejected() {
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
        fn input_in_pieces_decodes_like_input_in_one_piece(
            body in proptest::collection::vec(
                prop::sample::select(&b"0123af;= \r\n\0x:"[..]), 0..120),
            size in 1usize..9,
        ) {
            let whole = decode(&body);
            let mut decoder = chunked();
            let (mut data, mut stop, mut start) = (Vec::new(), Ok(None), 0);
            for piece in body.chunks(size) {
                let (more, reached) = decode_all(&mut decoder, piece);
                data.extend(more);
                stop = reached
                    .map(|end| end.map(|at| start + at))
                    .map_err(|(at, violation)| (start + at, violation));
                if stop != Ok(None) {
                    break;
                }
                start += piece.len();
            }
            prop_assert_eq!((data, stop), whole);
        }
    }

    fn data(bytes: &'static [u8]) -> Decoded {
        Decoded::Data(Bytes::from_static(bytes))
    }

    #[test]
    fn bytes_after_a_body_of_known_length_are_not_consumed() {
        let mut decoder = Decoder::Length(5);
        let mut input = BytesMut::from(&b"abc"[..]);
        assert_eq!(decoder.decode(&mut input), Ok(data(b"abc")));
        assert_eq!(decoder.decode(&mut input), Ok(Decoded::Incomplete));
        input.extend_from_slice(b"deGET");
        assert_eq!(decoder.decode(&mut input), Ok(data(b"de")));
        assert_eq!(decoder.decode(&mut input), Ok(Decoded::End));
        assert_eq!(&input[..], b"GET");
    }

    #[test]
    fn bytes_after_a_chunked_body_are_not_consumed() {
        let mut decoder = chunked();
        let mut input = BytesMut::from(&b"3;x\r\nabc\r"[..]);
        assert_eq!(decoder.decode(&mut input), Ok(data(b"abc")));
        assert_eq!(decoder.decode(&mut input), Ok(Decoded::Incomplete));
        input.extend_from_slice(b"\n2\r\nde\r\n0\r\nt: r\r\n\r\nGET");
        assert_eq!(decoder.decode(&mut input), Ok(data(b"de")));
        assert_eq!(decoder.decode(&mut input), Ok(Decoded::End));
        assert_eq!(&input[..], b"GET");
    }

    #[test]
    fn a_chunk_longer_than_its_size_is_a_violation_of_its_end() {
        let mut decoder = chunked();
        let mut input = BytesMut::from(&b"1\r\nabc"[..]);
        assert_eq!(decoder.decode(&mut input), Ok(data(b"a")));
        assert_eq!(decoder.decode(&mut input), Err(Violation::ChunkEnd));
    }
}
