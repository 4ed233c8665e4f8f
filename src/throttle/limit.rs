//! A named limit: a quota, what it is counted by, and what happens beyond it.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use super::Quota;
use crate::problem::RetryAfterForm;

/// A limit's place in the policy. A bucket's name is made from the limit's own, not from this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LimitId(pub u16);

/// One `[limit.NAME]` of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Its place in the policy.
    pub id: LimitId,
    /// The name a person gave it; also its name in `RateLimit` headers and metrics.
    pub name: Arc<str>,
    /// How much, how fast.
    pub quota: Quota,
    /// What a bucket is counted by; never empty.
    pub key: Box<[KeyPart]>,
    /// What happens to a request beyond the quota.
    pub exceed: Exceed,
    /// Whether the limit acts or only watches.
    pub mode: Mode,
    /// How the wait is written in `Retry-After`.
    pub retry_after: RetryAfterForm,
    /// What happens to a request while the store of the buckets cannot be asked.
    pub on_store_error: OnStoreError,
}

impl Limit {
    /// A limit that holds each client to `quota` and refuses what goes beyond it.
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
}

impl Limit {
    /// Returns the headers that the limit is counted by.
    pub fn headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.key.iter().filter_map(|part| match part {
            KeyPart::Header(name) => Some(name),
            KeyPart::Client | KeyPart::Global => None,
        })
    }
}

/// One thing a limit's buckets are told apart by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The client's address.
    Client,
    /// Nothing: one bucket for everybody.
    Global,
    /// The value of a request header; the client's address where the header is missing.
    Header(HeaderName),
}

/// What happens to a request beyond the quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceed {
    /// It is refused.
    Reject,
    /// It waits for its slot, and is refused only if that is further away than `max`.
    Delay {
        /// The longest a request is made to wait.
        max: Duration,
    },
}

/// Whether a limit acts or only watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Requests beyond the quota are refused (or delayed).
    Enforce,
    /// Requests beyond the quota are counted, and pass.
    Shadow,
}

/// What happens to a request while the store of the buckets cannot be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreError {
    /// It is held to a bucket of this gateway's own: the quota is then each gateway's, not the fleet's.
    #[default]
    Local,
    /// It passes: to be available matters more than the limit.
    Open,
    /// It is refused: the limit matters more than to be available.
    Closed,
}
