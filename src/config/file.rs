//! The configuration file as serde types.
//!
//! These types define the configuration keys. serde decodes a file with them. A JSON Schema is generated from them.
//! The schema validates files, enables completion in editors, and maps environment variables to configuration keys.
//! The doc comments of the keys are the descriptions in the schema, so they are written for users.
//!
//! Names and defaults are resolved later, in [`policy`](super::policy). All configuration keys are optional in these
//! types, even those that a file must set. The reason is that validation reports and removes invalid values before
//! decoding, and the remaining values are still decoded and checked.

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

/// Configuration of the Tidegate gateway. `${VARIABLE}` in a string is replaced by the value of the environment
/// variable. Write `$${` for a literal `${`.
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
    /// Rate limits, by name. Routes that use the same rate limit share its buckets.
    pub(super) limit: Named<LimitName, LimitSection>,
    /// Routes. The first route in the file that matches a request applies.
    pub(super) route: Vec<Located<RouteSection>>,
}

/// Listeners, worker threads, timeouts of client connections, and the resources that clients can use.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ServerSection {
    /// IP address and port to listen on, such as `0.0.0.0:8080`, or a list of them.
    #[schemars(extend("default" = "127.0.0.1:8080"))]
    pub(super) listen: Option<Many<Listen>>,
    /// Number of worker threads. `0` means one per CPU core.
    #[schemars(range(max = 1024), extend("default" = 0))]
    pub(super) workers: Option<Located<usize>>,
    /// How long a shutdown waits for requests in flight to complete.
    #[schemars(extend("default" = "30s"))]
    pub(super) shutdown_grace: Option<Located<HumanDuration>>,
    /// TLS certificate and private key of the listeners. Default: no TLS.
    pub(super) tls: Option<TlsTable>,
    /// Maximum duration of the TLS handshake with a client.
    #[schemars(extend("default" = "10s"))]
    pub(super) handshake_timeout: Option<Located<Timeout>>,
    /// Maximum time to receive the head of a request (request line and headers).
    #[schemars(extend("default" = "10s"))]
    pub(super) header_timeout: Option<Located<Timeout>>,
    /// Maximum time in which a client sends no byte of an incomplete request body.
    #[schemars(extend("default" = "60s"))]
    pub(super) body_timeout: Option<Located<Timeout>>,
    /// Maximum time between two requests on a connection. After it, the gateway closes the connection.
    #[schemars(extend("default" = "75s"))]
    pub(super) idle_timeout: Option<Located<Timeout>>,
    /// Maximum time in which a client reads no byte of a response (HTTP/2: per stream). After it, the gateway aborts
    /// the response.
    #[schemars(extend("default" = "30s"))]
    pub(super) write_timeout: Option<Located<Timeout>>,
    /// Maximum number of open client connections, over all worker threads.
    #[schemars(range(min = 1), extend("default" = 65_536))]
    pub(super) max_connections: Option<Located<usize>>,
    /// Maximum size of a request head (request line and headers).
    #[schemars(extend("default" = "32KiB", "minimum" = 1))]
    pub(super) max_header_bytes: Option<Located<Size>>,
    /// Maximum number of header lines of a request.
    #[schemars(range(min = 1), extend("default" = 100))]
    pub(super) max_headers: Option<Located<usize>>,
    /// Maximum size of a request body.
    #[schemars(extend("default" = "4GiB", "minimum" = 1))]
    pub(super) max_body: Option<Located<Size>>,
    /// Maximum size of all bodies in memory, over all clients: bodies of requests with an idempotency key, copies for
    /// retries, and responses that are being stored or replayed. When it is reached, requests with an idempotency key
    /// get 503. Other requests are streamed without a copy, so they are not retried.
    #[schemars(extend("default" = "256MiB", "minimum" = 1))]
    pub(super) max_buffered: Option<Located<Size>>,
    /// Maximum size of the bodies in memory for one client. It applies only while more than half of `max_buffered` is
    /// in use. The default is at most half of `max_buffered`.
    #[schemars(extend("default" = "16MiB", "minimum" = 1))]
    pub(super) max_buffered_per_client: Option<Located<Size>>,
    /// Maximum number of open HTTP/2 streams on a client connection.
    #[schemars(range(min = 1), extend("default" = 128))]
    pub(super) h2_max_streams: Option<Located<u32>>,
    /// Maximum number of HTTP/2 streams per connection that the client has reset and the gateway has not yet processed.
    /// Above this number, the gateway closes the connection.
    #[schemars(range(min = 1), extend("default" = 64))]
    pub(super) h2_max_resets: Option<Located<usize>>,
}

/// PEM files with the TLS certificate of the gateway and its private key.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TlsTable {
    /// PEM file with the certificate chain. The gateway's own certificate is first.
    #[schemars(required)]
    pub(super) cert: Option<Located<PathBuf>>,
    /// PEM file with the private key of the certificate.
    #[schemars(required)]
    pub(super) key: Option<Located<PathBuf>>,
}

