//! `[limit.NAME]` of the configuration file.

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::located::{Located, Many, Setting};
use super::super::scalar::{KeyText, RateText, Timeout};
use crate::respond::RetryAfterForm;
use crate::throttle::{Mode, OnStoreError};

/// Rate limit, which the `limits` of a route refer to by its name.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitSection {
    /// What the rate limit distinguishes: `client`, `global` (nothing), `header:NAME`, or a list of these. Each
    /// distinct value has its own bucket of tokens.
    #[schemars(extend("default" = "client"))]
    pub(crate) key: Many<KeyText>,
    /// Sustained rate: a number of requests per time, written `N/s`, `N/m`, `N/h`, `N/d` or `N/10s`.
    #[schemars(required)]
    pub(crate) rate: Option<Located<RateText>>,
    /// Size of a burst: `burst` + 1 requests are admitted at the same moment if the bucket is full. Default: the number
    /// of requests in `rate`, minus 1.
    #[schemars(range(max = 2_147_483_647), extend("examples" = [3]))]
    pub(crate) burst: Option<Located<u32>>,
    /// What happens to a request that exceeds the rate limit.
    #[schemars(extend("default" = "reject"))]
    pub(crate) on_exceed: OnExceed,
    /// With `on_exceed = "delay"`: maximum delay of a request. A request that would wait longer gets 429.
    #[schemars(extend("default" = "1s"))]
    pub(crate) max_delay: Setting<Timeout>,
    /// Whether requests that exceed the rate limit are rejected or delayed, or only counted in the metrics.
    #[schemars(extend("default" = "enforce"))]
    pub(crate) mode: Mode,
    /// Format of the `Retry-After` header of rejections.
    #[schemars(extend("default" = "seconds"))]
    pub(crate) retry_after: RetryAfterForm,
    /// With `backend = "redis"`: what happens to a request while Redis is unavailable.
    #[schemars(extend("default" = "local"))]
    pub(crate) on_store_error: Setting<OnStoreError>,
    /// Whether the log and the admin API show the limit key as it is, such as the value of a header. Otherwise they show
    /// a keyed hash of it. Client addresses are always shown.
    #[schemars(extend("default" = false))]
    pub(crate) log_key: bool,
}

/// What happens to a request that exceeds the rate limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OnExceed {
    /// The request gets 429.
    Reject,
    /// The request waits until the rate limit admits it, at most `max_delay`.
    Delay,
}
