//! The configuration as a person writes it.
//!
//! These types are the single source of what keys there are: serde decodes by them, and the schema
//! made from them is what the shape of a file is checked against, what editors complete by and what
//! environment variables are matched with. Nothing is resolved here. Every key is optional in the
//! types, the required ones too: by the time a file is decoded, whatever was wrong in it has been
//! reported and taken out, and the rest is still worth checking.

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

/// Configuration of the Tidegate gateway. Any string may hold `${VARIABLE}`; `$${` stands for `${`.
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
    /// Where requests go, by name.
    pub(super) upstream: Named<Label, UpstreamSection>,
    /// What requests are held to, by name. A limit used by two routes is one bucket.
    pub(super) limit: Named<LimitName, LimitSection>,
    /// Which requests are taken, and what is done with them. The first match wins.
    pub(super) route: Vec<Located<RouteSection>>,
}

/// Listening, workers, deadlines and caps.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ServerSection {
    /// Where to listen: an address and a port, or a list of these.
    #[schemars(extend("default" = "127.0.0.1:8080"))]
    pub(super) listen: Option<Many<Listen>>,
    /// Worker threads; 0 for one per core.
    #[schemars(range(max = 1024), extend("default" = 0))]
    pub(super) workers: Option<Located<usize>>,
    /// How long a shutdown waits for what is in flight.
    #[schemars(extend("default" = "30s"))]
    pub(super) shutdown_grace: Option<Located<HumanDuration>>,
    /// Serve TLS with this certificate.
    pub(super) tls: Option<TlsTable>,
    /// For the TLS handshake.
    #[schemars(extend("default" = "10s"))]
    pub(super) handshake_timeout: Option<Located<Timeout>>,
    /// For the head of a request.
    #[schemars(extend("default" = "10s"))]
    pub(super) header_timeout: Option<Located<Timeout>>,
    /// Between two parts of a request's body.
    #[schemars(extend("default" = "60s"))]
    pub(super) body_timeout: Option<Located<Timeout>>,
    /// Between two requests of one connection.
    #[schemars(extend("default" = "75s"))]
    pub(super) idle_timeout: Option<Located<Timeout>>,
    /// For a client to take at least one byte of what is sent to it (HTTP/2: per stream).
    #[schemars(extend("default" = "30s"))]
    pub(super) write_timeout: Option<Located<Timeout>>,
    /// Connections open at once, over all workers.
    #[schemars(range(min = 1), extend("default" = 65_536))]
    pub(super) max_connections: Option<Located<usize>>,
    /// Bytes of a request's head.
    #[schemars(extend("default" = "32KiB", "minimum" = 1))]
    pub(super) max_header_bytes: Option<Located<Size>>,
    /// Header lines of a request.
    #[schemars(range(min = 1), extend("default" = 100))]
    pub(super) max_headers: Option<Located<usize>>,
    /// Bytes of a request's body.
    #[schemars(extend("default" = "4GiB", "minimum" = 1))]
    pub(super) max_body: Option<Located<Size>>,
    /// Bytes of bodies held in memory for all clients together: keyed request bodies, copies for retries, responses
    /// being recorded or replayed. Beyond it, keyed requests get 503, and other bodies are streamed without being held.
    #[schemars(extend("default" = "256MiB", "minimum" = 1))]
    pub(super) max_buffered: Option<Located<Size>>,
    /// Bytes of bodies held in memory for one client. Applies while more than half of `max_buffered` is in use. The
    /// default is at most half of `max_buffered`.
    #[schemars(extend("default" = "16MiB", "minimum" = 1))]
    pub(super) max_buffered_per_client: Option<Located<Size>>,
    /// HTTP/2 streams open at once on a connection.
    #[schemars(range(min = 1), extend("default" = 128))]
    pub(super) h2_max_streams: Option<Located<u32>>,
    /// HTTP/2 streams a client may reset before they were taken up.
    #[schemars(range(min = 1), extend("default" = 64))]
    pub(super) h2_max_resets: Option<Located<usize>>,
}

