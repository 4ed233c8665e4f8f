//! Bodies of requests and responses that the stages pass to each other.
//!
//! Types that only one stage uses are defined in that stage: `upstream` has the body of an attempt and the copy for
//! retries, and `pipeline` a response body that writes the access log line when it ends.

mod error;
mod held;
mod read;
mod request;
mod response;

pub use response::{BodyError, ResponseBody};

pub(crate) use error::RequestBodyError;
pub(crate) use read::{ExceededBound, ReadBody, read_body};
pub(crate) use request::RequestBody;

/// Error of an application that uses the layers in `embed`.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
