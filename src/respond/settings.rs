//! Settings in `[respond]` of the configuration.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{Cors, Hints};

/// Settings of the responses that the gateway generates.
#[derive(Clone, Debug, Default)]
pub struct RespondSettings {
    /// Names and syntax of the `RateLimit` headers.
    pub rate_limit: Dialect,
    /// Retry hints for SDKs on rejections.
    pub hints: Hints,
    /// Value of `Link` in problem responses, such as `<https://docs.example/errors>; rel="describedby"`.
    pub docs: Option<HeaderValue>,
    /// Additional headers of all responses that the gateway generates.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// CORS settings; without them the gateway adds no CORS headers.
    pub cors: Option<Cors>,
}

impl RespondSettings {
    /// A configured header replaces an existing one.
    pub(crate) fn add_headers(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.headers {
            headers.insert(name.clone(), value.clone());
        }
    }
}

/// Names and format of the `RateLimit` headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "gateway",
    derive(serde::Deserialize, schemars::JsonSchema),
    serde(rename_all = "lowercase")
)]
pub enum Dialect {
    /// `RateLimit` and `RateLimit-Policy` of the newest supported IETF draft, currently draft 11.
    #[default]
    Draft,
    /// `RateLimit` and `RateLimit-Policy` of IETF draft 11, even after the gateway supports a later draft.
    #[cfg_attr(feature = "gateway", serde(rename = "draft-11"))]
    Draft11,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset`.
    Legacy,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    X,
    /// The gateway adds no `RateLimit` headers. Those of the upstream are forwarded unchanged.
    Off,
}

impl Dialect {
    pub(crate) fn header_names(self) -> &'static [&'static str] {
        match self {
            Self::Draft | Self::Draft11 => &["RateLimit", "RateLimit-Policy"],
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
