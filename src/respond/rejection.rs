//! Why the gateway would not carry a request on.
//!
//! Each reason has a status, a problem type (`urn:tidegate:problem:…`), a title that is the same every
//! time and a detail that tells the client's author what to do. These are fixed: clients switch on them.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, StatusCode};

use crate::throttle::{Limit, RetryAfterForm};
use crate::wire::Violation;

/// Why the gateway would not carry a request on.
#[derive(Clone, Debug)]
pub enum Rejection {
    /// A limit refused it.
    RateLimited {
        /// The limit with the longest wait.
        limit: Arc<Limit>,
        /// How long until the request would be admitted.
        wait: Duration,
    },
    /// It is not a request the gateway can take for what it seems.
    BadRequest {
        /// 400, or a status that says more.
        status: StatusCode,
        /// What is wrong with it.
        detail: Cow<'static, str>,
    },
    /// Its method is never forwarded.
    MethodNotAllowed,
    /// No route takes it.
    NoRoute,
    /// Its body is larger than the gateway takes.
    PayloadTooLarge {
        /// The most it takes, in bytes.
        limit: u64,
    },
    /// Nobody could be reached behind the gateway, or the answer was not HTTP.
    UpstreamUnavailable {
        /// What happened.
        detail: Cow<'static, str>,
    },
    /// Nobody answered behind the gateway in time.
    UpstreamTimeout {
        /// What took too long.
        detail: Cow<'static, str>,
    },
}

impl From<Violation> for Rejection {
    fn from(violation: Violation) -> Self {
        Self::BadRequest { status: violation.status(), detail: violation.to_string().into() }
    }
}

impl Rejection {
    /// A 400 that says what is wrong.
    pub fn bad_request(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::BadRequest { status: StatusCode::BAD_REQUEST, detail: detail.into() }
    }

    /// Its status code.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::RateLimited { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::BadRequest { status, .. } => *status,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::NoRoute => StatusCode::NOT_FOUND,
            Self::PayloadTooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UpstreamUnavailable { .. } => StatusCode::BAD_GATEWAY,
            Self::UpstreamTimeout { .. } => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// Its problem type, without the `urn:tidegate:problem:` that all share.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::RateLimited { .. } => "rate-limited",
            Self::BadRequest { .. } | Self::MethodNotAllowed => "bad-request",
            Self::NoRoute => "no-route",
            Self::PayloadTooLarge { .. } => "payload-too-large",
            Self::UpstreamUnavailable { .. } => "upstream-unavailable",
            Self::UpstreamTimeout { .. } => "upstream-timeout",
        }
    }

    /// What it is called, whatever the occasion.
    pub fn title(&self) -> &'static str {
        match self {
            Self::RateLimited { .. } => "Too many requests",
            Self::BadRequest { .. } => "Bad request",
            Self::MethodNotAllowed => "Method not allowed",
            Self::NoRoute => "No route",
            Self::PayloadTooLarge { .. } => "Request body too large",
            Self::UpstreamUnavailable { .. } => "Upstream unavailable",
            Self::UpstreamTimeout { .. } => "Upstream timed out",
        }
    }

    /// What happened this time, and what to do about it.
    pub fn detail(&self) -> Cow<'static, str> {
        match self {
            Self::RateLimited { limit, wait } => {
                let seconds = super::retry_after::whole_seconds(*wait);
                let mut number = itoa::Buffer::new();
                [
                    "The limit '",
                    &limit.name,
                    "' is used up. Wait ",
                    number.format(seconds),
                    if seconds == 1 { " second" } else { " seconds" },
                    " before the next request; coming back sooner will be refused again.",
                ]
                .concat()
                .into()
            }
            Self::BadRequest { detail, .. }
            | Self::UpstreamUnavailable { detail }
            | Self::UpstreamTimeout { detail } => detail.clone(),
            Self::MethodNotAllowed => {
                "CONNECT and TRACE are not forwarded, nor is a request for '*'.".into()
            }
            Self::NoRoute => "No route of the gateway takes this method and path.".into(),
            Self::PayloadTooLarge { limit } => {
                format!("The gateway takes request bodies of at most {limit} bytes.").into()
            }
        }
    }

    /// When to come back, where coming back helps, and how to write it.
    pub fn wait(&self) -> Option<(Duration, RetryAfterForm)> {
        match self {
            Self::RateLimited { limit, wait } => Some((*wait, limit.retry_after)),
            _ => None,
        }
    }

    /// The methods that would have been taken, where that is what is wrong.
    pub(super) fn allow(&self) -> Option<HeaderValue> {
        matches!(self, Self::MethodNotAllowed)
            .then(|| HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"))
    }
}
