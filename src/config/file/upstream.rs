//! `[upstream.NAME]` and its tables.

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

/// API behind the gateway, with one or more servers.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct UpstreamSection {
    /// Servers that share the load. Each is a URL, or a table with `url` and `weight`.
    #[schemars(required, length(min = 1))]
    pub(in super::super) servers: Option<Vec<Located<ServerEntry>>>,
    /// `Host` header sent upstream: `preserve` (that of the client), `server` (that of the server's URL), or a literal.
    #[schemars(extend("default" = "preserve"))]
    pub(in super::super) host: Option<Located<HostChoice>>,
    /// Time limit for establishing a connection, including the TLS handshake.
    #[schemars(extend("default" = "5s"))]
    pub(in super::super) connect_timeout: Option<Located<Timeout>>,
    /// Time limit from the last byte of the request to the head of the response. With `retry`, the default is at most
    /// half of its `deadline`.
    #[schemars(extend("default" = "60s"))]
    pub(in super::super) first_byte_timeout: Option<Located<Timeout>>,
    /// Longest pause between two reads of a response body or two writes of a request body.
    #[schemars(extend("default" = "60s"))]
    pub(in super::super) idle_timeout: Option<Located<Timeout>>,
    /// Time limit of a request and its response, all attempts together. Default: no bound.
    pub(in super::super) timeout: Option<Located<Timeout>>,
    /// PEM file of the CA certificates to trust instead of those of the system.
    pub(in super::super) ca_file: Option<Located<PathBuf>>,
    /// Active health checks of the servers. Default: off.
    pub(in super::super) health: Option<HealthTable>,
    /// With `health`: largest fraction of the servers that health checks may eject.
    #[schemars(range(min = 0, max = 1), extend("default" = 0.5))]
    pub(in super::super) max_ejected: Option<Located<f64>>,
    /// Time in which the share of a restored server grows to its full size. `0s`: immediately.
    #[schemars(extend("default" = "10s"))]
    pub(in super::super) slow_start: Option<Located<HumanDuration>>,
    /// Retries. Without this table, only requests that were provably not sent are sent again.
    pub(in super::super) retry: Option<RetrySection>,
    /// Circuit breaker of each server. Without this table, it opens on connect failures, and on response failures of
    /// one outlier among several servers.
    pub(in super::super) breaker: Option<BreakerSection>,
    /// Adaptive limit on requests in flight, derived from response times. Without this table: no bound.
    pub(in super::super) concurrency: Option<ConcurrencySection>,
}

/// Active health checks of the servers.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct HealthTable {
    /// Path and query of the health check, which is a GET request.
    #[schemars(required)]
    pub(in super::super) path: Option<Located<CheckPath>>,
    /// Time between two health checks of a server.
    #[schemars(extend("default" = "5s"))]
    pub(in super::super) interval: Option<Located<CheckInterval>>,
    /// Time limit of a health check, at most `interval`.
    #[schemars(extend("default" = "1s"))]
    pub(in super::super) timeout: Option<Located<Timeout>>,
}

/// Adaptive limit on the requests in flight to an upstream.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct ConcurrencySection {
    /// Lower bound of the limit, in requests.
    #[schemars(range(min = 1), extend("default" = 4))]
    pub(in super::super) min: Option<Located<u32>>,
    /// Upper bound of the limit, in requests.
    #[schemars(range(min = 1), extend("default" = 1_000))]
    pub(in super::super) max: Option<Located<u32>>,
    /// Initial limit, in requests.
    #[schemars(range(min = 1), extend("default" = 20))]
    pub(in super::super) initial: Option<Located<u32>>,
}
