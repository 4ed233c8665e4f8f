//! Responses made by the gateway.
//!
//! `render` turns a `Problem` into a response in the form that the client accepts, with `Retry-After`, the [`Hints`] for SDKs, the headers of the configuration, and the CORS headers that browser code needs
//! to read it. It is the only place where a rejection becomes a response.

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

/// Settings of the responses that the gateway makes: `[respond]` of the configuration.
#[derive(Clone, Debug, Default)]
pub struct RespondSettings {
    /// The dialect of the `RateLimit` headers.
    pub rate_limit: Dialect,
    /// Headers for SDKs on rejections.
    pub hints: Hints,
    /// The value of `Link` on problem responses: `<https://docs.example/errors>; rel="describedby"`.
    pub docs: Option<HeaderValue>,
    /// Extra headers on the responses the gateway makes.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The origins whose browser code may read the responses, if any.
    pub cors: Option<Cors>,
}

impl RespondSettings {
    /// Adds the headers that the configuration sets for every response of the gateway.
    pub(crate) fn add_headers(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.headers {
            headers.insert(name.clone(), value.clone());
        }
    }
}

/// The request headers that select the form of a response made by the gateway. A stage can reject a request when
/// its headers are gone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Preferences {
    /// The lines of `Accept`.
    accept: SmallVec<[HeaderValue; 1]>,
    origin: Option<HeaderValue>,
}

impl Preferences {
    /// Reads the preferences from the headers of a request.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut preferences = Self::default();
        // One pass costs less than two look-ups.
        for (name, value) in headers {
            match *name {
                ACCEPT => preferences.accept.push(value.clone()),
                ORIGIN if preferences.origin.is_none() => preferences.origin = Some(value.clone()),
                _ => {}
            }
        }
        preferences
    }

    /// The origin of the browser code that sent the request.
    pub(crate) fn origin(&self) -> Option<&HeaderValue> {
        self.origin.as_ref()
    }
}

/// The dialect of the `RateLimit` headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// `RateLimit` and `RateLimit-Policy` of IETF draft 11, the newest that is supported.
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
    /// Returns the headers of the dialect, which CORS exposes.
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

/// Returns whether a header states limits, in any dialect, `X-RateLimit-Used` and the like included.
pub(crate) fn is_rate_limit_field(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("ratelimit") || name.starts_with("x-ratelimit")
}
