//! Token-bucket limits.
//!
//! A route names its limits; each [`Limit`] is a [`Quota`] counted per key. All limits of a request are charged in one
//! step or not at all, so a rejected request consumes nothing from any of them. The store of the buckets makes this step
//! atomic ([`Buckets`]); the arithmetic is [`decide`], a pure function, and the same for all stores.
//!
//! Limits in shadow mode are charged separately, one by one, after the enforced ones. They are counted and reported, and
//! never change the outcome.

pub(crate) mod bucket;
pub(crate) mod decision;
mod limit;
pub(crate) mod quota;
mod rate_limit;
mod stage;

pub use crate::problem::RetryAfterForm;
pub use bucket::BucketKey;
pub use decision::{Buckets, Charge, ChargeResult, Decision, Outcome, decide};
pub use limit::{Exceed, KeyPart, Limit, LimitId, Mode, OnStoreError};
pub use quota::{Quota, QuotaError, Reading};

pub(crate) use bucket::Side;
pub(crate) use stage::{RouteLimits, Throttle};
