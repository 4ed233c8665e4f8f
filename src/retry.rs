//! How a caller treats an API that struggles: classify what happened, back off, try again, give up.
//!
//! The gateway is such a caller for everything behind it, and nothing here knows that it is one: this
//! module stands alone, for other programs too. Its core does no I/O, tells no time and draws no chance of
//! its own. [`Policy::begin`] gives a [`Course`], which is told how each attempt went and says what comes
//! next, so that a thousand simulated clients and one real one run the same code. [`Retrying`] is the loop
//! around it, for programs that want to write only the attempt.

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
