//! May this request pass now?
//!
//! A route names its limits; each [`Limit`] is a [`Quota`] counted per key. All of a request's limits
//! are charged in one step or not at all.

pub mod limit;
pub mod quota;

pub use limit::{Exceed, KeyPart, Limit, LimitId, Mode, RetryAfterForm};
pub use quota::{Quota, QuotaError};
