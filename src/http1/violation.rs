//! What can be wrong with the bytes of a request, and the status that says so.
//!
//! One variant for each rule, because the answer to a refused request and the log line about it are
//! only useful when they name the rule. The value is a `Copy` code without the offending bytes: those
//! are the client's, and nothing here may echo them.

use http::StatusCode;
use thiserror::Error;

use crate::problem::Problem;

/// A breach of HTTP/1's grammar, or of the limits and deadlines set for it.
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
    /// A header continued on a line that begins with white space.
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
    /// Transfer-Encoding from a client that speaks HTTP/1.0.
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
    /// A head of more bytes than allowed.
    #[error("the request head is too large")]
    HeadTooLarge,
    /// More header lines than allowed.
    #[error("the request has too many header lines")]
    TooManyHeaders,
    /// A head that was begun and not finished in time.
    #[error("the request head did not arrive in time")]
    HeadTimeout,
    /// A body that stopped arriving.
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
    /// The status of the answer.
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
