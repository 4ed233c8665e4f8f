//! `[upstream.NAME]`, and what is below it.

mod retry;
mod server;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::located::Located;
use super::super::scalar::{
    CheckInterval, CheckPath, HostChoice, HumanDuration, MediaType, OpenTime, Timeout, Window,
};

pub(in super::super) use retry::{BudgetTable, PresetWord, RetrySection, StrategyWord};
pub(in super::super) use server::ServerEntry;

/// An API behind the gateway.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct UpstreamSection {
    /// The servers that share its load: the URL of each, or a table of `url` and `weight`.
    #[schemars(required, length(min = 1))]
    pub(in super::super) servers: Option<Vec<Located<ServerEntry>>>,
    /// The `Host` sent to them: the client's, the server's own, or a literal.
    #[schemars(extend("default" = "preserve"))]
    pub(in super::super) host: Option<Located<HostChoice>>,
    /// Until a connection stands, TLS included.
    #[schemars(extend("default" = "5s"))]
    pub(in super::super) connect_timeout: Option<Located<Timeout>>,
    /// From the request's last byte to the head of the response.
    #[schemars(extend("default" = "30s"))]
    pub(in super::super) first_byte_timeout: Option<Located<Timeout>>,
    /// Between two parts of a body.
    #[schemars(extend("default" = "60s"))]
    pub(in super::super) idle_timeout: Option<Located<Timeout>>,
    /// For the whole exchange, all attempts together. Default: no bound.
    pub(in super::super) timeout: Option<Located<Timeout>>,
    /// Certificates to trust instead of the system's, PEM.
    pub(in super::super) ca_file: Option<Located<PathBuf>>,
    /// How its servers are asked whether they are well. Default: they are not asked.
    pub(in super::super) health: Option<HealthTable>,
    /// With `health`: the part of the servers that may be taken out for failing it.
    #[schemars(range(min = 0, max = 1), extend("default" = 0.5))]
    pub(in super::super) max_ejected: Option<Located<f64>>,
    /// How long a server that came back takes to get its full share; `0s` for no time.
    #[schemars(extend("default" = "10s"))]
    pub(in super::super) slow_start: Option<Located<HumanDuration>>,
    /// When a request is sent once more. Without this table: only if it was provably not sent.
    pub(in super::super) retry: Option<RetrySection>,
    /// When a server is left alone.
    pub(in super::super) breaker: Option<BreakerSection>,
    /// How many requests it is sent at once, found out from how long it takes. Without this table: no bound.
    pub(in super::super) concurrency: Option<ConcurrencySection>,
}

/// How servers are asked whether they are well.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct HealthTable {
    /// What is asked for, by GET.
    #[schemars(required)]
    pub(in super::super) path: Option<Located<CheckPath>>,
    /// How often.
    #[schemars(extend("default" = "5s"))]
    pub(in super::super) interval: Option<Located<CheckInterval>>,
    /// How long the answer may take; no longer than `interval`.
    #[schemars(extend("default" = "1s"))]
    pub(in super::super) timeout: Option<Located<Timeout>>,
}

/// When a server is left alone.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct BreakerSection {
    /// Whether it ever is.
    #[schemars(extend("default" = true))]
    pub(in super::super) enabled: Option<Located<bool>>,
    /// Failures in a row that open its circuit.
    #[schemars(range(min = 1), extend("default" = 5))]
    pub(in super::super) consecutive_failures: Option<Located<u32>>,
    /// The part of requests whose failing opens it.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0, "default" = 0.5))]
    pub(in super::super) failure_ratio: Option<Located<f64>>,
    /// Over how long that part is counted.
    #[schemars(extend("default" = "10s"))]
    pub(in super::super) window: Option<Located<Window>>,
    /// Requests there have to be in that time for it to count.
    #[schemars(range(min = 1), extend("default" = 20))]
    pub(in super::super) min_requests: Option<Located<u32>>,
    /// How long it is open at first. Each probe that fails doubles it.
    #[schemars(extend("default" = "5s"))]
    pub(in super::super) open: Option<Located<OpenTime>>,
    /// How long it is open at most.
    #[schemars(extend("default" = "60s"))]
    pub(in super::super) open_max: Option<Located<OpenTime>>,
    /// What callers get in a 503 while the circuits of all servers are open. Default: a problem document.
    pub(in super::super) fallback: Option<FallbackTable>,
}

/// What callers get while there is nobody to ask.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct FallbackTable {
    /// The text.
    #[schemars(required)]
    pub(in super::super) body: Option<Located<String>>,
    /// Its media type.
    #[schemars(extend("default" = "text/plain; charset=utf-8"))]
    pub(in super::super) content_type: Option<Located<MediaType>>,
}

/// How many requests an upstream is sent at once.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct ConcurrencySection {
    /// Never fewer may be underway.
    #[schemars(range(min = 1), extend("default" = 4))]
    pub(in super::super) min: Option<Located<u32>>,
    /// Never more may be.
    #[schemars(range(min = 1), extend("default" = 1_000))]
    pub(in super::super) max: Option<Located<u32>>,
    /// How many may be at first.
    #[schemars(range(min = 1), extend("default" = 20))]
    pub(in super::super) initial: Option<Located<u32>>,
}
