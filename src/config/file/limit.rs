//! `[limit.NAME]`.

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::located::{Located, Many};
use super::super::scalar::{KeyText, Rate, Timeout};

/// Rate limit with a name.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct LimitSection {
    /// What requests are counted by: `client`, `global`, `header:NAME`, or a list of these. Each value has its own
    /// bucket.
    #[schemars(extend("default" = "client"))]
    pub(in super::super) key: Option<Many<KeyText>>,
    /// Sustained rate: a number of requests per time.
    #[schemars(required)]
    pub(in super::super) rate: Option<Located<Rate>>,
    /// Additional requests that are admitted without a wait: up to `burst` + 1 at the same moment. Default: the number
    /// of requests in `rate`, minus 1.
    #[schemars(range(max = 2_147_483_647))]
    pub(in super::super) burst: Option<Located<u32>>,
    /// What happens to a request above the limit.
    #[schemars(extend("default" = "reject"))]
    pub(in super::super) on_exceed: Option<Located<ExceedWord>>,
    /// With `on_exceed = "delay"`: longest delay of a request. A request that would wait longer gets 429.
    #[schemars(extend("default" = "1s"))]
    pub(in super::super) max_delay: Option<Located<Timeout>>,
    /// Whether the limit rejects and delays requests or only counts them.
    #[schemars(extend("default" = "enforce"))]
    pub(in super::super) mode: Option<Located<ModeWord>>,
    /// Format of the `Retry-After` header.
    #[schemars(extend("default" = "seconds"))]
    pub(in super::super) retry_after: Option<Located<RetryAfterWord>>,
    /// With the `redis` backend: what happens to a request while Redis is unavailable.
    #[schemars(extend("default" = "local"))]
    pub(in super::super) on_store_error: Option<Located<OnStoreErrorWord>>,
}

/// What happens to a request above the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum ExceedWord {
    /// The request gets 429.
    Reject,
    /// The request waits until the limit admits it.
    Delay,
}

/// Whether a limit rejects and delays requests or only counts them.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum ModeWord {
    /// The limit rejects or delays requests.
    Enforce,
    /// The limit only counts the requests that it would reject.
    Shadow,
}

/// Format of the `Retry-After` header.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(in super::super) enum RetryAfterWord {
    /// Whole seconds.
    Seconds,
    /// An HTTP date.
    HttpDate,
}

/// What happens to a request while Redis is unavailable.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum OnStoreErrorWord {
    /// This gateway enforces the limit with buckets in its own memory.
    Local,
    /// The limit admits the request.
    Open,
    /// The limit rejects the request.
    Closed,
}
