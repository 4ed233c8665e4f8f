//! Why the gateway rejects a request: the fields of a problem document (RFC 9457).
//!
//! A stage converts its errors into a [`Problem`], next to the error type. The pipeline renders the problem once, with
//! `respond::render`. This is a low layer that imports no stage, so that every stage can import it; problems that two
//! stages share have their constructor here. Types and statuses are fixed, because clients switch on them.

use std::borrow::Cow;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use smallvec::SmallVec;

/// When to retry after a condition that ends by itself within moments.
pub(crate) const SHORTLY: Duration = Duration::from_secs(1);

/// When to retry after a condition that an operator has to change, or that lasts longer.
pub(crate) const LATER: Duration = Duration::from_secs(5);

/// Follows the failure of a keyed request whose outcome is held as unknown.
const HELD: &str = " The request may have been executed, so its outcome is unknown. Its idempotency key is held: a \
                    retry with the same key gets 409 idempotency-outcome-unknown. Query the API for the result before \
                    you use a new key.";

/// Usual number of headers of a rejection, including those that later stages add.
pub(crate) const HEADERS: usize = 12;

/// A rejected request. Boxed, because results that can contain one are moved often.
#[derive(Clone, Debug)]
pub struct Problem(Box<Fields>);

/// The fields of a problem.
#[derive(Clone, Debug)]
pub struct Fields {
    /// Status of the response.
    pub status: StatusCode,
    /// Problem type, without the prefix `urn:tidegate:problem:`.
    pub kind: &'static str,
    /// The same text for all problems of one type.
    pub title: &'static str,
    /// What happened in this case, and what the client can do.
    pub detail: Cow<'static, str>,
    /// Whether and when a retry can succeed.
    pub retry: Retry,
    /// Whether the outcome of the request's idempotency key is unknown: the member `outcome`.
    pub is_outcome_unknown: bool,
    /// The timeout that expired: the member `timeout`.
    pub timeout: Option<TimeoutPhase>,
    /// Names of the limits that reject the request, longest wait first: the member `violated-policies`.
    pub violated: SmallVec<[Arc<str>; 1]>,
    /// Headers of the response that belong to this problem, such as `Allow` and `RateLimit`.
    pub headers: HeaderMap,
    /// The configured body that replaces the problem document.
    pub fallback: Option<Fallback>,
}

/// Whether a retry of a rejected request can succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The gateway makes no statement. The client follows its own policy.
    Unspecified,
    /// After this time, which `Retry-After` states in this form.
    After(Duration, RetryAfterForm),
    /// The gateway gives every repetition the same response.
    Never,
}

/// Form of `Retry-After`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetryAfterForm {
    /// Whole seconds.
    #[default]
    Seconds,
    /// An HTTP date.
    HttpDate,
}

/// The timeouts of an upstream. Each is a setting of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutPhase {
    /// Until the connection is established, TLS included.
    Connect,
    /// From the last byte of the request to the head of the response.
    FirstByte,
    /// Between two parts of a body, in either direction.
    Idle,
    /// The whole exchange, with all attempts.
    Total,
}

/// A response body that the configuration sets for a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// Its `Content-Type`.
    pub content_type: HeaderValue,
    /// Its bytes.
    pub body: Bytes,
}

impl Problem {
    /// Creates a problem. A retry never succeeds after 400, 413 and 422, because the request itself is at fault.
    pub fn new(
        status: StatusCode,
        kind: &'static str,
        title: &'static str,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        let retry = match status {
            StatusCode::BAD_REQUEST
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNPROCESSABLE_ENTITY => Retry::Never,
            _ => Retry::Unspecified,
        };
        Self(Box::new(Fields {
            status,
            kind,
            title,
            detail: detail.into(),
            retry,
            is_outcome_unknown: false,
            timeout: None,
            violated: SmallVec::new(),
            headers: HeaderMap::new(),
            fallback: None,
        }))
    }

    /// Creates the problem of a request that is not valid.
    pub fn bad_request(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "bad-request",
            "Bad request",
            detail,
        )
    }

    /// Creates the problem of a request body of more than `limit` bytes.
    pub fn payload_too_large(limit: u64) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "payload-too-large",
            "Request body too large",
            format!("The gateway takes request bodies of at most {limit} bytes here."),
        )
    }

    /// Creates the problem of a request for which the store has no capacity, or does not respond.
    pub fn store_unavailable(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "store-unavailable",
            "Store unavailable",
            detail,
        )
        .retry_after(LATER)
    }

    /// Creates the problem of a request without a complete and valid response. `is_held` is set if its idempotency key is
    /// held because its outcome is unknown.
    pub fn upstream_unavailable(detail: &str, is_held: bool) -> Self {
        let (status, kind) = (StatusCode::BAD_GATEWAY, "upstream-unavailable");
        Self::without_response(status, kind, "Upstream unavailable", detail, is_held)
    }

    /// Creates the problem of a request whose upstream timed out. `is_held` is set if its idempotency key is held because
    /// its outcome is unknown.
    pub fn upstream_timeout(phase: TimeoutPhase, detail: &str, is_held: bool) -> Self {
        let (status, kind) = (StatusCode::GATEWAY_TIMEOUT, "upstream-timeout");
        let mut problem =
            Self::without_response(status, kind, "Upstream timed out", detail, is_held);
        problem.timeout = Some(phase);
        problem
    }

    fn without_response(
        status: StatusCode,
        kind: &'static str,
        title: &'static str,
        detail: &str,
        is_held: bool,
    ) -> Self {
        if !is_held {
            return Self::new(status, kind, title, detail.to_owned());
        }
        let mut problem = Self::new(status, kind, title, format!("{detail}{HELD}"));
        problem.is_outcome_unknown = true;
        problem.final_for_retries()
    }

    /// States that a retry can succeed after `wait`.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry = Retry::After(wait, RetryAfterForm::Seconds);
        self
    }

    /// States that a retry gets the same response.
    #[must_use]
    pub fn final_for_retries(mut self) -> Self {
        self.retry = Retry::Never;
        self
    }
}

impl Deref for Problem {
    type Target = Fields;

    fn deref(&self) -> &Fields {
        &self.0
    }
}

impl DerefMut for Problem {
    fn deref_mut(&mut self) -> &mut Fields {
        &mut self.0
    }
}

impl TimeoutPhase {
    /// All phases.
    pub const ALL: [Self; 4] = [Self::Connect, Self::FirstByte, Self::Idle, Self::Total];

    /// Returns its name in problem documents and log messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::FirstByte => "first-byte",
            Self::Idle => "idle",
            Self::Total => "total",
        }
    }
}
