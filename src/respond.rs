//! Responses made by the gateway.
//!
//! A stage that rejects a request returns a [`Rejection`]: the only conversion from an error to a status.
//! [`problem::response`] renders it in the form that the client accepts, with `Retry-After`, the [`Hints`] for SDKs, the
//! headers of the configuration, and the CORS headers that browser code needs to read it.

mod asked;
pub mod body;
pub mod cors;
mod hints;
pub mod problem;
pub mod rate_limit;
pub mod rejection;
pub mod retry_after;

use http::{HeaderMap, HeaderName, HeaderValue};

pub use asked::Asked;
pub use body::Body;
pub use cors::Cors;
pub use hints::{Hint, Hints};
pub use rejection::Rejection;

/// Settings of the responses that the gateway makes: `[respond]` of the configuration.
#[derive(Clone, Debug, Default)]
pub struct Manner {
    /// The dialect of the `RateLimit` headers.
    pub rate_limit: Dialect,
    /// Headers for SDKs on rejections.
    pub hints: Hints,
    /// The value of `Link` on problem responses: `<https://docs.example/errors>; rel="describedby"`.
    pub docs: Option<HeaderValue>,
    /// Extra headers on the responses the gateway makes.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Which browsers may read them, if any.
    pub cors: Option<Cors>,
}

impl Manner {
    /// Adds the headers that the configuration sets for every response of the gateway.
    pub fn add_headers(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.headers {
            headers.insert(name.clone(), value.clone());
        }
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
    /// None.
    Off,
}
