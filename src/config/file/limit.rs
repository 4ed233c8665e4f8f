//! `[limit.NAME]` of the configuration file.

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::located::{Located, Many};
use super::super::scalar::{KeyText, Rate, Timeout};

/// Rate limit, which the `limits` of a route refer to by its name.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct LimitSection {
    /// What the rate limit distinguishes: `client`, `global` (nothing), `header:NAME`, or a list of these. Each
    /// distinct value has its own bucket of tokens.
    #[schemars(extend("default" = "client"))]
    pub(in super::super) key: Option<Many<KeyText>>,
    /// Sustained rate: a number of requests per time, such as `10/s`.
    #[schemars(required)]
    pub(in super::super) rate: Option<Located<Rate>>,
    /// Size of a burst: `burst` + 1 requests are admitted at the same moment if the bucket is full. Default: the number
    /// of requests in `rate`, minus 1.
    #[schemars(range(max = 2_147_483_647))]
    pub(in super::super) burst: Option<Located<u32>>,
    /// What happens to a request that exceeds the rate limit.
    #[schemars(extend("default" = "reject"))]
    pub(in super::super) on_exceed: Option<Located<ExceedWord>>,
    /// With `on_exceed = "delay"`: maximum delay of a request. A request that would wait longer gets 429.
    #[schemars(extend("default" = "1s"))]
    pub(in super::super) max_delay: Option<Located<Timeout>>,
    /// Whether requests that exceed the rate limit are rejected or delayed, or only counted in the metrics.
    #[schemars(extend("default" = "enforce"))]
    pub(in super::super) mode: Option<Located<ModeWord>>,
    /// Format of the `Retry-After` header of rejections.
    #[schemars(extend("default" = "seconds"))]
    pub(in super::super) retry_after: Option<Located<RetryAfterWord>>,
    /// With `backend = "redis"`: what happens to a request while Redis is unavailable.
    #[schemars(extend("default" = "local"))]
    pub(in super::super) on_store_error: Option<Located<OnStoreErrorWord>>,
}

/// What happens to a request that exceeds the rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum ExceedWord {
    /// The request gets 429.
    Reject,
    /// The request waits until the rate limit admits it, at most `max_delay`.
    Delay,
}

/// Whether requests that exceed a rate limit are rejected or delayed, or only counted in the metrics.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum ModeWord {
    /// Requests that exceed the rate limit are rejected or delayed.
    Enforce,
    /// All requests are admitted. The metrics count those that exceed the rate limit.
    Shadow,
}

/// Format of the `Retry-After` header of rejections.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(in super::super) enum RetryAfterWord {
    /// Number of whole seconds.
    Seconds,
    /// HTTP date.
    HttpDate,
}

/// What happens to a request while Redis is unavailable.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum OnStoreErrorWord {
    /// This gateway enforces the rate limit with buckets in its own memory.
    Local,
    /// The request is admitted.
    Open,
    /// The request is rejected.
    Closed,
}
