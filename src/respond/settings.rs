//! `[respond]` settings.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{Cors, Hints};

/// Settings of the responses that the gateway generates: `[respond]` of the configuration.
#[derive(Clone, Debug, Default)]
pub struct RespondSettings {
    /// Names of the `RateLimit` headers.
    pub rate_limit: Dialect,
    /// Headers for SDKs on rejections.
    pub hints: Hints,
    /// Value of `Link` on problem responses, such as `<https://docs.example/errors>; rel="describedby"`.
    pub docs: Option<HeaderValue>,
    /// Additional headers on responses that the gateway generates.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// CORS settings. `None` adds no CORS headers.
    pub cors: Option<Cors>,
}

impl RespondSettings {
    /// Adds the configured headers to a response that the gateway generates.
    pub(crate) fn add_headers(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.headers {
            headers.insert(name.clone(), value.clone());
        }
    }
}

/// Names and syntax of the `RateLimit` headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// `RateLimit` and `RateLimit-Policy` of IETF draft 11.
    #[default]
    Draft,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`.
    Legacy,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    X,
    /// No headers.
    Off,
}

impl Dialect {
    /// Returns the names of the headers, which CORS exposes to browser code.
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
