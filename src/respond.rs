//! Responses that the gateway generates.
//!
//! One function renders all rejections: it adds `Retry-After`, the [`Hints`] for SDKs, the configured headers, and the
//! CORS headers without which browser code cannot read the response.

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

/// Request headers that select the format of a response. A copy, because a stage can reject a request after its headers
/// were forwarded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Preferences {
    accept: SmallVec<[HeaderValue; 1]>,
    origin: Option<HeaderValue>,
    /// Boxed, because most requests have none.
    traceparent: Option<Box<HeaderValue>>,
}

pub(crate) static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

impl Preferences {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let mut preferences = Self::default();
        // One visit of all headers is faster than two lookups.
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

    pub(crate) fn origin(&self) -> Option<&HeaderValue> {
        self.origin.as_ref()
    }
}

/// Such as `RateLimit-Policy` or `X-RateLimit-Used`.
pub(crate) fn is_rate_limit_field(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("ratelimit") || name.starts_with("x-ratelimit")
}
