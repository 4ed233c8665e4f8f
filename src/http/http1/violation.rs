//! Rules that a request can violate, and the response status for each of them.
//!
//! Each rule has its own variant, so that the response and the log name the violated rule. The text contains no bytes
//! of the client except one character in printable form, because the gateway must not send invalid bytes back.

use http::StatusCode;
use thiserror::Error;

use crate::respond::Problem;

/// A rule of the HTTP/1 syntax, or a configured size limit or timeout.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Violation {
    #[error("the request line does not have the form `METHOD TARGET HTTP/1.1`")]
    RequestLine,
    #[error(
        "the request target is not a valid URI. Percent-encode characters that are not allowed in URIs"
    )]
    Target,
    #[error("byte {at} of the request target is {}", describe(*.octet))]
    TargetCharacter {
        octet: u8,
        /// The first octet has position 0.
        at: usize,
    },
    #[error("the HTTP version of the request is not supported. Use HTTP/1.0, HTTP/1.1 or HTTP/2")]
    Version,
    #[error("a line of the request head ends in LF without CR. End each line in CRLF")]
    BareLf,
    #[error("a CR in the request head is not followed by LF. End each line in CRLF")]
    BareCr,
    #[error("the value of a header field contains a control character")]
    Control,
    /// obs-fold
    #[error(
        "a header field continues on a second line (obs-fold). Send each header field on one line"
    )]
    Folded,
    #[error("a header field has white space between its name and the colon")]
    SpaceBeforeColon,
    #[error("a header line starts with a colon, so the header field has no name")]
    EmptyName,
    #[error(
        "a header line has no colon, or the name of the header field contains an invalid character"
    )]
    Name,
    #[error("the value of the Content-Length header is not a decimal number of at most 19 digits")]
    ContentLength,
    /// Even if the values are equal.
    #[error("the request has more than one Content-Length header")]
    ContentLengthRepeated,
    #[error(
        "the Transfer-Encoding header has a value other than `chunked`. No other value is supported"
    )]
    TransferEncoding,
    #[error("the request has more than one Transfer-Encoding header")]
    TransferEncodingRepeated,
    #[error(
        "the request is HTTP/1.0 and has a Transfer-Encoding header. Use Content-Length or HTTP/1.1"
    )]
    TransferEncodingOnHttp10,
    #[error(
        "the request has both a Content-Length and a Transfer-Encoding header. Send only one of them"
    )]
    BothFramings,
    #[error("the request has no Host header, which HTTP/1.1 requires")]
    HostMissing,
    #[error("the request has more than one Host header")]
    HostRepeated,
    #[error("the request line and headers are larger than the gateway allows (`max_header_bytes`)")]
    HeadTooLarge,
    #[error("the request has more header lines than the gateway allows (`max_headers`)")]
    TooManyHeaders,
    #[error("the request head did not arrive in time (`header_timeout`)")]
    HeadTimeout,
    #[error("the next bytes of the request body did not arrive in time (`body_timeout`)")]
    BodyTimeout,
    #[error("the request body arrived more slowly than the gateway allows (`min_rate`)")]
    BodyTooSlow,
    #[error(
        "the size of a chunk in the request body is not a hexadecimal number of at most 16 digits"
    )]
    ChunkSize,
    #[error(
        "the chunk extensions of the request body exceed 16 KiB or contain a control character"
    )]
    ChunkExtension,
    #[error("the size line or the data of a chunk in the request body does not end in CRLF")]
    ChunkEnd,
    #[error(
        "the trailer section of the request body is malformed or larger than `max_header_bytes`"
    )]
    Trailer,
}

impl Violation {
    pub fn status(self) -> StatusCode {
        match self {
            Self::Version => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            Self::HeadTooLarge | Self::TooManyHeaders => {
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
            }
            Self::HeadTimeout | Self::BodyTimeout | Self::BodyTooSlow => {
                StatusCode::REQUEST_TIMEOUT
            }
            _ => StatusCode::BAD_REQUEST,
        }
    }
}

fn describe(octet: u8) -> String {
    match octet {
        0 => "a NUL character, which no target can contain. Remove it".to_owned(),
        b'!'..=b'~' => format!(
            "`{}`, which is not allowed in a target. Write `%{octet:02X}` for this character",
            char::from(octet)
        ),
        _ => format!(
            "a control character, which is not allowed in a target. Write `%{octet:02X}` for it"
        ),
    }
}

impl From<Violation> for Problem {
    fn from(violation: Violation) -> Self {
        let detail = violation.to_string();
        Self::new(violation.status(), "bad-request", "Bad request", detail)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Defines the list of all violations with their statuses. A variant that is missing does not compile.
    macro_rules! statuses {
        ($($status:literal: $($variant:ident $({ $($field:ident: $value:literal),+ })?)+;)*) => {
            const STATUSES: &[(Violation, u16)] =
                &[$($((Violation::$variant { $($($field: $value),+)? }, $status),)+)*];

            const _: fn(Violation) = |violation| match violation {
                $($(Violation::$variant { .. })|+ => {})*
            };
        };
    }

    statuses! {
        400: RequestLine Target TargetCharacter { octet: b'#', at: 3 } BareLf BareCr Control Folded SpaceBeforeColon EmptyName Name ContentLength
            ContentLengthRepeated TransferEncoding TransferEncodingRepeated TransferEncodingOnHttp10 BothFramings
            HostMissing HostRepeated ChunkSize ChunkExtension ChunkEnd Trailer;
        408: HeadTimeout BodyTimeout BodyTooSlow;
        431: HeadTooLarge TooManyHeaders;
        505: Version;
    }

    #[test]
    fn every_violation_has_its_status_and_its_own_detail() {
        let mut details = HashSet::new();
        for &(violation, status) in STATUSES {
            assert_eq!(violation.status(), status, "{violation:?}");
            let problem = Problem::from(violation);
            assert_eq!(problem.status, status, "{violation:?}");
            assert_eq!(problem.kind, "bad-request", "{violation:?}");
            assert!(details.insert(problem.detail.clone()), "{violation:?}");
        }
    }
}
