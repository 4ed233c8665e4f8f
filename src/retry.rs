//! Retries for clients of an API: classification of failures, backoff, `Retry-After`, deadlines.
//!
//! The gateway uses this module towards upstreams, and other programs can use it without the gateway. The core does no
//! I/O and reads no clock: [`Policy::begin`] returns a [`RetryState`], which receives the result of each attempt and
//! returns what comes next, so simulated clients and real ones run the same code. [`Retrying`] is the loop around it,
//! for programs that provide only the attempt:
//!
//! ```
//! # use std::error::Error;
//! # use http::{Response, StatusCode};
//! # async fn get(_: &str) -> Response<()> { Response::default() }
//! use std::time::Duration;
//! use tidegate::retry::events::AuthorizationApiLog;
//! use tidegate::retry::{ErrorResponse, GaveUp, Policy, Preset, Retrying};
//!
//! async fn register() -> Result<StatusCode, GaveUp<ErrorResponse>> {
//!     let policy = Policy {
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
//! A response with a status of 400 or above is an [`ErrorResponse`] with its `Retry-After`. Other errors implement
//! [`RetryableError`].

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
pub use classify::{Failure, Table};
pub use error::{ErrorResponse, GaveUp, Last, RetryableError};
pub use policy::{GiveUp, Next, Policy, RetryAfterPolicy, RetryState, Wait};
pub use preset::{Preset, UnknownPreset};
pub use retry_after::{RetryAfter, Unreadable};
pub use retrying::{FailedAttempt, Observer, Retrying};
