//! The configuration file as serde types: the only place that defines the configuration keys.
//!
//! A field is a key. Its doc comment is the documentation for users, its type and its `schemars` attributes are the
//! allowed values, and the attribute `default` is the default. The JSON Schema is generated from these types. It
//! validates files, sets defaults, maps environment variables to keys, and enables completion in editors. `make docs`
//! generates `config/reference.toml` and the tables in `docs/configuration.md` from the schema.
//!
//! A section whose values need no further checks is the settings type of the module that uses it, such as
//! [`LogSettings`].
//!
//! A key with a default has the plain type of its value, or [`Setting`] if a check needs its location. A key that a
//! file must set is optional here, because validation reports and removes invalid values before decoding, and the
//! remaining values are still decoded and checked. [`policy`](super::policy) resolves names and compares values with
//! each other.

mod limit;
mod log;
mod route;
mod scenario;
mod store;
mod upstream;

use schemars::JsonSchema;
use serde::Deserialize;

use super::located::{Located, Many, Named, Setting};
use super::scalar::{
    Cidr, DocsUrl, FilePath, HeaderText, HumanDuration, Label, LimitName, Listen, MethodName,
    Origin, ResponseHeader, Size, Timeout, TokenText, ValueText,
};

use crate::request::route::PathMode;
use crate::respond::{Dialect, Hint};
pub(crate) use log::{LogFormat, LogLevel, LogSettings};

pub(super) use limit::{LimitSection, OnExceed};
pub(super) use route::{IdempotencySection, KeyMode, OnDuplicate, RouteSection};
pub(super) use scenario::ScenarioSection;
pub(super) use store::{BackendKind, LONGEST_LEASE, StoreSection};
pub(super) use upstream::{
    BreakerSection, ConcurrencySection, FailuresEntry, FallbackTable, HealthTable, RetrySection,
    ServerEntry, UpstreamSection,
};

/// Configuration of the Tidegate gateway. `${VARIABLE}` in a string is replaced by the value of the environment
/// variable. Write `$${` for a literal `${`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Tidegate configuration")]
pub(super) struct File {
    #[schemars(extend("default" = {}))]
    pub(super) server: ServerSection,
    #[schemars(extend("default" = {}))]
    pub(super) admin: AdminSection,
    #[schemars(extend("default" = {}))]
    pub(super) client: ClientSection,
    #[schemars(extend("default" = {}))]
    pub(super) store: StoreSection,
    #[schemars(extend("default" = {}))]
    pub(super) respond: RespondSection,
    #[schemars(extend("default" = {}))]
    pub(super) log: LogSettings,
    /// APIs behind the gateway, by name.
    #[schemars(extend("default" = {}))]
    pub(super) upstream: Named<Label, UpstreamSection>,
    /// Rate limits, by name. Routes that use the same rate limit share its buckets.
    #[schemars(extend("default" = {}))]
    pub(super) limit: Named<LimitName, LimitSection>,
    /// Scenarios, by name: scripted responses and faults with which the retries of clients are tested.
    #[schemars(extend("default" = {}))]
    pub(super) scenario: Named<Label, ScenarioSection>,
    /// Routes. The first route in the file that matches a request applies.
    #[schemars(extend("default" = []))]
    pub(super) route: Vec<Located<RouteSection>>,
}

