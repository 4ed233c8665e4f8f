//! Bodies of requests and responses that the stages pass to each other.
//!
//! `RequestBody` comes from the client, either complete or as a stream. [`ResponseBody`] goes to the client. The
//! gateway generates it, replays it from an idempotency store, or streams it from the upstream. Types that only one
//! stage uses are defined in that stage. `upstream` defines the body of an attempt and the copy for retries. `pipeline`
//! defines a response body that writes the access log line when the body ends.

mod error;
mod held;
mod read;
mod request;
mod response;

pub use response::{BodyError, ResponseBody};

pub(crate) use error::RequestBodyError;
pub(crate) use read::{ExceededBound, ReadBody, read_body};
pub(crate) use request::RequestBody;

/// Error of a request or response body in an application that uses the layers in `embed`.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