/// Admin listener: health probes, metrics and admin API. If `listen` is not set, there is no admin listener.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AdminSection {
    /// IP address and port of the admin listener.
    pub(super) listen: Option<Located<Listen>>,
    /// Bearer token that requests to the admin listener must have, except those to /livez and /readyz.
    pub(super) token: Option<Located<TokenText>>,
    /// File that contains the bearer token, instead of `token`.
    pub(super) token_file: Option<Located<PathBuf>>,
}

/// How the gateway identifies clients.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ClientSection {
    /// Networks of proxies, in CIDR notation, whose `X-Forwarded-For` header is trusted.
    #[schemars(extend("default" = []))]
    pub(super) trusted_proxies: Option<Vec<Located<Cidr>>>,
    /// Networks of clients, in CIDR notation, that no rate limit applies to.
    #[schemars(extend("default" = []))]
    pub(super) exempt: Option<Vec<Located<Cidr>>>,
    /// Prefix length of the network that identifies an IPv6 client. All addresses in this network are one client.
    #[schemars(range(min = 1, max = 128), extend("default" = 64))]
    pub(super) ipv6_prefix: Option<Located<u8>>,
}

/// Responses that the gateway creates itself, such as rejections.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RespondSection {
    /// Names and format of the `RateLimit` headers.
    #[schemars(extend("default" = "draft"))]
    pub(super) rate_limit: Option<Located<DialectWord>>,
    /// Headers on rejections that tell SDKs whether and when to retry, in addition to `Retry-After`.
    #[schemars(extend("default" = ["ms", "should-retry"]))]
    pub(super) hints: Option<Vec<Located<HintWord>>>,
    /// URL of your documentation of the problem types, sent as `Link` with `rel="describedby"` on problem responses.
    pub(super) docs: Option<Located<DocsUrl>>,
    /// Additional headers on the responses that the gateway creates, by name.
    #[schemars(extend("default" = {}))]
    pub(super) headers: Option<Named<ResponseHeader, ValueText>>,
    /// CORS headers, which allow scripts of web pages to read the responses that the gateway creates. Default: none.
    pub(super) cors: Option<CorsSection>,
}

/// Names and format of the `RateLimit` headers.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum DialectWord {
    /// `RateLimit` and `RateLimit-Policy` of the newest supported IETF draft, currently draft 11.
    Draft,
    /// `RateLimit` and `RateLimit-Policy` of IETF draft 11, even after the gateway supports a later draft.
    #[serde(rename = "draft-11")]
    Draft11,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`.
    Legacy,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    X,
    /// The gateway adds no `RateLimit` headers. Those of the upstream are forwarded unchanged.
    Off,
}

/// Header on rejections that tells SDKs whether and when to retry.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum HintWord {
    /// `Retry-After-Ms`: how long to wait before a retry, in milliseconds.
    Ms,
    /// `X-Should-Retry`: `true` on a response with `Retry-After`, `false` if a retry cannot succeed.
    ShouldRetry,
    /// `Stripe-Should-Retry`: same values as `X-Should-Retry`.
    Stripe,
    /// `X-Amz-Retry-After`: how long to wait before a retry, in milliseconds.
    Amz,
}

/// CORS headers of the responses that the gateway creates.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CorsSection {
    /// Allowed origins, such as `https://app.example.com`. `*` allows any origin.
    #[schemars(required, length(min = 1))]
    pub(super) origins: Option<Vec<Located<Origin>>>,
    /// Methods that the response to a preflight request allows. Default: the requested method.
    #[schemars(length(min = 1))]
    pub(super) methods: Option<Vec<Located<MethodName>>>,
    /// Request headers that the response to a preflight request allows. Default: the requested headers.
    #[schemars(length(min = 1))]
    pub(super) headers: Option<Vec<Located<HeaderText>>>,
    /// Response headers that scripts can read, in addition to `Retry-After`, the headers of `hints` and the `RateLimit`
    /// headers.
    #[schemars(extend("default" = []))]
    pub(super) expose: Option<Vec<Located<HeaderText>>>,
    /// Whether browsers are allowed to send credentials. Cannot be combined with the origin `*`.
    #[schemars(extend("default" = false))]
    pub(super) credentials: Option<Located<bool>>,
    /// How long a browser is allowed to cache the response to a preflight request.
    #[schemars(extend("default" = "10m"))]
    pub(super) max_age: Option<Located<HumanDuration>>,
}

/// Log lines and access log.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LogSection {
    /// Format of log lines.
    #[schemars(extend("default" = "text"))]
    pub(super) format: Option<Located<FormatWord>>,
    /// Whether requests are written to the access log. The key `access_log` of a route overrides this.
    #[schemars(extend("default" = true))]
    pub(super) access: Option<Located<bool>>,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum FormatWord {
    /// One line of plain text per message.
    Text,
    /// One JSON object per message, on one line.
    Json,
}
