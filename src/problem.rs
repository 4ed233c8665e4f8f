//! Reason why the gateway rejects a request, as the fields of a problem document (RFC 9457).
//!
//! Each stage converts its errors into a [`Problem`], next to the error type. The pipeline renders the problem with
//! `respond::render`. Problems that several stages use have their constructor here, in the bottom layer, which every
//! stage can import. Types and statuses are fixed, because clients depend on them.

use std::borrow::Cow;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use smallvec::SmallVec;

/// `Retry-After` for a condition that usually ends within a second.
pub(crate) const RETRY_SOON: Duration = Duration::from_secs(1);

/// `Retry-After` for a condition that lasts longer, or that an operator has to change.
pub(crate) const RETRY_LATER: Duration = Duration::from_secs(5);

/// End of the detail if the outcome is unknown and the route holds the idempotency key.
const HELD: &str = " The request may have been executed, so its idempotency key is held: a retry with the same key \
                    gets 409 idempotency-outcome-unknown. Query the API for the result before you use a new key.";

/// Usual number of headers of a rejection, including headers that later stages add.
pub(crate) const HEADER_CAPACITY: usize = 12;

/// Reason why a request is rejected. Boxed, because `Result`s that contain it are moved often.
#[derive(Clone, Debug)]
pub struct Problem(Box<ProblemFields>);

/// Fields of a problem.
#[derive(Clone, Debug)]
pub struct ProblemFields {
    /// Status of the response.
    pub status: StatusCode,
    /// Problem type, without the prefix `urn:tidegate:problem:`.
    pub kind: &'static str,
    /// Short summary, the same for all problems of one type.
    pub title: &'static str,
    /// What happened to this request, and what the client can do.
    pub detail: Cow<'static, str>,
    /// Whether and when a retry can succeed.
    pub retry: Retry,
    /// Whether the outcome of the idempotency key is unknown. Adds the member `outcome`.
    pub is_outcome_unknown: bool,
    /// Timeout that expired. Adds the member `timeout`.
    pub timeout: Option<TimeoutPhase>,
    /// Names of the limits that reject the request, longest wait first. Adds the member `violated-policies`.
    pub violated: SmallVec<[Arc<str>; 1]>,
    /// Response headers of this problem, such as `Allow` and `RateLimit`.
    pub headers: HeaderMap,
    /// Configured body that replaces the problem document.
    pub fallback: Option<Fallback>,
}

/// Whether a retry of a rejected request can succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Not known. The client applies its own retry policy.
    Unspecified,
    /// A retry can succeed after this time, which `Retry-After` contains in this format.
    After(Duration, RetryAfterForm),
    /// A retry gets the same response.
    Never,
}

/// Format of `Retry-After`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetryAfterForm {
    /// Number of whole seconds.
    #[default]
    Seconds,
    /// HTTP date.
    HttpDate,
}

/// Timeout of an upstream. Each phase has its own setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutPhase {
    /// Time to establish a connection, including TLS.
    Connect,
    /// Time from the last byte of the request to the head of the response.
    FirstByte,
    /// Time between two parts of a body, in either direction.
    Idle,
    /// Time for the complete exchange, including all attempts.
    Total,
}

/// Response body from the configuration that replaces the problem document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// Value of `Content-Type`.
    pub content_type: HeaderValue,
    /// Content of the body.
    pub body: Bytes,
}

impl Problem {
    /// Creates a problem. For 400, 413 and 422 a retry is ruled out, because the error is in the request itself.
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
        Self(Box::new(ProblemFields {
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

    /// Creates the problem of an invalid request.
    pub fn bad_request(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "bad-request",
            "Bad request",
            detail,
        )
    }

    /// Creates the problem of a request body that is longer than `limit` bytes.
    pub fn payload_too_large(limit: u64) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "payload-too-large",
            "Request body too large",
            format!(
                "The request body is larger than {limit} bytes, the maximum for this request. Send a smaller body."
            ),
        )
    }

    /// Creates the problem of a request for which the store, or other memory of the gateway, is not available.
    pub fn store_unavailable(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "store-unavailable",
            "Store unavailable",
            detail,
        )
        .retry_after(RETRY_LATER)
    }

    /// Creates the problem of a request for which upstream sent no complete and valid response. With `is_held`, its
    /// outcome is unknown and the route holds its idempotency key.
    pub fn upstream_unavailable(detail: &str, is_held: bool) -> Self {
        let (status, kind) = (StatusCode::BAD_GATEWAY, "upstream-unavailable");
        Self::without_response(status, kind, "Upstream unavailable", detail, is_held)
    }

    /// Creates the problem of a request whose upstream timed out. With `is_held`, its outcome is unknown and the route
    /// holds its idempotency key.
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
        problem.never_retry()
    }

    /// Declares that a retry can succeed after `wait`.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry = Retry::After(wait, RetryAfterForm::Seconds);
        self
    }

    /// Declares that a retry gets the same response.
    #[must_use]
    pub fn never_retry(mut self) -> Self {
        self.retry = Retry::Never;
        self
    }
}

impl Deref for Problem {
    type Target = ProblemFields;

    fn deref(&self) -> &ProblemFields {
        &self.0
    }
}

impl DerefMut for Problem {
    fn deref_mut(&mut self) -> &mut ProblemFields {
        &mut self.0
    }
}

impl TimeoutPhase {
    /// All phases, in the order of an exchange.
    pub const ALL: [Self; 4] = [Self::Connect, Self::FirstByte, Self::Idle, Self::Total];

    /// Returns the name of the phase in problem documents and log messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::FirstByte => "first-byte",
            Self::Idle => "idle",
            Self::Total => "total",
        }
    }
}
