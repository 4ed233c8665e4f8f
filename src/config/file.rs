//! The configuration file as serde types.
//!
//! These types define the configuration keys. serde decodes a file with them. The JSON Schema generated from them
//! validates files, drives completion in editors and maps environment variables to keys.
//!
//! Names and defaults are resolved later, in [`policy`](super::policy). All keys are optional in these types, also the
//! required ones: validation reports and removes invalid values before decoding, and the remaining values are still
//! checked.

mod limit;
mod route;
mod store;
mod upstream;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;

use super::located::{Located, Many, Named};
use super::scalar::{
    Cidr, DocsUrl, HeaderText, HumanDuration, Label, LimitName, Listen, MethodName, Origin,
    ResponseHeader, Size, Timeout, TokenText, ValueText,
};

pub(super) use limit::{ExceedWord, LimitSection, ModeWord, OnStoreErrorWord, RetryAfterWord};
pub(super) use route::{
    IdempotencySection, IdempotencyWord, InFlightWord, OnServerErrorWord, OnUnknownWord,
    RouteSection,
};
pub(super) use store::StoreSection;
pub(super) use upstream::{
    BreakerSection, BudgetTable, ConcurrencySection, FailuresEntry, FallbackTable, HealthTable,
    PresetWord, RetrySection, ServerEntry, StrategyWord, UpstreamSection,
};

/// Configuration of the Tidegate gateway. `${VARIABLE}` in a string is replaced by an environment variable; `$${` is a
/// literal `${`.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(title = "Tidegate configuration")]
pub(super) struct File {
    pub(super) server: ServerSection,
    pub(super) admin: AdminSection,
    pub(super) client: ClientSection,
    pub(super) store: StoreSection,
    pub(super) respond: RespondSection,
    pub(super) log: LogSection,
    /// APIs behind the gateway, by name.
    pub(super) upstream: Named<Label, UpstreamSection>,
    /// Limits, by name. Routes that use the same limit share its buckets.
    pub(super) limit: Named<LimitName, LimitSection>,
    /// Routes, in order. The first route that matches a request applies.
    pub(super) route: Vec<Located<RouteSection>>,
}

/// Listeners, workers, timeouts towards clients, and bounds on what clients can use.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ServerSection {
    /// IP address and port to listen on, or a list of them.
    #[schemars(extend("default" = "127.0.0.1:8080"))]
    pub(super) listen: Option<Many<Listen>>,
    /// Number of worker threads. 0: one per core.
    #[schemars(range(max = 1024), extend("default" = 0))]
    pub(super) workers: Option<Located<usize>>,
    /// Time that a shutdown waits for requests in flight.
    #[schemars(extend("default" = "30s"))]
    pub(super) shutdown_grace: Option<Located<HumanDuration>>,
    /// Certificate and key of the listeners. Default: no TLS.
    pub(super) tls: Option<TlsTable>,
    /// Time limit of the TLS handshake.
    #[schemars(extend("default" = "10s"))]
    pub(super) handshake_timeout: Option<Located<Timeout>>,
    /// Time limit for receiving the head of a request.
    #[schemars(extend("default" = "10s"))]
    pub(super) header_timeout: Option<Located<Timeout>>,
    /// Longest pause between two reads of a request body.
    #[schemars(extend("default" = "60s"))]
    pub(super) body_timeout: Option<Located<Timeout>>,
    /// Longest pause between two requests on a connection.
    #[schemars(extend("default" = "75s"))]
    pub(super) idle_timeout: Option<Located<Timeout>>,
    /// Time limit for a client to read at least one byte of a response (HTTP/2: per stream).
    #[schemars(extend("default" = "30s"))]
    pub(super) write_timeout: Option<Located<Timeout>>,
    /// Maximum number of open connections, all workers together.
    #[schemars(range(min = 1), extend("default" = 65_536))]
    pub(super) max_connections: Option<Located<usize>>,
    /// Maximum size of a request head.
    #[schemars(extend("default" = "32KiB", "minimum" = 1))]
    pub(super) max_header_bytes: Option<Located<Size>>,
    /// Maximum number of header lines of a request.
    #[schemars(range(min = 1), extend("default" = 100))]
    pub(super) max_headers: Option<Located<usize>>,
    /// Maximum size of a request body.
    #[schemars(extend("default" = "4GiB", "minimum" = 1))]
    pub(super) max_body: Option<Located<Size>>,
    /// Bytes of bodies held in memory, all clients together: keyed request bodies, copies for retries, responses
    /// being recorded or replayed. At the bound, keyed requests get 503, and other bodies are streamed without a copy.
    #[schemars(extend("default" = "256MiB", "minimum" = 1))]
    pub(super) max_buffered: Option<Located<Size>>,
    /// Bytes of bodies held in memory for one client. Applies while more than half of `max_buffered` is in use. The
    /// default is at most half of `max_buffered`.
    #[schemars(extend("default" = "16MiB", "minimum" = 1))]
    pub(super) max_buffered_per_client: Option<Located<Size>>,
    /// Maximum number of open HTTP/2 streams on a connection.
    #[schemars(range(min = 1), extend("default" = 128))]
    pub(super) h2_max_streams: Option<Located<u32>>,
    /// Maximum number of HTTP/2 streams on a connection that the client has reset and the gateway has not yet
    /// processed. Above it, the gateway closes the connection.
    #[schemars(range(min = 1), extend("default" = 64))]
    pub(super) h2_max_resets: Option<Located<usize>>,
}