/// PEM files of the gateway's own certificate.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TlsTable {
    /// The certificate chain, leaf first.
    #[schemars(required)]
    pub(super) cert: Option<Located<PathBuf>>,
    /// The private key.
    #[schemars(required)]
    pub(super) key: Option<Located<PathBuf>>,
}

/// The listener for operators. Without `listen` there is none.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AdminSection {
    /// Where to listen.
    pub(super) listen: Option<Located<Listen>>,
    /// What a caller must present as its bearer token.
    pub(super) token: Option<Located<TokenText>>,
    /// A file that holds the token.
    pub(super) token_file: Option<Located<PathBuf>>,
}

/// Who is calling.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ClientSection {
    /// Networks whose X-Forwarded-For is believed.
    #[schemars(extend("default" = []))]
    pub(super) trusted_proxies: Option<Vec<Located<Cidr>>>,
    /// Networks whose clients are never throttled.
    #[schemars(extend("default" = []))]
    pub(super) exempt: Option<Vec<Located<Cidr>>>,
    /// Bits of an IPv6 address that make a client.
    #[schemars(range(min = 1, max = 128), extend("default" = 64))]
    pub(super) ipv6_prefix: Option<Located<u8>>,
}

/// How the gateway speaks for itself.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RespondSection {
    /// The dialect of the `RateLimit` headers.
    #[schemars(extend("default" = "draft"))]
    pub(super) rate_limit: Option<Located<DialectWord>>,
    /// Headers for SDKs on rejections, beside `Retry-After`.
    #[schemars(extend("default" = ["ms", "should-retry"]))]
    pub(super) hints: Option<Vec<Located<HintWord>>>,
    /// Documentation of the problem types: the target of `Link` with `rel="describedby"` on problem responses.
    pub(super) docs: Option<Located<DocsUrl>>,
    /// Extra headers on responses the gateway makes.
    #[schemars(extend("default" = {}))]
    pub(super) headers: Option<Named<ResponseHeader, ValueText>>,
    /// Which browser code may read them.
    pub(super) cors: Option<CorsSection>,
}

/// The dialect of the `RateLimit` headers.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum DialectWord {
    /// `RateLimit` and `RateLimit-Policy` of the newest IETF draft that is supported: draft 11.
    Draft,
    /// The same, as in draft 11.
    #[serde(rename = "draft-11")]
    Draft11,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`.
    Legacy,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    X,
    /// None.
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
    /// `Stripe-Should-Retry`: the same.
    Stripe,
    /// `X-Amz-Retry-After`: the exact wait in milliseconds.
    Amz,
}

/// Which browser code may read what the gateway says.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CorsSection {
    /// Origins allowed; `*` for any.
    #[schemars(required, length(min = 1))]
    pub(super) origins: Option<Vec<Located<Origin>>>,
    /// Methods a preflight is told. Default: the one it asks about.
    #[schemars(length(min = 1))]
    pub(super) methods: Option<Vec<Located<MethodName>>>,
    /// Request headers a preflight is told. Default: those it asks about.
    #[schemars(length(min = 1))]
    pub(super) headers: Option<Vec<Located<HeaderText>>>,
    /// Response headers exposed beside `Retry-After`, the hints and the `RateLimit` ones.
    #[schemars(extend("default" = []))]
    pub(super) expose: Option<Vec<Located<HeaderText>>>,
    /// Whether credentials may be sent along.
    #[schemars(extend("default" = false))]
    pub(super) credentials: Option<Located<bool>>,
    /// How long a browser may keep a preflight's answer.
    #[schemars(extend("default" = "10m"))]
    pub(super) max_age: Option<Located<HumanDuration>>,
}

/// How the gateway writes its log.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LogSection {
    /// How a line is written.
    #[schemars(extend("default" = "text"))]
    pub(super) format: Option<Located<FormatWord>>,
    /// Whether requests are logged, where their route does not say.
    #[schemars(extend("default" = true))]
    pub(super) access: Option<Located<bool>>,
}

/// How a log line is written.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum FormatWord {
    /// For a person.
    Text,
    /// One JSON object a line.
    Json,
}