/// Listeners, worker threads, timeouts of client connections, and the resources that clients can use.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ServerSection {
    /// IP address and port to listen on, such as `0.0.0.0:8080`, or a list of them.
    #[schemars(extend("default" = "127.0.0.1:8080"))]
    pub(super) listen: Many<Listen>,
    /// Number of worker threads. `0` means one per CPU core.
    #[schemars(range(max = 1024), extend("default" = 0))]
    pub(super) workers: usize,
    /// How long a shutdown continues to accept connections while /readyz already responds with 503. Set it to the time
    /// in which load balancers notice this. `shutdown_grace` starts after it.
    #[schemars(extend("default" = "0s"))]
    pub(super) drain_delay: HumanDuration,
    /// How long a shutdown waits for requests in flight to complete.
    #[schemars(extend("default" = "30s"))]
    pub(super) shutdown_grace: HumanDuration,
    /// TLS certificate and private key of the listeners. Default: no TLS.
    #[schemars(extend("examples" = [{ "cert": "server.pem", "key": "server.key" }]))]
    pub(super) tls: Option<TlsTable>,
    /// Maximum duration of the TLS handshake with a client.
    #[schemars(extend("default" = "10s"))]
    pub(super) handshake_timeout: Timeout,
    /// Maximum time to receive the head of a request (request line and headers).
    #[schemars(extend("default" = "10s"))]
    pub(super) header_timeout: Timeout,
    /// Maximum time in which a client sends no byte of an incomplete request body.
    #[schemars(extend("default" = "60s"))]
    pub(super) body_timeout: Timeout,
    /// Maximum time between two requests on a connection. After it, the gateway closes the connection.
    #[schemars(extend("default" = "75s"))]
    pub(super) idle_timeout: Timeout,
    /// Maximum time in which the client's socket accepts no part of a response (HTTP/2: per stream); after it, the
    /// gateway aborts the response. A socket accepts more in steps of about 128 KiB (192 KiB with TLS), so a client that
    /// reads slowly but steadily needs about 7 KB/s with the default.
    #[schemars(extend("default" = "30s"))]
    pub(super) write_timeout: Timeout,
    /// Maximum time in which an upgraded connection, such as a WebSocket, transfers no byte in either direction. After
    /// it, the gateway closes the connections to client and server.
    #[schemars(extend("default" = "10m"))]
    pub(super) tunnel_timeout: Timeout,
    /// Maximum number of open client connections. Above this number, a new connection replaces the one that has been
    /// idle longest. If a request is in flight on every connection, the new one waits.
    #[schemars(range(min = 1), extend("default" = 65_536))]
    pub(super) max_connections: usize,
    /// Maximum number of open connections of one TCP peer that is not in `trusted_proxies`; an IPv6 peer is counted by
    /// `ipv6_prefix`. Above this number, a new connection replaces the one of the peer that has been idle longest. If a
    /// request is in flight on every connection of the peer, the new one is closed. 0: a quarter of `max_connections`.
    #[schemars(extend("default" = 0))]
    pub(super) max_connections_per_client: usize,
    /// Maximum number of upgraded connections of one client. An upgrade above this number gets 429 and is not forwarded.
    /// Upgrades to which the upstream has not yet responded count, too.
    #[schemars(range(min = 1), extend("default" = 256))]
    pub(super) max_tunnels_per_client: usize,
    /// Maximum size of a request head (request line and headers).
    #[schemars(extend("default" = "32KiB", "minimum" = 1))]
    pub(super) max_header_bytes: Size,
    /// Maximum number of header lines of a request.
    #[schemars(range(min = 1), extend("default" = 100))]
    pub(super) max_headers: usize,
    /// Maximum size of a request body.
    #[schemars(extend("default" = "4GiB", "minimum" = 1))]
    pub(super) max_body: Size,
    /// How much of a request body is buffered in memory before a server is contacted, within `max_buffered`. So a slow
    /// upload of at most this size does not occupy a server. `0` forwards a body as it arrives, which interactive
    /// uploads require.
    #[schemars(extend("default" = "1MiB"))]
    pub(super) request_buffer: Size,
    /// Which paths are accepted. `strict` is recommended in front of an API without unusual paths, such as `/a//b` and
    /// `/a%2Fb`.
    #[schemars(extend("default" = "compatible"))]
    pub(super) paths: PathMode,
    /// Whether request headers are forwarded if their names contain an underscore. If not, only those are forwarded that
    /// a limit, a scope or an idempotency key reads. Names that differ from a header with an effect only in separators,
    /// such as `X_Forwarded_For`, are never forwarded.
    #[schemars(extend("default" = false))]
    pub(super) underscores_in_headers: bool,
    /// Minimum average rate of a request body, in bytes per second, while the gateway reads it. It applies after 5
    /// seconds. A faster client can pause, for at most `body_timeout`. A slower client gets 408. `0` means no minimum.
    #[schemars(extend("default" = "1KiB"))]
    pub(super) min_rate: Size,
    /// Maximum size of all bodies in memory, over all clients. These are bodies of requests with an idempotency key, the
    /// start of other bodies (`request_buffer`), copies for retries, and responses that are stored or replayed. When it
    /// is reached, requests with an idempotency key get 503. Other requests are streamed without a buffer or a copy, so
    /// they are not retried.
    #[schemars(extend("default" = "256MiB", "minimum" = 1))]
    pub(super) max_buffered: Setting<Size>,
    /// Maximum size of the bodies in memory for one client. It applies only while more than half of `max_buffered` is
    /// in use. The default is at most half of `max_buffered`.
    #[schemars(extend("default" = "16MiB", "minimum" = 1))]
    pub(super) max_buffered_per_client: Setting<Size>,
    /// Maximum number of open HTTP/2 streams on a client connection.
    #[schemars(range(min = 1), extend("default" = 128))]
    pub(super) h2_max_streams: u32,
    /// Maximum number of HTTP/2 streams per connection that the client has reset and the gateway has not yet processed.
    /// Above this number, the gateway closes the connection.
    #[schemars(range(min = 1), extend("default" = 64))]
    pub(super) h2_max_resets: usize,
}

