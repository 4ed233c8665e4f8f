//! Named limit: a quota, the key that its buckets are counted by, and the action if it is exceeded.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use super::Quota;
use crate::problem::RetryAfterForm;

/// Index of a limit in the policy. It is not part of bucket keys.
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
    /// Parts of the key: requests with equal parts share a bucket. Never empty.
    pub key: Box<[KeyPart]>,
    /// Action on a request that exceeds the quota.
    pub exceed: Exceed,
    /// Whether the limit is enforced.
    pub mode: Mode,
    /// Format of `Retry-After`.
    pub retry_after: RetryAfterForm,
    /// Action on a request while the store of the buckets is unavailable.
    pub on_store_error: OnStoreError,
}

impl Limit {
    /// Creates an enforced limit that counts requests per client and rejects those beyond `quota`.
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

    /// Returns the request headers that are parts of the key.
    pub fn headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.key.iter().filter_map(|part| match part {
            KeyPart::Header(name) => Some(name),
            KeyPart::Client | KeyPart::Global => None,
        })
    }
}

/// Part of the key of a limit's buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// Address of the client: an IPv4 address or an IPv6 network.
    Client,
    /// Constant: all clients share one bucket.
    Global,
    /// Value of a request header, or the client address if the header is absent.
    Header(HeaderName),
}

/// Action on a request that exceeds the quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceed {
    /// Rejects the request.
    Reject,
    /// Delays the request until its slot, or rejects it if the slot is more than `max` away.
    Delay {
        /// Maximum delay of a request.
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

/// Action on a request while the store of the buckets is unavailable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreError {
    /// Charges a local bucket of this gateway, so each gateway of a fleet admits the full quota.
    #[default]
    Local,
    /// Admits the request.
    Open,
    /// Rejects the request.
    Closed,
}
