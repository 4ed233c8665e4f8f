//! `[upstream.NAME.retry]` of the configuration file.

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::super::located::Located;
use super::super::super::scalar::{JitterText, SizeOrZero, Timeout, Window};

/// When and how often failed requests are sent again.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super::super) struct RetrySection {
    /// Preset that sets the defaults of the other keys.
    #[schemars(extend("default" = "standard"))]
    pub(in super::super::super) preset: Option<Located<PresetWord>>,
    /// Maximum number of attempts, including the first. `1` means no retries. Default: from the preset.
    #[schemars(range(min = 1, max = 20))]
    pub(in super::super::super) attempts: Option<Located<u32>>,
    /// How the backoff (wait before a retry) grows from one attempt to the next. Default: from the preset.
    pub(in super::super::super) strategy: Option<Located<StrategyWord>>,
    /// Backoff before the first retry. Default: from the preset.
    pub(in super::super::super) base: Option<Located<Timeout>>,
    /// Maximum backoff, before jitter is added. Default: from the preset.
    pub(in super::super::super) cap: Option<Located<Timeout>>,
    /// With `strategy = "exponential"`: each backoff is the previous one multiplied by this factor. Default: from the
    /// preset.
    #[schemars(range(min = 1, max = 10))]
    pub(in super::super::super) factor: Option<Located<f64>>,
    /// Random variation of the backoff: `none`, `full`, `equal`, `decorrelated`, `percent` (±25%), `additive` (+30%),
    /// another percentage such as `±10%` or `+50%`, a duration (maximum that is added), or a number from 0 to 1
    /// (maximum fraction that is added). Default: from the preset.
    #[schemars(range(min = 0, max = 1))]
    pub(in super::super::super) jitter: Option<Located<JitterText>>,
    /// Maximum total time of all attempts and backoffs, until the head of the response.
    #[schemars(extend("default" = "30s"))]
    pub(in super::super::super) deadline: Option<Located<Timeout>>,
    /// Maximum size of a request body that is buffered for retries. A request with a larger body is not retried.
    #[schemars(extend("default" = "64KiB", "minimum" = 0))]
    pub(in super::super::super) max_body: Option<Located<SizeOrZero>>,
    /// Retry budget: maximum rate of retries to the upstream, over all requests.
    pub(in super::super::super) budget: Option<BudgetTable>,
}

/// Retry budget: maximum rate of retries to an upstream, over all requests.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super::super) struct BudgetTable {
    /// Maximum number of retries, as a fraction of the requests within `window`.
    #[schemars(range(min = 0, max = 1), extend("default" = 0.1))]
    pub(in super::super::super) ratio: Option<Located<f64>>,
    /// Period over which `ratio` is computed.
    #[schemars(extend("default" = "10s"))]
    pub(in super::super::super) window: Option<Located<Window>>,
    /// Number of retries per second that are allowed in addition to `ratio`.
    #[schemars(range(max = 1_000_000), extend("default" = 3))]
    pub(in super::super::super) floor: Option<Located<u32>>,
}

/// Named retry policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(in super::super::super) enum PresetWord {
    /// For an authorization API that rate-limits its callers: 3 attempts, backoff 1 s to 32 s, jitter ±25 %.
    AuthorizationApi,
    /// 4 attempts, backoff 1 s, 2 s and 4 s, no jitter. `Retry-After` is ignored.
    Sender,
    /// For requests that a user waits for: 3 attempts, backoff 100 ms to 3 s, jitter +20 %.
    Interactive,
    /// For most applications: 5 attempts, backoff 1 s to 30 s, jitter +30 %.
    Standard,
    /// For background jobs: 10 attempts, backoff 5 s to 5 min, jitter +50 %.
    Batch,
    /// 3 attempts, backoff 500 ms to 20 s, jitter up to +500 ms.
    TrafficControl,
}

/// How the backoff grows from one attempt to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in super::super::super) enum StrategyWord {
    /// All backoffs are equal to `base`.
    Constant,
    /// Each backoff is the previous one plus `base`.
    Linear,
    /// Each backoff is the previous one multiplied by `factor`.
    Exponential,
}
