//! Violations of HTTP/1 in a request, and the status of the response to each.
//!
//! Each rule has its own variant, so that the response and the log name the violated rule. The offending bytes are not
//! included, because the gateway must not echo bytes of the client.

use http::StatusCode;
use thiserror::Error;

use crate::problem::Problem;

/// A violation of the HTTP/1 grammar, or of a configured limit or timeout.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Violation {
    /// The request line is not `method SP target SP version CRLF`.
    #[error("the request line is malformed")]
    RequestLine,
    /// The request target contains a control character, or is not a URL.
    #[error("the request target contains an invalid character")]
    Target,
    /// The version is well-formed, but neither 1.0 nor 1.1.
    #[error("the HTTP version is not supported")]
    Version,
    /// A line feed without a carriage return before it.
    #[error("a line ends in a line feed without a carriage return")]
    BareLf,
    /// A carriage return without a line feed after it.
    #[error("a carriage return is not followed by a line feed")]
    BareCr,
    /// A header value contains a control character.
    #[error("a header value contains a control character")]
    Control,
    /// A header continues on a line that starts with white space.
    #[error("a header is folded over several lines")]
    Folded,
    /// White space between the name of a header and its colon.
    #[error("a header has white space before its colon")]
    SpaceBeforeColon,
    /// A header line starts with a colon.
    #[error("a header has no name")]
    EmptyName,
    /// The name of a header is not a token, or its line has no colon.
    #[error("a header name contains an invalid character")]
    Name,
    /// `Content-Length` is not a decimal number.
    #[error("content-length is not a number")]
    ContentLength,
    /// More than one `Content-Length` line, equal or not.
    #[error("content-length is repeated")]
    ContentLengthRepeated,
    /// `Transfer-Encoding` has a value other than `chunked`.
    #[error("transfer-encoding has a value other than chunked")]
    TransferEncoding,
    /// More than one `Transfer-Encoding` line.
    #[error("transfer-encoding is repeated")]
    TransferEncodingRepeated,
    /// `Transfer-Encoding` in an HTTP/1.0 request.
    #[error("transfer-encoding is not allowed in HTTP/1.0")]
    TransferEncodingOnHttp10,
    /// `Content-Length` and `Transfer-Encoding` in one head.
    #[error("the request has both content-length and transfer-encoding")]
    BothFramings,
    /// An HTTP/1.1 request without `Host`.
    #[error("the host header is missing")]
    HostMissing,
    /// More than one `Host` line.
    #[error("the host header is repeated")]
    HostRepeated,
    /// The head exceeds `max_header_bytes`.
    #[error("the request head is too large")]
    HeadTooLarge,
    /// The head has more header lines than `max_headers`.
    #[error("the request has too many header lines")]
    TooManyHeaders,
    /// The head was incomplete when `header_timeout` expired.
    #[error("the request head did not arrive in time")]
    HeadTimeout,
    /// No part of the body arrived within `body_timeout`.
    #[error("the request body did not arrive in time")]
    BodyTimeout,
    /// A chunk size is not 1 to 16 hexadecimal digits.
    #[error("a chunk size is not a hexadecimal number of at most 16 digits")]
    ChunkSize,
    /// The chunk extensions are too long, or contain a control character.
    #[error("a chunk extension is too long or contains an invalid character")]
    ChunkExtension,
    /// A chunk or a chunk size is not followed by CRLF.
    #[error("a chunk does not end in carriage return and line feed")]
    ChunkEnd,
    /// The trailer section is malformed, or longer than the limit of a head.
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
    fn the_status_depends_on_the_violation() {
        assert_eq!(Violation::BareLf.status(), 400);
        assert_eq!(Violation::HeadTimeout.status(), 408);
        assert_eq!(Violation::HeadTooLarge.status(), 431);
        assert_eq!(Violation::TooManyHeaders.status(), 431);
        assert_eq!(Violation::Version.status(), 505);
    }
}
