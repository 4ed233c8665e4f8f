//! Everything the gateway itself says.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Method};

/// How the gateway speaks: `[respond]` of the configuration.
#[derive(Clone, Debug, Default)]
pub struct Manner {
    /// The dialect of the `RateLimit` headers.
    pub rate_limit: Dialect,
    /// Extra headers on the responses the gateway makes.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Which browsers may read them, if any.
    pub cors: Option<Cors>,
}

/// The dialect of the `RateLimit` headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// `RateLimit` and `RateLimit-Policy`, as the IETF draft has them.
    #[default]
    Draft,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`.
    Legacy,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    X,
    /// None.
    Off,
}

/// Which browser code may read the gateway's responses: `[respond.cors]`.
#[derive(Clone, Debug)]
pub struct Cors {
    /// The origins allowed, as browsers write them; `None` for any.
    pub origins: Option<Vec<HeaderValue>>,
    /// Methods a preflight is told; `None` for the one it asked about.
    pub methods: Option<Vec<Method>>,
    /// Request headers a preflight is told; `None` for those it asked about.
    pub headers: Option<Vec<HeaderName>>,
    /// Response headers exposed beside `Retry-After` and the `RateLimit` ones.
    pub expose: Vec<HeaderName>,
    /// Whether credentials may be sent along.
    pub credentials: bool,
    /// How long a browser may keep a preflight's answer.
    pub max_age: Duration,
}
