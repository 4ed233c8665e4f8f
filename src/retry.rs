//! Retries for clients of an HTTP API: which failures are retried, backoff, `Retry-After`, and deadlines.
//!
//! [`RetryPolicy::begin`] returns a [`RetryState`], which does no I/O and reads no clock, so simulations and real
//! clients run the same code. [`Retrying`] is a complete retry loop for programs that provide only the attempt:
//!
//! ```
//! # use std::error::Error;
//! # use http::{Response, StatusCode};
//! # async fn get(_: &str) -> Response<()> { Response::default() }
//! use std::time::Duration;
//! use tidegate::retry::events::AuthorizationApiLog;
//! use tidegate::retry::{ErrorResponse, GaveUp, Preset, RetryPolicy, Retrying};
//!
//! async fn register() -> Result<StatusCode, GaveUp<ErrorResponse>> {
//!     let policy = RetryPolicy {
//!         deadline: Some(Duration::from_secs(30)),
//!         ..Preset::AuthorizationApi.policy()
//!     };
//!     let response = Retrying::new(policy)
//!         .timeout(Duration::from_secs(5))
//!         .observer(AuthorizationApiLog::new("GET /o/client/register"))
//!         .run(async |_| ErrorResponse::check(get("/o/client/register").await))
//!         .await?;
//!     Ok(response.status())
//! }
//! # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(register())?;
//! # Ok::<_, Box<dyn Error>>(())
//! ```
//!
//! [`ErrorResponse::check`] converts a response with a status of 400 or above into an error with its `Retry-After`. A
//! program can also use its own error type, which must implement [`RetryableError`].

mod backoff;
mod classify;
pub mod environment;
mod error;
pub mod events;
mod policy;
mod preset;
mod retry_after;
mod retrying;

pub use backoff::{Backoff, Jitter, Strategy};
pub use classify::{Failure, RetryTable};
pub use error::{ErrorResponse, GaveUp, Last, RetryableError};
pub use policy::{GiveUp, Next, RetryAfterPolicy, RetryPolicy, RetryState, Wait};
pub use preset::{Preset, UnknownPreset};
pub use retry_after::{RetryAfter, Unreadable};
pub use retrying::{FailedAttempt, Observer, Retrying};
