//! Rules that a request can violate (HTTP/1 syntax, size limits and timeouts), and the response status for each of
//! them.
//!
//! Each rule has its own variant, so that the response and the log name the violated rule. The text contains no invalid
//! bytes, because the gateway must not send bytes of the client back. It can name one character, in printable form.

use http::StatusCode;
use thiserror::Error;

use crate::respond::Problem;

/// The rule that a request violates: a rule of the HTTP/1 syntax, or a configured size limit or timeout.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Violation {
    /// The request line does not have the form `method SP target SP version CRLF`.
    #[error("the request line does not have the form `METHOD TARGET HTTP/1.1`")]
    RequestLine,
    /// The request target is not a valid URI.
    #[error(
        "the request target is not a valid URI. Percent-encode characters that are not allowed in URIs"
    )]
    Target,
    /// The request target contains a control character or `#`.
    #[error("byte {at} of the request target is {}", describe(*.octet))]
    TargetCharacter {
        /// Octet that is not allowed.
        octet: u8,
        /// Position of the octet in the target. The first octet has position 0.
        at: usize,
    },
    /// The HTTP version is well-formed, but is neither 1.0 nor 1.1.
    #[error("the HTTP version of the request is not supported. Use HTTP/1.0, HTTP/1.1 or HTTP/2")]
    Version,
    /// A line ends in LF without a CR before it.
    #[error("a line of the request head ends in LF without CR. End each line in CRLF")]
    BareLf,
    /// A CR is not followed by LF.
    #[error("a CR in the request head is not followed by LF. End each line in CRLF")]
    BareCr,
    /// A header value contains a control character.
    #[error("the value of a header field contains a control character")]
    Control,
    /// A header field continues on a line that starts with white space (obs-fold).
    #[error(
        "a header field continues on a second line (obs-fold). Send each header field on one line"
    )]
    Folded,
    /// White space is between the name of a header field and its colon.
    #[error("a header field has white space between its name and the colon")]
    SpaceBeforeColon,
    /// A header line starts with a colon.
    #[error("a header line starts with a colon, so the header field has no name")]
    EmptyName,
    /// The name of a header field is not a token, or the line has no colon.
    #[error(
        "a header line has no colon, or the name of the header field contains an invalid character"
    )]
    Name,
    /// `Content-Length` does not consist of 1 to 19 decimal digits.
    #[error("the value of the Content-Length header is not a decimal number of at most 19 digits")]
    ContentLength,
    /// The head has more than one `Content-Length` line. This is a violation even if the values are equal.
    #[error("the request has more than one Content-Length header")]
    ContentLengthRepeated,
    /// `Transfer-Encoding` has a value other than `chunked`.
    #[error(
        "the Transfer-Encoding header has a value other than `chunked`. No other value is supported"
    )]
    TransferEncoding,
    /// The head has more than one `Transfer-Encoding` line.
    #[error("the request has more than one Transfer-Encoding header")]
    TransferEncodingRepeated,
    /// An HTTP/1.0 request has `Transfer-Encoding`.
    #[error(
        "the request is HTTP/1.0 and has a Transfer-Encoding header. Use Content-Length or HTTP/1.1"
    )]
    TransferEncodingOnHttp10,
    /// The head has both `Content-Length` and `Transfer-Encoding`.
    #[error(
        "the request has both a Content-Length and a Transfer-Encoding header. Send only one of them"
    )]
    BothFramings,
    /// An HTTP/1.1 request has no `Host` header.
    #[error("the request has no Host header, which HTTP/1.1 requires")]
    HostMissing,
    /// The head has more than one `Host` line.
    #[error("the request has more than one Host header")]
    HostRepeated,
    /// The head is larger than `max_header_bytes`.
    #[error("the request line and headers are larger than the gateway allows (`max_header_bytes`)")]
    HeadTooLarge,
    /// The head has more header lines than `max_headers`.
    #[error("the request has more header lines than the gateway allows (`max_headers`)")]
    TooManyHeaders,
    /// The head was incomplete when `header_timeout` expired.
    #[error("the request head did not arrive in time (`header_timeout`)")]
    HeadTimeout,
    /// No part of the body arrived within `body_timeout`.
    #[error("the next bytes of the request body did not arrive in time (`body_timeout`)")]
    BodyTimeout,
    /// The average rate of the body is below `min_rate`.
    #[error("the request body arrived more slowly than the gateway allows (`min_rate`)")]
    BodyTooSlow,
    /// A chunk size does not consist of 1 to 16 hexadecimal digits.
    #[error(
        "the size of a chunk in the request body is not a hexadecimal number of at most 16 digits"
    )]
    ChunkSize,
    /// The chunk extensions of the body exceed 16 KiB in total, or contain a control character.
    #[error(
        "the chunk extensions of the request body exceed 16 KiB or contain a control character"
    )]
    ChunkExtension,
    /// A chunk or a chunk size is not followed by CRLF.
    #[error("the size line or the data of a chunk in the request body does not end in CRLF")]
    ChunkEnd,
    /// The trailer section is malformed, or larger than `max_header_bytes`.
    #[error(
        "the trailer section of the request body is malformed or larger than `max_header_bytes`"
    )]
    Trailer,
}

impl Violation {
    /// Returns the status of the response to a request with this violation.
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

/// Describes an octet that is not allowed in a target, and how to avoid it.
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
