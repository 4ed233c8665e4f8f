//! Settings in `[respond]` of the configuration.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{Cors, Hints};

/// Settings of the responses that the gateway generates: `[respond]` of the configuration.
#[derive(Clone, Debug, Default)]
pub struct RespondSettings {
    /// Names and syntax of the `RateLimit` headers, or `Off` for no such headers.
    pub rate_limit: Dialect,
    /// Retry hints for SDKs, which are sent in the responses to rejected requests.
    pub hints: Hints,
    /// Value of `Link` in problem responses, such as `<https://docs.example/errors>; rel="describedby"`; `None` sends
    /// no link.
    pub docs: Option<HeaderValue>,
    /// Additional headers of all responses that the gateway generates.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// CORS settings; `None` means that the gateway adds no CORS headers.
    pub cors: Option<Cors>,
}

impl RespondSettings {
    /// Adds the configured headers to `headers`, the headers of a response that the gateway generates. A configured
    /// header replaces an existing header of the same name.
    pub(crate) fn add_headers(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.headers {
            headers.insert(name.clone(), value.clone());
        }
    }
}

/// Dialect of the `RateLimit` headers: their names and syntax.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// The headers are `RateLimit` and `RateLimit-Policy` of IETF draft 11.
    #[default]
    Draft,
    /// The headers are `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`.
    Legacy,
    /// The headers are `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`.
    X,
    /// The gateway sends no `RateLimit` headers.
    Off,
}

impl Dialect {
    /// Returns the names of the headers of this dialect, which CORS exposes to browser code.
    pub(crate) fn header_names(self) -> &'static [&'static str] {
        match self {
            Self::Draft => &["RateLimit", "RateLimit-Policy"],
            Self::Legacy => &["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"],
            Self::X => &[
                "X-RateLimit-Limit",
                "X-RateLimit-Remaining",
                "X-RateLimit-Reset",
            ],
            Self::Off => &[],
        }
    }
}
