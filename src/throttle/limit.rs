use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderName;
use http::request::Parts;

use super::{Quota, QuotaError};
use crate::clock::Moment;
use crate::request::context::KeyFunction;
use crate::respond::RetryAfterForm;

/// Rate limit: one `[limit.NAME]` of the configuration. An application with the module `embed` creates it with
/// [`per_client`](Self::per_client) or [`by`](Self::by).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Name in the configuration, in `RateLimit` headers and in metrics.
    pub name: Arc<str>,
    /// Capacity and refill rate of each bucket.
    pub quota: Quota,
    /// When the quota took effect.
    pub quota_since: QuotaSince,
    /// Request properties that form the limit key; never empty.
    pub key: Box<[KeyPart]>,
    /// Action on a request that exceeds the quota.
    pub exceed: Exceed,
    /// Whether the limit is enforced.
    pub mode: Mode,
    /// Format of `Retry-After`.
    pub retry_after: RetryAfterForm,
    /// What happens while the store of the buckets is unavailable.
    pub on_store_error: OnStoreError,
    /// Whether log and admin API show the limit key instead of a keyed hash of it.
    pub log_key: bool,
}

impl Limit {
    /// Creates an enforced limit that counts by client address and rejects requests that exceed `quota`.
    pub fn per_client(name: &str, quota: Quota) -> Self {
        Self {
            name: name.into(),
            quota,
            quota_since: QuotaSince::default(),
            key: [KeyPart::Client].into(),
            exceed: Exceed::Reject,
            mode: Mode::Enforce,
            retry_after: RetryAfterForm::Seconds,
            on_store_error: OnStoreError::Local,
            log_key: false,
        }
    }

    /// Creates a limit that counts by the name that `function` returns, or by client address if it returns none. Only
    /// the layers of the module `embed` can apply it.
    pub fn by(
        name: &str,
        quota: Quota,
        function: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            key: [KeyPart::Function(KeyFunction::new(function))].into(),
            ..Self::per_client(name, quota)
        }
    }

    /// Sets the burst: how many requests beyond the first a full bucket admits at once.
    pub fn burst(self, burst: u32) -> Result<Self, QuotaError> {
        let quota = self.quota.with_burst(burst)?;
        Ok(Self { quota, ..self })
    }

    /// Returns the request headers in the limit key.
    pub fn headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.key.iter().filter_map(|part| match part {
            KeyPart::Header(name) => Some(name),
            KeyPart::Client | KeyPart::Global | KeyPart::Function(_) => None,
        })
    }
}

/// Time of the reload that changed the quota of a limit, or zero. The versions of a limit before and after a reload
/// share it, because a request that started before the reload can be charged after one that started later.
#[derive(Clone, Debug, Default)]
pub struct QuotaSince(Arc<AtomicU64>);

/// Limits with equal settings are equal, whenever they took effect.
impl PartialEq for QuotaSince {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for QuotaSince {}

impl QuotaSince {
    pub(crate) fn get(&self) -> Moment {
        Moment::from_nanos(self.0.load(Ordering::Relaxed))
    }

    pub(crate) fn set(&self, now: Moment) {
        self.0.store(now.as_nanos(), Ordering::Relaxed);
    }
}

/// Request property in the key of a rate limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// The address of the client: an IPv4 address or an IPv6 network.
    Client,
    /// All clients share one bucket.
    Global,
    /// The value of a header, or the client address if it is absent.
    Header(HeaderName),
    /// The name that a function of an embedding application returns, or the client address if it returns none.
    Function(KeyFunction),
}

/// As in the configuration, such as `header:x-api-key`.
impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client => f.write_str("client"),
            Self::Global => f.write_str("global"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Function(_) => f.write_str("function"),
        }
    }
}

/// Action on a request that exceeds the quota of a rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exceed {
    /// The request is rejected.
    Reject,
    /// The request is delayed until a token is free for it, or rejected if this takes longer than `max`.
    Delay {
        /// Longest delay.
        max: Duration,
    },
}

/// Whether requests that exceed a rate limit are rejected or delayed, or only counted in the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "gateway",
    derive(serde::Deserialize, schemars::JsonSchema),
    serde(rename_all = "lowercase")
)]
pub enum Mode {
    /// Requests that exceed the rate limit are rejected or delayed.
    Enforce,
    /// All requests are admitted. The metrics count those that exceed the rate limit.
    Shadow,
}

/// What happens to a request while Redis is unavailable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "gateway",
    derive(serde::Deserialize, schemars::JsonSchema),
    serde(rename_all = "lowercase")
)]
pub enum OnStoreError {
    /// This gateway enforces the rate limit with buckets in its own memory.
    #[default]
    Local,
    /// The request is admitted.
    Open,
    /// The request gets 503.
    Closed,
}

/// `RateLimit` headers contain the name as a structured-field string, and metrics as a label. These characters need no
/// escapes in either.
pub(crate) fn is_limit_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    matches!(text.len(), 1..=64) && text.bytes().all(plain)
}
