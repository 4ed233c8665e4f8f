//! `[limit.NAME]`.

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::located::{Located, Many};
use super::super::scalar::{KeyText, Rate, Timeout};

/// A named quota.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct LimitSection {
    /// What buckets are told apart by: one thing, or a list.
    #[schemars(extend("default" = "client"))]
    pub(in super::super) key: Option<Many<KeyText>>,
    /// Requests per time, in the long run.
    #[schemars(required)]
    pub(in super::super) rate: Option<Located<Rate>>,
    /// Requests at once above the steady rate. Default: one less than the rate's number.
    #[schemars(range(max = 2_147_483_647))]
    pub(in super::super) burst: Option<Located<u32>>,
    /// What happens to a request beyond the quota.
    #[schemars(extend("default" = "reject"))]
    pub(in super::super) on_exceed: Option<Located<ExceedWord>>,
    /// With `delay`: the longest a request is made to wait.
    #[schemars(extend("default" = "1s"))]
    pub(in super::super) max_delay: Option<Located<Timeout>>,
    /// Whether the limit acts or only watches.
    #[schemars(extend("default" = "enforce"))]
    pub(in super::super) mode: Option<Located<ModeWord>>,
    /// How the wait is written in `Retry-After`.
    #[schemars(extend("default" = "seconds"))]
    pub(in super::super) retry_after: Option<Located<RetryAfterWord>>,
    /// What happens to a request while Redis cannot be asked.
    #[schemars(extend("default" = "local"))]
    pub(in super::super) on_store_error: Option<Located<OnStoreErrorWord>>,
}

/// What happens to a request beyond the quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum ExceedWord {
    /// It is refused.
    Reject,
    /// It waits for its slot.
    Delay,
}

/// Whether a limit acts or only watches.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum ModeWord {
    /// It acts.
    Enforce,
    /// It only watches.
    Shadow,
}

/// How the wait is written in `Retry-After`.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(in super::super) enum RetryAfterWord {
    /// Whole seconds.
    Seconds,
    /// An HTTP date.
    HttpDate,
}

/// What happens to a request while Redis cannot be asked.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum OnStoreErrorWord {
    /// It is held to a bucket of this gateway's own.
    Local,
    /// It passes.
    Open,
    /// It is refused.
    Closed,
}
