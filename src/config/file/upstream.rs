//! `[upstream.NAME]` of the configuration file, and its tables.

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

/// API behind the gateway, which one or more servers provide.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct UpstreamSection {
    /// Servers that share the load. Each is a URL, or a table with `url` and `weight`.
    #[schemars(required, length(min = 1))]
    pub(in super::super) servers: Option<Vec<Located<ServerEntry>>>,
    /// `Host` header of requests to the upstream: `preserve` (that of the client), `server` (host and port of the
    /// server's URL), or a literal host.
    #[schemars(extend("default" = "preserve"))]
    pub(in super::super) host: Option<Located<HostChoice>>,
    /// Maximum time to connect to a server, including the TLS handshake.
    #[schemars(extend("default" = "5s"))]
    pub(in super::super) connect_timeout: Option<Located<Timeout>>,
    /// Maximum time from the last byte of the request to the head of the response. If `retry` is set, the default is at
    /// most half of the `deadline` in `retry`.
    #[schemars(extend("default" = "60s"))]
    pub(in super::super) first_byte_timeout: Option<Located<Timeout>>,
    /// Maximum time without progress: between two reads of a response body, or two writes of a request body.
    #[schemars(extend("default" = "60s"))]
    pub(in super::super) idle_timeout: Option<Located<Timeout>>,
    /// Maximum duration of a request and its response, including all attempts. Default: no maximum.
    pub(in super::super) timeout: Option<Located<Timeout>>,
    /// PEM file of the CA certificates to trust instead of those of the system.
    pub(in super::super) ca_file: Option<Located<PathBuf>>,
    /// Active health checks of the servers. Default: off.
    pub(in super::super) health: Option<HealthTable>,
    /// With `health`: maximum fraction of the servers that can be removed from load balancing because of failed health
    /// checks.
    #[schemars(range(min = 0, max = 1), extend("default" = 0.5))]
    pub(in super::super) max_ejected: Option<Located<f64>>,
    /// How long a recovered server takes to get its full share of the requests again. `0s` means immediately.
    #[schemars(extend("default" = "10s"))]
    pub(in super::super) slow_start: Option<Located<HumanDuration>>,
    /// Retries of failed requests. Without this table, a request is sent again only if no server received any byte of
    /// it.
    pub(in super::super) retry: Option<RetrySection>,
    /// Circuit breaker of each server. If this table is missing, connect failures of a server open its circuit. Other
    /// failures then open it only if there are other servers and this server fails much more often than all of them.
    pub(in super::super) breaker: Option<BreakerSection>,
    /// Adaptive concurrency limit: maximum number of requests in flight, derived from response times. Without this
    /// table, there is no concurrency limit.
    pub(in super::super) concurrency: Option<ConcurrencySection>,
}

/// Active health checks of the servers.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct HealthTable {
    /// Path and query of the GET request that checks a server.
    #[schemars(required)]
    pub(in super::super) path: Option<Located<CheckPath>>,
    /// Time from one health check of a server to the next.
    #[schemars(extend("default" = "5s"))]
    pub(in super::super) interval: Option<Located<CheckInterval>>,
    /// Maximum duration of a health check, at most `interval`. A check that takes longer has failed.
    #[schemars(extend("default" = "1s"))]
    pub(in super::super) timeout: Option<Located<Timeout>>,
}

/// Adaptive concurrency limit: maximum number of requests in flight to an upstream, derived from response times.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct ConcurrencySection {
    /// Smallest value of the concurrency limit, in requests.
    #[schemars(range(min = 1), extend("default" = 4))]
    pub(in super::super) min: Option<Located<u32>>,
    /// Largest value of the concurrency limit, in requests.
    #[schemars(range(min = 1), extend("default" = 1_000))]
    pub(in super::super) max: Option<Located<u32>>,
    /// Concurrency limit at the start, in requests.
    #[schemars(range(min = 1), extend("default" = 20))]
    pub(in super::super) initial: Option<Located<u32>>,
}
