//! `[upstream.NAME.retry]`.

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::super::located::Located;
use super::super::super::scalar::{JitterText, SizeOrZero, Timeout, Window};

/// Retries of failed requests.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super::super) struct RetrySection {
    /// Preset that sets the defaults of the other keys.
    #[schemars(extend("default" = "standard"))]
    pub(in super::super::super) preset: Option<Located<PresetWord>>,
    /// Maximum number of attempts, including the first. 1: no retries. Default: from the preset.
    #[schemars(range(min = 1, max = 20))]
    pub(in super::super::super) attempts: Option<Located<u32>>,
    /// How the backoff grows from one attempt to the next. Default: from the preset.
    pub(in super::super::super) strategy: Option<Located<StrategyWord>>,
    /// First backoff. Default: from the preset.
    pub(in super::super::super) base: Option<Located<Timeout>>,
    /// Longest backoff, before jitter is added. Default: from the preset.
    pub(in super::super::super) cap: Option<Located<Timeout>>,
    /// With `strategy = "exponential"`: factor from one backoff to the next. Default: from the preset.
    #[schemars(range(min = 1, max = 10))]
    pub(in super::super::super) factor: Option<Located<f64>>,
    /// Random variation of the backoff: `none`, `full`, `equal`, `decorrelated`, `percent` (±25%), `additive` (+30%),
    /// another percentage such as `±10%` or `+50%`, a duration (the most that is added), or a number from 0 to 1 (the
    /// largest added fraction). Default: from the preset.
    #[schemars(range(min = 0, max = 1))]
    pub(in super::super::super) jitter: Option<Located<JitterText>>,
    /// Time limit of all attempts and backoffs together, until the head of the response.
    #[schemars(extend("default" = "30s"))]
    pub(in super::super::super) deadline: Option<Located<Timeout>>,
    /// Maximum size of a request body that is buffered for retries. A request with a larger body is sent once.
    #[schemars(extend("default" = "64KiB", "minimum" = 0))]
    pub(in super::super::super) max_body: Option<Located<SizeOrZero>>,
    /// Retry budget of the upstream, for all requests together.
    pub(in super::super::super) budget: Option<BudgetTable>,
}

/// Retry budget: upper bound on the retries to an upstream.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super::super) struct BudgetTable {
    /// Retries as a fraction of the requests within `window`.
    #[schemars(range(min = 0, max = 1), extend("default" = 0.1))]
    pub(in super::super::super) ratio: Option<Located<f64>>,
    /// Period over which `ratio` is computed.
    #[schemars(extend("default" = "10s"))]
    pub(in super::super::super) window: Option<Located<Window>>,
    /// Retries per second that are allowed in addition to `ratio`.
    #[schemars(range(max = 1_000_000), extend("default" = 3))]
    pub(in super::super::super) floor: Option<Located<u32>>,
}

/// Named retry policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(in super::super::super) enum PresetWord {
    /// For an authorization API that rate-limits its callers: 3 attempts, backoff 1 s to 32 s, jitter ±25 %.
    AuthorizationApi,
    /// 4 attempts with a backoff of 1 s, 2 s and 4 s, without jitter. `Retry-After` is ignored.
    Sender,
    /// For requests that a user waits for: 3 attempts, backoff 100 ms to 3 s, jitter +20 %.
    Interactive,
    /// For most applications: 5 attempts, backoff 1 s to 30 s, jitter +30 %.
    Standard,
    /// For background jobs: 10 attempts, backoff 5 s to 5 min, jitter +50 %.
    Batch,
    /// 3 attempts, backoff 500 ms to 20 s, jitter of up to 500 ms.
    TrafficControl,
}

/// How the backoff grows from one attempt to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in super::super::super) enum StrategyWord {
    /// All backoffs are equal to `base`.
    Constant,
    /// Each backoff is longer by `base`.
    Linear,
    /// Each backoff is the previous one multiplied by `factor`.
    Exponential,
}
