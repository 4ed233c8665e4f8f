//! `[upstream.NAME]` of the configuration file, and its tables.

use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::Deserialize;

use super::super::located::{Located, Setting};
use super::super::scalar::{
    CheckPath, FailuresWord, FilePath, HostChoice, HumanDuration, JitterText, MediaType, ServerUrl,
    Size, Timeout,
};
use crate::retry::{Preset, Strategy};

/// API behind the gateway, which one or more servers provide.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpstreamSection {
    /// Servers that share the load. Each is a URL (scheme, host and optional port), or a table with `url` and `weight`.
    #[schemars(required, length(min = 1))]
    pub(crate) servers: Option<Vec<Located<ServerEntry>>>,
    /// `Host` header of requests to the upstream: `preserve` (that of the client), `server` (host and port of the
    /// server's URL), or a literal host. For an HTTP/1.0 request without `Host`, `preserve` has the effect of `server`.
    #[schemars(extend("default" = "preserve"))]
    pub(crate) host: HostChoice,
    /// Maximum time to connect to a server, including the TLS handshake.
    #[schemars(extend("default" = "5s"))]
    pub(crate) connect_timeout: Timeout,
    /// Maximum time from the last byte of the request to the head of the response. If `retry` is set, the default is at
    /// most half of the `deadline` in `retry`.
    #[schemars(extend("default" = "60s"))]
    pub(crate) first_byte_timeout: Setting<Timeout>,
    /// Maximum time without progress: between two reads of a response body, or two writes of a request body.
    #[schemars(extend("default" = "60s"))]
    pub(crate) idle_timeout: Timeout,
    /// Maximum duration of a request and its response, including all attempts. Default: no maximum.
    #[schemars(extend("examples" = ["5m"]))]
    pub(crate) timeout: Option<Timeout>,
    /// How long an idle connection to a server is kept for the next request. Keyed and other unsafe requests use only
    /// connections that are idle for less than 1 s. `0s`: a new connection for each request.
    #[schemars(extend("default" = "30s", "formatMaximum" = "1h"))]
    pub(crate) keep_alive: HumanDuration,
    /// PEM file of the CA certificates to trust instead of those of the system.
    #[schemars(extend("examples" = ["private-ca.pem"]))]
    pub(crate) ca_file: Option<Located<FilePath>>,
    /// Active health checks of the servers. Default: off.
    #[schemars(extend("examples" = [{ "path": "/healthz", "interval": "5s", "timeout": "1s" }]))]
    pub(crate) health: Option<HealthTable>,
    /// With `health`: maximum fraction of the servers that can be removed from load balancing because of failed health
    /// checks.
    #[schemars(range(min = 0, max = 1), extend("default" = 0.5))]
    pub(crate) max_ejected: Setting<f64>,
    /// How long a recovered server takes to get its full share of the requests again. `0s` means immediately.
    #[schemars(extend("default" = "10s"))]
    pub(crate) slow_start: HumanDuration,
    /// Retries of failed requests. Without this table, a request is sent again only if no server received any byte of
    /// it, or if its method is idempotent and a reused connection closed before the response.
    pub(crate) retry: Option<RetrySection>,
    /// Circuit breaker of each server. If this table is missing, connect failures of a server open its circuit for less
    /// than 1 second, and those of a sole server only if they are timeouts. Other failures then open it only if there
    /// are other servers and this server fails much more often than all of them.
    #[schemars(extend("default" = {}))]
    pub(crate) breaker: Setting<BreakerSection>,
    /// Adaptive concurrency limit: maximum number of requests in flight, derived from response times. Without this
    /// table, there is no concurrency limit.
    pub(crate) concurrency: Option<ConcurrencySection>,
}

/// Server of an upstream: a URL, or a table with `url` and `weight`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum ServerEntry {
    /// URL without a weight. The weight is 1.
    Url(ServerUrl),
    /// Table with the URL and the weight.
    Table(ServerTable),
}

/// Server with its weight.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ServerTable {
    /// Scheme, host and optional port of the server.
    #[schemars(required)]
    pub(crate) url: Option<ServerUrl>,
    /// Share of the requests, relative to the weights of the other servers.
    #[schemars(range(min = 1, max = 1_000), extend("default" = 1))]
    pub(crate) weight: NonZeroU32,
}

/// Active health checks of the servers.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HealthTable {
    /// Path and query of the GET request that checks a server.
    #[schemars(required)]
    pub(crate) path: Option<CheckPath>,
    /// Time from one health check of a server to the next.
    #[schemars(extend("default" = "5s", "formatMinimum" = "100ms", "formatMaximum" = "1h"))]
    pub(crate) interval: Setting<Timeout>,
    /// Maximum duration of a health check, at most `interval`. A check that takes longer has failed.
    #[schemars(extend("default" = "1s"))]
    pub(crate) timeout: Setting<Timeout>,
}

