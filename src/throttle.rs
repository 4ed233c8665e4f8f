//! Rate limits, which are implemented as token buckets.
//!
//! A request is charged to all [`Limit`]s of its route or to none, so a rejected request takes no tokens. The store of
//! the buckets makes this step atomic ([`Buckets`]); all stores decide with the pure function [`decide`] or an
//! equivalent script. Limits in shadow mode are charged separately, after the enforced ones, and never reject or delay
//! a request.

pub(crate) mod bucket;
pub(crate) mod census;
pub(crate) mod decision;
mod limit;
pub(crate) mod quota;
pub(crate) mod rate;
mod rate_limit;
mod stage;

pub use crate::request::context::KeyFunction;
pub use crate::respond::RetryAfterForm;
pub use bucket::BucketKey;
pub use decision::{Buckets, Charge, ChargeOutcome, ChargeResult, Decision, decide};
pub use limit::{Exceed, KeyPart, Limit, Mode, OnStoreError, QuotaSince};
pub use quota::{BucketReading, BucketState, ParseQuotaError, Quota, QuotaError};
pub use rate::RateError;

pub(crate) use bucket::{BucketKind, KeySource};
pub(crate) use limit::is_limit_name;
pub(crate) use stage::{Admission, LimitState, RouteLimits, Throttle};
