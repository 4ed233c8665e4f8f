//! `[upstream.NAME.retry]`.

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::super::located::Located;
use super::super::super::scalar::{JitterText, SizeOrZero, Timeout, Window};

/// When a request is sent once more.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super::super) struct RetrySection {
    /// What holds where the keys below say nothing.
    #[schemars(extend("default" = "standard"))]
    pub(in super::super::super) preset: Option<Located<PresetWord>>,
    /// Attempts in all, the first included; 1 for never again. Default: the preset's.
    #[schemars(range(min = 1, max = 20))]
    pub(in super::super::super) attempts: Option<Located<u32>>,
    /// How waits grow from one to the next. Default: the preset's.
    pub(in super::super::super) strategy: Option<Located<StrategyWord>>,
    /// The first wait. Default: the preset's.
    pub(in super::super::super) base: Option<Located<Timeout>>,
    /// The longest wait, before jitter is added. Default: the preset's.
    pub(in super::super::super) cap: Option<Located<Timeout>>,
    /// With `exponential`: what a wait is multiplied by for the next. Default: the preset's.
    #[schemars(range(min = 1, max = 10))]
    pub(in super::super::super) factor: Option<Located<f64>>,
    /// How waits are spread: `none`, `full`, `equal`, `decorrelated`, `percent` (±25%), `additive` (+30%), a
    /// percentage of either kind, a duration that is added, or a number from 0 to 1. Default: the preset's.
    #[schemars(range(min = 0, max = 1))]
    pub(in super::super::super) jitter: Option<Located<JitterText>>,
    /// For all attempts and waits together, until the head of the answer.
    #[schemars(extend("default" = "30s"))]
    pub(in super::super::super) deadline: Option<Located<Timeout>>,
    /// Bytes of a request's body kept for another attempt; a request with more is sent once.
    #[schemars(extend("default" = "64KiB", "minimum" = 0))]
    pub(in super::super::super) max_body: Option<Located<SizeOrZero>>,
    /// How many retries the upstream is sent at most, for all requests together.
    pub(in super::super::super) budget: Option<BudgetTable>,
}

/// How many retries an upstream is sent at most.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super::super) struct BudgetTable {
    /// The part of its requests that may be retries.
    #[schemars(range(min = 0, max = 1), extend("default" = 0.1))]
    pub(in super::super::super) ratio: Option<Located<f64>>,
    /// Over how long that part is counted.
    #[schemars(extend("default" = "10s"))]
    pub(in super::super::super) window: Option<Located<Window>>,
    /// Retries a second there may be whatever the traffic.
    #[schemars(range(max = 1_000_000), extend("default" = 3))]
    pub(in super::super::super) floor: Option<Located<u32>>,
}

/// A policy with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(in super::super::super) enum PresetWord {
    /// Patient with limits, ±25 %.
    AuthorizationApi,
    /// 1, 2, 4 s, without jitter, and no `Retry-After`.
    Sender,
    /// Somebody is waiting.
    Interactive,
    /// For most callers.
    Standard,
    /// Nobody is waiting.
    Batch,
    /// Three attempts and half a second of jitter.
    TrafficControl,
}

/// How waits grow from one to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in super::super::super) enum StrategyWord {
    /// Not at all.
    Constant,
    /// By the first one each time.
    Linear,
    /// By the factor each time.
    Exponential,
}
