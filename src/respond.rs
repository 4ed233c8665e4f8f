//! Everything the gateway itself says.
//!
//! A stage that will not carry a request on returns a [`Rejection`]; it is the only bridge from an error
//! to a status. Here it becomes a response in the form its reader asked for, with the headers the
//! configuration adds and those a browser needs to be let read it.

mod asked;
pub mod body;
pub mod cors;
pub mod problem;
pub mod rate_limit;
pub mod rejection;
pub mod retry_after;

use http::{HeaderMap, HeaderName, HeaderValue};

pub use asked::Asked;
pub use body::Body;
pub use cors::Cors;
pub use rejection::Rejection;

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

impl Manner {
    /// Adds what the configuration wants on every response the gateway makes.
    pub fn add_headers(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.headers {
            headers.insert(name.clone(), value.clone());
        }
    }
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
