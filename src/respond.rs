//! Responses that the gateway generates.
//!
//! `render` converts a `Problem` into a response in a format that the client accepts. It adds `Retry-After`, the
//! [`Hints`] for SDKs, the configured headers, and the CORS headers that browser code needs to read the response. All
//! rejections are rendered by this function.

pub(crate) mod cors;
mod hints;
mod render;
pub(crate) mod retry_after;

use http::header::{ACCEPT, ORIGIN};
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

pub use cors::Cors;
pub use hints::{Hint, Hints};
pub(crate) use render::error_type;
pub(crate) use render::render;

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

/// Copy of the request headers that select the format of a response that the gateway generates. A copy is needed
/// because a stage can reject a request after its headers were forwarded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Preferences {
    /// Values of all `Accept` lines.
    accept: SmallVec<[HeaderValue; 1]>,
    origin: Option<HeaderValue>,
}

impl Preferences {
    /// Copies the preferences from the headers of a request.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut preferences = Self::default();
        // One pass over the headers is faster than two lookups.
        for (name, value) in headers {
            match *name {
                ACCEPT => preferences.accept.push(value.clone()),
                ORIGIN if preferences.origin.is_none() => preferences.origin = Some(value.clone()),
                _ => {}
            }
        }
        preferences
    }

    /// Returns the first `Origin` of the request.
    pub(crate) fn origin(&self) -> Option<&HeaderValue> {
        self.origin.as_ref()
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

/// Returns whether a header describes rate limits in any dialect, including variants such as `X-RateLimit-Used`.
pub(crate) fn is_rate_limit_field(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("ratelimit") || name.starts_with("x-ratelimit")
}
