use std::sync::Arc;

use thiserror::Error;

#[cfg(feature = "gateway")]
use crate::http::IncompleteBody;
use crate::respond::Problem;

/// Error that ends the body of a request before it is complete.
#[derive(Clone, Debug, Error)]
pub enum RequestBodyError {
    /// The body is longer than the maximum, which is this number of bytes.
    #[error("request body is larger than `max_body`, which is {0} bytes")]
    TooLarge(u64),
    /// The gateway did not receive the complete body.
    #[cfg(feature = "gateway")]
    #[error(transparent)]
    Incomplete(#[from] IncompleteBody),
    /// The HTTP server of the embedding application returned an error while it read the body.
    #[error("cannot read the request body from the HTTP server of the application")]
    Application(#[source] Arc<dyn std::error::Error + Send + Sync>),
}

impl From<RequestBodyError> for Problem {
    fn from(error: RequestBodyError) -> Self {
        match error {
            RequestBodyError::TooLarge(limit) => Self::payload_too_large(limit),
            #[cfg(feature = "gateway")]
            RequestBodyError::Incomplete(IncompleteBody::Invalid(violation)) => violation.into(),
            #[cfg(feature = "gateway")]
            RequestBodyError::Incomplete(IncompleteBody::Disconnected) => Self::bad_request(
                "The client closed the connection before the request body was complete. Send a complete body.",
            ),
            RequestBodyError::Application(_) => {
                Self::bad_request("The server cannot read the request body. Send a complete body.")
            }
        }
    }
}
