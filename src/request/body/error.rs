use std::sync::Arc;

use thiserror::Error;

#[cfg(feature = "gateway")]
use crate::http::IncompleteBody;
use crate::respond::Problem;

/// Ends the body of a request before it is complete.
#[derive(Clone, Debug, Error)]
pub enum RequestBodyError {
    /// The maximum, in bytes.
    #[error("request body is larger than `max_body`, which is {0} bytes")]
    TooLarge(u64),
    #[cfg(feature = "gateway")]
    #[error(transparent)]
    Incomplete(#[from] IncompleteBody),
    /// While the HTTP server of the embedding application read the body.
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
