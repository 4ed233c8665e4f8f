//! `[upstream.NAME]`, and what is below it.

mod breaker;
mod retry;
mod server;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::located::Located;
use super::super::scalar::{CheckInterval, CheckPath, HostChoice, HumanDuration, Timeout};

pub(in super::super) use breaker::{BreakerSection, FailuresEntry, FallbackTable};
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
    /// From the request's last byte to the head of the response. With `retry`, by default at most half of its
    /// `deadline`.
    #[schemars(extend("default" = "60s"))]
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
    /// What opens the circuit of a server. Without this table: connect failures, and response failures of one
    /// outlier among several servers.
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
