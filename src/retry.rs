//! How a caller treats an API that struggles: classify what happened, back off, try again, give up.
//!
//! The gateway is such a caller for everything behind it, and nothing here knows that it is one: this
//! module stands alone, for other programs too. Its core does no I/O, tells no time and draws no chance of
//! its own. [`Policy::begin`] gives a [`Course`], which is told how each attempt went and says what comes
//! next, so that a thousand simulated clients and one real one run the same code. [`Retrying`] is the loop
//! around it, for programs that want to write only the attempt:
//!
//! ```
//! # use std::error::Error;
//! # use http::{Response, StatusCode};
//! # async fn get(_: &str) -> Response<()> { Response::default() }
//! use std::time::Duration;
//! use tidegate::retry::events::AuthorizationApiLog;
//! use tidegate::retry::{Answered, GaveUp, Policy, Preset, Retrying};
//!
//! async fn register() -> Result<StatusCode, GaveUp<Answered>> {
//!     let policy = Policy {
//!         deadline: Some(Duration::from_secs(30)),
//!         ..Preset::AuthorizationApi.policy()
//!     };
//!     let answer = Retrying::new(policy)
//!         .timeout(Duration::from_secs(5))
//!         .observer(AuthorizationApiLog::new("GET /o/client/register"))
//!         .run(async |_| Answered::check(get("/o/client/register").await))
//!         .await?;
//!     Ok(answer.status())
//! }
//! # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(register())?;
//! # Ok::<_, Box<dyn Error>>(())
//! ```
//!
//! An answer from 400 up is an error here, with its `Retry-After`; errors of other kinds implement [`Trouble`].

pub mod backoff;
pub mod classify;
pub mod environment;
pub mod events;
pub mod policy;
pub mod preset;
pub mod retry_after;
pub mod retrying;
pub mod trouble;

pub use backoff::{Backoff, Jitter, Strategy};
pub use classify::{Failure, Table};
pub use policy::{Course, GiveUp, Heed, Next, Policy, Wait};
pub use preset::{Preset, UnknownPreset};
pub use retry_after::{RetryAfter, Unreadable};
pub use retrying::{Observer, Retrying, Setback};
pub use trouble::{Answered, GaveUp, Last, Trouble};
