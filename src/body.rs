//! Bodies of requests and responses between the stages.
//!
//! `RequestBody` is what the client sends, in full or as it arrives. [`ResponseBody`] is what the client receives: made by
//! the gateway, replayed, or forwarded from upstream as it arrives. The bodies that only one stage knows stay there: the
//! body of an attempt and its copy for retries in `upstream`, and the recording of the end in `pipeline`.

mod request;
mod response;

pub use response::{BodyError, ResponseBody};

pub(crate) use request::{RequestBody, RequestBodyError};

/// The error of a body that an embedding application provides.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;
