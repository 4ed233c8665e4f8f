//! Reasons to reject the bytes of a request, and the status of the response.
//!
//! Each rule has its own variant, so that the response and the log name the violated rule. The value is a `Copy` code
//! without the offending bytes, because the gateway must not echo bytes of the client.

use http::StatusCode;
use thiserror::Error;

use crate::problem::Problem;

/// A violation of the HTTP/1 grammar, or of a configured limit or timeout.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Violation {
    /// Not `method SP target SP version CRLF`.
    #[error("the request line is malformed")]
    RequestLine,
    /// A request target with a control character, or not UTF-8.
    #[error("the request target holds a character that is not allowed there")]
    Target,
    /// A well-formed version other than 1.0 and 1.1.
    #[error("the version of http is not supported")]
    Version,
    /// LF without CR before it.
    #[error("a line ends in a bare line feed")]
    BareLf,
    /// CR without LF after it.
    #[error("a carriage return stands alone")]
    BareCr,
    /// A control character in a header value.
    #[error("a header value holds a control character")]
    Control,
    /// A header continues on a line that begins with white space.
    #[error("a header is folded over several lines")]
    Folded,
    /// White space between a header's name and its colon.
    #[error("white space stands before a header's colon")]
    SpaceBeforeColon,
    /// A header line that begins with its colon.
    #[error("a header has no name")]
    EmptyName,
    /// A header's name is not a token, or its line has no colon.
    #[error("a header name holds a character that is not allowed there")]
    Name,
    /// Content-Length is not a plain decimal number.
    #[error("content-length is not a number")]
    ContentLength,
    /// More than one Content-Length line, equal or not.
    #[error("content-length is given more than once")]
    ContentLengthRepeated,
    /// A transfer coding other than exactly `chunked`.
    #[error("transfer-encoding is not exactly chunked")]
    TransferEncoding,
    /// More than one Transfer-Encoding line.
    #[error("transfer-encoding is given more than once")]
    TransferEncodingRepeated,
    /// Transfer-Encoding in an HTTP/1.0 request.
    #[error("transfer-encoding is not part of http/1.0")]
    TransferEncodingOnHttp10,
    /// Content-Length and Transfer-Encoding in one head.
    #[error("content-length and transfer-encoding are both given")]
    BothFramings,
    /// HTTP/1.1 without Host.
    #[error("the host header is missing")]
    HostMissing,
    /// More than one Host line.
    #[error("the host header is given more than once")]
    HostRepeated,
    /// The head exceeds its limit of bytes.
    #[error("the request head is too large")]
    HeadTooLarge,
    /// The head exceeds its limit of header lines.
    #[error("the request has too many header lines")]
    TooManyHeaders,
    /// The head was incomplete when `header_timeout` expired.
    #[error("the request head did not arrive in time")]
    HeadTimeout,
    /// No part of the body arrived within `body_timeout`.
    #[error("the request body did not arrive in time")]
    BodyTimeout,
    /// A chunk's size is not 1 to 16 hexadecimal digits.
    #[error("a chunk size is not a number")]
    ChunkSize,
    /// Chunk extensions too long, or with characters that are not visible.
    #[error("a chunk extension is too long or holds a character that is not allowed there")]
    ChunkExtension,
    /// No CRLF where a chunk or its size ends.
    #[error("a chunk does not end in carriage return and line feed")]
    ChunkEnd,
    /// The trailer section is malformed, or over its limits.
    #[error("the trailer section is malformed or too large")]
    Trailer,
}

impl Violation {
    /// Returns the status of the response.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Version => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            Self::HeadTooLarge | Self::TooManyHeaders => {
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
            }
            Self::HeadTimeout | Self::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            _ => StatusCode::BAD_REQUEST,
        }
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
    use super::*;

    #[test]
    fn each_kind_of_violation_has_its_status() {
        assert_eq!(Violation::BareLf.status(), 400);
        assert_eq!(Violation::HeadTimeout.status(), 408);
        assert_eq!(Violation::HeadTooLarge.status(), 431);
        assert_eq!(Violation::TooManyHeaders.status(), 431);
        assert_eq!(Violation::Version.status(), 505);
    }
}