/// PEM files with the TLS certificate of the gateway and its private key.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TlsTable {
    /// PEM file with the certificate chain. The gateway's own certificate is first.
    #[schemars(required, extend("examples" = ["server.pem"]))]
    pub(super) cert: Option<Located<FilePath>>,
    /// PEM file with the private key of the certificate.
    #[schemars(required, extend("examples" = ["server.key"]))]
    pub(super) key: Option<Located<FilePath>>,
}

/// Admin listener: health probes, metrics and admin API. If `listen` is not set, there is no admin listener.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AdminSection {
    /// IP address and port of the admin listener. Default: no admin listener.
    #[schemars(extend("examples" = ["127.0.0.1:9090"]))]
    pub(super) listen: Option<Located<Listen>>,
    /// Bearer token that requests to the admin listener must have, except those to /, /livez and /readyz.
    #[schemars(extend("writeOnly" = true))]
    pub(super) token: Option<Located<TokenText>>,
    /// File that contains the bearer token, instead of `token`.
    #[schemars(extend("examples" = ["/run/secrets/admin"]))]
    pub(super) token_file: Option<Located<FilePath>>,
}

/// How the gateway identifies clients.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ClientSection {
    /// Networks of proxies, in CIDR notation, whose `X-Forwarded-For` header is trusted.
    #[schemars(extend("default" = []))]
    pub(super) trusted_proxies: Vec<Located<Cidr>>,
    /// Networks of clients, in CIDR notation, that no rate limit applies to.
    #[schemars(extend("default" = []))]
    pub(super) exempt: Vec<Located<Cidr>>,
    /// Prefix length of the network that identifies an IPv6 client. All addresses in this network are one client.
    #[schemars(range(min = 1, max = 128), extend("default" = 64))]
    pub(super) ipv6_prefix: u8,
}

/// Responses that the gateway creates itself, such as rejections.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RespondSection {
    /// Names and format of the `RateLimit` headers. Headers with these names in the response of an upstream are merged
    /// with those of the gateway.
    #[schemars(extend("default" = "draft"))]
    pub(super) rate_limit: Dialect,
    /// Headers on rejections that tell SDKs whether and when to retry, in addition to `Retry-After`.
    #[schemars(extend("default" = ["ms", "should-retry"]))]
    pub(super) hints: Vec<Hint>,
    /// URL of your documentation of the problem types, sent as `Link` with `rel="describedby"` on problem responses.
    pub(super) docs: Option<DocsUrl>,
    /// Additional headers on the responses that the gateway creates, such as `{ "X-Served-By" = "edge" }`. Headers that
    /// the gateway itself writes are not allowed.
    #[schemars(extend("default" = {}))]
    pub(super) headers: Named<ResponseHeader, ValueText>,
    /// CORS headers, which allow scripts of web pages to read the responses that the gateway creates. Default: none.
    pub(super) cors: Option<CorsSection>,
}

/// CORS headers of the responses that the gateway creates. Without this table, the gateway adds no CORS headers and
/// forwards preflight requests.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CorsSection {
    /// Allowed origins in the form that browsers send, such as `https://app.example`: without a path. `*` allows any
    /// origin.
    #[schemars(required, length(min = 1))]
    pub(super) origins: Option<Vec<Located<Origin>>>,
    /// Methods that the response to a preflight request allows. Default: the requested method.
    #[schemars(length(min = 1), extend("examples" = [["GET", "POST"]]))]
    pub(super) methods: Option<Vec<MethodName>>,
    /// Request headers that the response to a preflight request allows. Default: the requested headers.
    #[schemars(length(min = 1), extend("examples" = [["Authorization", "Content-Type"]]))]
    pub(super) headers: Option<Vec<HeaderText>>,
    /// Response headers that scripts can read, in addition to `Retry-After`, the headers of `hints` and the `RateLimit`
    /// headers.
    #[schemars(extend("default" = []))]
    pub(super) expose: Vec<HeaderText>,
    /// Whether browsers are allowed to send credentials. Cannot be combined with the origin `*`.
    #[schemars(extend("default" = false))]
    pub(super) credentials: Setting<bool>,
    /// How long a browser is allowed to cache the response to a preflight request.
    #[schemars(extend("default" = "10m"))]
    pub(super) max_age: HumanDuration,
}
