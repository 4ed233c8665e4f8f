//! Responses that the gateway generates.
//!
//! `render` converts a `Problem` into a response in a format that the client accepts. It adds `Retry-After`, the
//! [`Hints`] for SDKs, the configured headers, and the CORS headers without which browser code cannot read the
//! response. All rejections are rendered by this function.

pub(crate) mod cors;
mod hints;
mod problem;
mod render;
pub(crate) mod retry_after;
mod settings;
pub(crate) mod trace;

use http::header::{ACCEPT, ORIGIN};
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

pub use cors::Cors;
pub use hints::{Hint, Hints};
pub(crate) use problem::{Fallback, HEADER_CAPACITY, RETRY_SOON, Retry, TimeoutPhase};
pub use problem::{Problem, RetryAfterForm};
pub(crate) use render::error_type;
pub(crate) use render::render;
pub use settings::{Dialect, RespondSettings};
use trace::TraceId;

/// Copy of the request headers that select the format of a response that the gateway generates. A copy is needed
/// because a stage can reject a request after its headers were forwarded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Preferences {
    /// Values of all `Accept` lines of the request.
    accept: SmallVec<[HeaderValue; 1]>,
    origin: Option<HeaderValue>,
    /// Boxed, because most requests have none.
    traceparent: Option<Box<HeaderValue>>,
}

pub(crate) static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

impl Preferences {
    /// Copies `Accept`, and the first `Origin` and `traceparent`, from the headers of a request.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut preferences = Self::default();
        // The loop visits all headers once, which is faster than two lookups.
        for (name, value) in headers {
            match *name {
                ACCEPT => preferences.accept.push(value.clone()),
                ORIGIN if preferences.origin.is_none() => preferences.origin = Some(value.clone()),
                _ if preferences.traceparent.is_none() && *name == TRACEPARENT => {
                    preferences.traceparent = Some(value.clone().into());
                }
                _ => {}
            }
        }
        preferences
    }

    fn trace(&self) -> Option<TraceId> {
        self.traceparent.as_deref().and_then(TraceId::of)
    }

    /// Returns the first value of `Origin` in the request.
    pub(crate) fn origin(&self) -> Option<&HeaderValue> {
        self.origin.as_ref()
    }
}

/// Returns whether a header describes rate limits. The names of such headers start with `RateLimit` or `X-RateLimit`,
/// for example `X-RateLimit-Used`.
pub(crate) fn is_rate_limit_field(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("ratelimit") || name.starts_with("x-ratelimit")
}
