//! May this request pass now?
//!
//! A route names its limits; each [`Limit`] is a [`Quota`] counted per key. All of a request's limits
//! are charged in one step or not at all, so a refused request costs nothing, from any of them. That
//! step is the duty of whoever keeps the buckets ([`Buckets`], implemented in [`crate::store`]); the
//! arithmetic is [`decide`], a pure function, and the same for all of them.
//!
//! Limits in shadow mode are charged apart, one by one, after the enforced ones: they are counted and
//! reported and never change what happens.

pub mod bucket;
pub mod decision;
pub mod layer;
pub mod limit;
pub mod quota;

pub use bucket::{BucketKey, Seed, Side};
pub use decision::{Buckets, Charge, Judgement, Outcome, Verdict, decide};
pub use layer::{Passage, Resending, Throttle, ThrottleFuture, ThrottleLayer};
pub use limit::{Exceed, KeyPart, Limit, LimitId, Mode, OnStoreError, RetryAfterForm};
pub use quota::{Quota, QuotaError, Reading};
