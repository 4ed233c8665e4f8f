//! A named limit: a quota, the key that it is counted by, and the action when it is exceeded.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use super::Quota;
use crate::problem::RetryAfterForm;

/// Index of a limit in the policy. It is not part of the names of buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LimitId(pub u16);

/// One `[limit.NAME]` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Index of the limit in the policy.
    pub id: LimitId,
    /// Name in the configuration, in `RateLimit` headers and in metrics.
    pub name: Arc<str>,
    /// Capacity and refill rate of each bucket.
    pub quota: Quota,
    /// The parts of the key that buckets are counted by; never empty.
    pub key: Box<[KeyPart]>,
    /// Action on a request that exceeds the quota.
    pub exceed: Exceed,
    /// Whether the limit is enforced.
    pub mode: Mode,
    /// Format of `Retry-After`.
    pub retry_after: RetryAfterForm,
    /// Action on a request while the store of the buckets cannot be queried.
    pub on_store_error: OnStoreError,
}

impl Limit {
    /// Creates a limit that rejects requests of a client beyond `quota`.
    pub fn per_client(name: &str, quota: Quota) -> Self {
        Self {
            id: LimitId(0),
            name: name.into(),
            quota,
            key: [KeyPart::Client].into(),
            exceed: Exceed::Reject,
            mode: Mode::Enforce,
            retry_after: RetryAfterForm::Seconds,
            on_store_error: OnStoreError::Local,
        }
    }

    /// Returns the headers that the limit is counted by.
    pub fn headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.key.iter().filter_map(|part| match part {
            KeyPart::Header(name) => Some(name),
            KeyPart::Client | KeyPart::Global => None,
        })
    }
}

/// One part of the key that the buckets of a limit are counted by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The client's address.
    Client,
    /// One bucket for all clients.
    Global,
    /// The value of a request header, or the client's address if the header is missing.
    Header(HeaderName),
}

/// Action on a request that exceeds the quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceed {
    /// Rejects the request.
    Reject,
    /// Delays the request to its slot, or rejects it if the slot is further away than `max`.
    Delay {
        /// Longest delay of a request.
        max: Duration,
    },
}

/// Whether a limit is enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Requests that exceed the quota are rejected or delayed.
    Enforce,
    /// Requests that exceed the quota are counted and admitted.
    Shadow,
}

/// Action on a request while the store of the buckets cannot be queried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreError {
    /// Charges a bucket of this gateway alone: each gateway of a fleet then admits the whole quota.
    #[default]
    Local,
    /// Admits the request.
    Open,
    /// Rejects the request.
    Closed,
}