/// PEM files of the gateway's certificate.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TlsTable {
    /// File with the certificate chain, leaf first.
    #[schemars(required)]
    pub(super) cert: Option<Located<PathBuf>>,
    /// File with the private key.
    #[schemars(required)]
    pub(super) key: Option<Located<PathBuf>>,
}

/// Admin listener: probes, metrics and admin API. Without `listen` it is off.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AdminSection {
    /// IP address and port of the admin listener.
    pub(super) listen: Option<Located<Listen>>,
    /// Bearer token that requests to the admin listener must have, except those to /livez and /readyz.
    pub(super) token: Option<Located<TokenText>>,
    /// File that contains the token.
    pub(super) token_file: Option<Located<PathBuf>>,
}

/// How the gateway identifies clients.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ClientSection {
    /// Networks of proxies whose X-Forwarded-For header is trusted.
    #[schemars(extend("default" = []))]
    pub(super) trusted_proxies: Option<Vec<Located<Cidr>>>,
    /// Networks of clients that no limit applies to.
    #[schemars(extend("default" = []))]
    pub(super) exempt: Option<Vec<Located<Cidr>>>,
    /// Prefix length that identifies an IPv6 client: all addresses of such a network are one client.
    #[schemars(range(min = 1, max = 128), extend("default" = 64))]
    pub(super) ipv6_prefix: Option<Located<u8>>,
}

/// Responses that the gateway makes itself.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RespondSection {
    /// Dialect of the `RateLimit` headers.
    #[schemars(extend("default" = "draft"))]
    pub(super) rate_limit: Option<Located<DialectWord>>,
    /// Headers for SDKs on rejections, in addition to `Retry-After`.
    #[schemars(extend("default" = ["ms", "should-retry"]))]
    pub(super) hints: Option<Vec<Located<HintWord>>>,
    /// URL of your documentation of the problem types, sent as `Link` with `rel="describedby"` on problem responses.
    pub(super) docs: Option<Located<DocsUrl>>,
    /// Additional headers on these responses.
    #[schemars(extend("default" = {}))]
    pub(super) headers: Option<Named<ResponseHeader, ValueText>>,
    /// CORS: origins whose browser code may read these responses. Default: none.
    pub(super) cors: Option<CorsSection>,
}

/// Dialect of the `RateLimit` headers.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum DialectWord {
    /// `RateLimit` and `RateLimit-Policy` of the newest supported IETF draft, currently draft 11.
    Draft,
    /// `RateLimit` and `RateLimit-Policy` of draft 11, also after a later draft is supported.
    #[serde(rename = "draft-11")]
    Draft11,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`.
    Legacy,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    X,
    /// No headers. Those of upstream pass unchanged.
    Off,
}

/// A header for SDKs on rejections.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum HintWord {
    /// `Retry-After-Ms`: the exact wait in milliseconds.
    Ms,
    /// `X-Should-Retry`: `true` with `Retry-After`, `false` if a retry cannot succeed.
    ShouldRetry,
    /// `Stripe-Should-Retry`: same values as `X-Should-Retry`.
    Stripe,
    /// `X-Amz-Retry-After`: the exact wait in milliseconds.
    Amz,
}

/// CORS headers of the responses that the gateway makes.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CorsSection {
    /// Allowed origins. `*`: any origin.
    #[schemars(required, length(min = 1))]
    pub(super) origins: Option<Vec<Located<Origin>>>,
    /// Methods that the response to a preflight allows. Default: the requested method.
    #[schemars(length(min = 1))]
    pub(super) methods: Option<Vec<Located<MethodName>>>,
    /// Request headers that the response to a preflight allows. Default: the requested headers.
    #[schemars(length(min = 1))]
    pub(super) headers: Option<Vec<Located<HeaderText>>>,
    /// Response headers to expose in addition to `Retry-After`, the hints and the `RateLimit` headers.
    #[schemars(extend("default" = []))]
    pub(super) expose: Option<Vec<Located<HeaderText>>>,
    /// Whether browsers may send credentials. Not allowed with the origin `*`.
    #[schemars(extend("default" = false))]
    pub(super) credentials: Option<Located<bool>>,
    /// Time that a browser may cache the response to a preflight.
    #[schemars(extend("default" = "10m"))]
    pub(super) max_age: Option<Located<HumanDuration>>,
}

/// Log output.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LogSection {
    /// Format of log lines.
    #[schemars(extend("default" = "text"))]
    pub(super) format: Option<Located<FormatWord>>,
    /// Whether requests are written to the access log. A route can override it with `access_log`.
    #[schemars(extend("default" = true))]
    pub(super) access: Option<Located<bool>>,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum FormatWord {
    /// Plain text.
    Text,
    /// One JSON object per line.
    Json,
}
