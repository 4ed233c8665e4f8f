use thiserror::Error;

use super::http1::Violation;

/// Why the body of a request ended before it was complete (RFC 9112, section 8).
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum IncompleteBody {
    /// The body is invalid HTTP, or the client sent it too slowly (`body_timeout` or `min_rate`).
    #[error(transparent)]
    Invalid(#[from] Violation),
    /// The client or the gateway closed the connection, or the client reset the stream.
    #[error("the client connection was closed before the request body was complete")]
    Disconnected,
}
