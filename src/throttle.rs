//! Token-bucket limits.
//!
//! A route has a list of limits. Each [`Limit`] applies a [`Quota`] to a bucket per key, for example per client. A
//! request is charged to all of its limits or to none, so a rejected request takes no tokens. The store of the buckets
//! makes this step atomic ([`Buckets`]). The decision is the pure function [`decide`], which is the same for all
//! stores.
//!
//! Limits in shadow mode are charged separately, after the enforced limits. They appear in metrics and never reject or
//! delay a request.

pub(crate) mod bucket;
pub(crate) mod decision;
mod limit;
pub(crate) mod quota;
mod rate_limit;
mod stage;

pub use crate::problem::RetryAfterForm;
pub use bucket::BucketKey;
pub use decision::{Buckets, Charge, ChargeOutcome, ChargeResult, Decision, decide};
pub use limit::{Exceed, KeyPart, Limit, LimitId, Mode, OnStoreError};
pub use quota::{BucketReading, Quota, QuotaError};

pub(crate) use bucket::BucketKind;
pub(crate) use stage::{RouteLimits, Throttle};