/// When and how often failed requests are sent again. A preset sets all values, and each key overrides one of them.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetrySection {
    /// Preset that sets the defaults of the other keys.
    #[schemars(extend("default" = "standard"))]
    pub(crate) preset: Preset,
    /// Maximum number of attempts, including the first. `1` means no retries. Default: from the preset.
    #[schemars(range(min = 1, max = 20), extend("examples" = [5]))]
    pub(crate) attempts: Option<NonZeroU32>,
    /// How the backoff (wait before a retry) grows from one attempt to the next. Default: from the preset.
    #[schemars(extend("examples" = ["exponential"]))]
    pub(crate) strategy: Option<Located<Strategy>>,
    /// Backoff before the first retry. Default: from the preset.
    #[schemars(extend("examples" = ["1s"]))]
    pub(crate) base: Option<Located<Timeout>>,
    /// Maximum backoff, before jitter is added. Default: from the preset.
    #[schemars(extend("examples" = ["30s"]))]
    pub(crate) cap: Option<Located<Timeout>>,
    /// With `strategy = "exponential"`: each backoff is the previous one multiplied by this factor. Default: from the
    /// preset.
    #[schemars(range(min = 1, max = 10), extend("examples" = [2.0]))]
    pub(crate) factor: Option<Located<f64>>,
    /// Random variation of the backoff: `none`, `full`, `equal`, `decorrelated`, `percent` (±25%), `additive` (+30%),
    /// another percentage such as `±10%` or `+50%`, a duration (maximum that is added), or a number from 0 to 1
    /// (maximum fraction that is added). Default: from the preset.
    #[schemars(range(min = 0, max = 1), extend("examples" = ["+30%"]))]
    pub(crate) jitter: Option<Located<JitterText>>,
    /// Maximum total time of all attempts and backoffs, until the head of the response.
    #[schemars(extend("default" = "30s"))]
    pub(crate) deadline: Setting<Timeout>,
    /// Maximum size of a request body that is buffered for retries. A request with a larger body is not retried.
    #[schemars(extend("default" = "64KiB", "minimum" = 0))]
    pub(crate) max_body: Size,
    /// Retry budget: maximum rate of retries to the upstream, over all requests.
    #[schemars(extend("default" = {}, "examples" = [{ "ratio": 0.1, "window": "10s", "floor": 3 }]))]
    pub(crate) budget: BudgetTable,
}

/// Retry budget: maximum rate of retries to an upstream, over all requests.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BudgetTable {
    /// Maximum number of retries, as a fraction of the requests within `window`.
    #[schemars(range(min = 0, max = 1), extend("default" = 0.1))]
    pub(crate) ratio: Setting<f64>,
    /// Period over which `ratio` is computed.
    #[schemars(extend("default" = "10s", "formatMinimum" = "1s", "formatMaximum" = "1h"))]
    pub(crate) window: Timeout,
    /// Number of retries per second that are allowed in addition to `ratio`.
    #[schemars(range(max = 1_000_000), extend("default" = 3))]
    pub(crate) floor: u32,
}

/// Circuit breaker of each server. With this table, the following are failures: connect failures, first-byte
/// timeouts, lost connections and the statuses in `failures`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BreakerSection {
    /// Whether the circuit breaker is on. If `false`, no failure stops requests to a server.
    #[schemars(extend("default" = true))]
    pub(crate) enabled: bool,
    /// Number of consecutive failures of a server that opens its circuit.
    #[schemars(extend("default" = 5))]
    pub(crate) consecutive_failures: NonZeroU32,
    /// Statuses of responses that are failures, or `"5xx"` for all from 500 to 599. Timeouts and lost connections are
    /// always failures.
    #[schemars(extend("default" = [502, 503, 504]))]
    pub(crate) failures: FailuresEntry,
    /// Fraction of failed requests within `window` that opens the circuit of a server.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0, "default" = 0.5))]
    pub(crate) failure_ratio: f64,
    /// Period over which `failure_ratio` is computed.
    #[schemars(extend("default" = "10s", "formatMinimum" = "1s", "formatMaximum" = "1h"))]
    pub(crate) window: Timeout,
    /// Minimum number of requests within `window` for `failure_ratio` to apply.
    #[schemars(extend("default" = 20))]
    pub(crate) min_requests: NonZeroU32,
    /// How long the circuit stays open before a probe request is sent to the server. Each failed probe doubles this
    /// time.
    #[schemars(extend("default" = "1s", "formatMinimum" = "10ms", "formatMaximum" = "24h"))]
    pub(crate) open: Setting<Timeout>,
    /// Maximum time that the circuit stays open before the next probe request, at least `open`.
    #[schemars(extend("default" = "60s", "formatMinimum" = "10ms", "formatMaximum" = "24h"))]
    pub(crate) open_max: Setting<Timeout>,
    /// Body of the 503 response while the circuits of all servers are open. Default: a problem document (RFC 9457).
    #[schemars(extend("examples" = [{ "body": "Back soon.", "content_type": "text/plain; charset=utf-8" }]))]
    pub(crate) fallback: Option<FallbackTable>,
}

/// Statuses of responses that are failures of a server.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum FailuresEntry {
    /// The listed statuses.
    Statuses(
        #[schemars(inner(range(min = 500, max = 599)), extend("examples" = [[502, 503, 504]]))]
        Vec<u16>,
    ),
    /// `"5xx"`: all statuses from 500 to 599.
    All(FailuresWord),
}

/// Body of the 503 response while the circuits of all servers are open.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FallbackTable {
    /// Text of the body.
    #[schemars(required)]
    pub(crate) body: Option<String>,
    /// Media type of the body.
    #[schemars(extend("default" = "text/plain; charset=utf-8"))]
    pub(crate) content_type: MediaType,
}

/// Adaptive concurrency limit: maximum number of requests in flight to an upstream, derived from response times.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConcurrencySection {
    /// Smallest value of the concurrency limit, in requests.
    #[schemars(extend("default" = 4))]
    pub(crate) min: Setting<NonZeroU32>,
    /// Largest value of the concurrency limit, in requests.
    #[schemars(extend("default" = 1_000))]
    pub(crate) max: Setting<NonZeroU32>,
    /// Concurrency limit at the start, in requests.
    #[schemars(extend("default" = 20))]
    pub(crate) initial: Setting<NonZeroU32>,
}
