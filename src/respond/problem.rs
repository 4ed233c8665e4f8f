//! Reason why the gateway rejects a request, in the form of a problem document (RFC 9457).
//!
//! Each stage converts its errors into a [`Problem`], next to the error type. Problems of several stages are created
//! here. Types and statuses are fixed, because clients depend on them.

use std::borrow::Cow;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::ALLOW;
use http::{HeaderMap, HeaderValue, StatusCode};
use smallvec::SmallVec;

/// For a condition that usually ends within a second, such as a request in flight.
pub(crate) const RETRY_SOON: Duration = Duration::from_secs(1);

/// For a condition that usually lasts longer than a second, or that an operator has to change, such as a full store.
pub(crate) const RETRY_LATER: Duration = Duration::from_secs(5);

/// For a route with `on_unknown = "hold"`.
const HELD: &str = " The request may have been executed. A retry with the same key does not execute it again and gets \
                    409 idempotency-outcome-unknown. Query the API for the result before you use a new key.";

/// Headers of a usual rejection, including those that later stages add.
pub(crate) const HEADER_CAPACITY: usize = 12;

/// Reason why the gateway rejects a request. Boxed, because functions often move a `Result` that contains it.
#[derive(Clone, Debug)]
pub struct Problem(Box<ProblemFields>);

/// Fields of a [`Problem`].
#[derive(Clone, Debug)]
pub struct ProblemFields {
    /// Status of the response.
    pub status: StatusCode,
    /// Last part of the problem type, after the prefix `urn:tidegate:problem:`.
    pub kind: &'static str,
    /// Short summary, the same for all problems of one type.
    pub title: &'static str,
    /// What happened to this request, and what the client can do.
    pub detail: Cow<'static, str>,
    /// Whether and when a retry can succeed.
    pub retry: Retry,
    /// Whether the request may have been executed (member `outcome`).
    pub is_outcome_unknown: bool,
    /// Timeout that expired (member `timeout`).
    pub timeout: Option<TimeoutPhase>,
    /// Limits that reject the request, longest wait first (member `violated-policies`).
    pub violated: SmallVec<[Arc<str>; 1]>,
    /// Additional response headers, such as `Allow`.
    pub headers: HeaderMap,
    /// HTTP/2 cannot express the response, so the stream is reset with `HTTP_1_1_REQUIRED`.
    pub requires_http1: bool,
    /// Configured body that replaces the problem document.
    pub fallback: Option<Fallback>,
}

/// Whether a retry of a rejected request can succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Unknown, so the client applies its own retry policy.
    Unspecified,
    /// After this wait, which the response states as `Retry-After`.
    After(Duration, RetryAfterForm),
    /// No: a retry gets the same response.
    Never,
}

/// Format of the `Retry-After` header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "gateway",
    derive(serde::Deserialize, schemars::JsonSchema),
    serde(rename_all = "kebab-case")
)]
pub enum RetryAfterForm {
    /// Number of whole seconds.
    #[default]
    Seconds,
    /// HTTP date.
    HttpDate,
}

/// Timeout of a phase of a request to an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutPhase {
    /// `connect_timeout`, including the TLS handshake.
    Connect,
    /// `first_byte_timeout`, from the last byte of the request to the head of the response.
    FirstByte,
    /// `idle_timeout`, between two parts of a body.
    Idle,
    /// `timeout`, from the start of the first attempt to the end of the response.
    Total,
}

/// Response body that replaces the problem document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// Value of `Content-Type`.
    pub content_type: HeaderValue,
    /// The body.
    pub body: Bytes,
}

impl Problem {
    /// Creates a problem. The statuses 400, 413 and 422 rule out a retry, because the error is in the request itself.
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
            requires_http1: false,
            fallback: None,
        }))
    }

    /// Creates the problem for an invalid request, with status 400.
    pub fn bad_request(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(
            StatusCode::BAD_REQUEST,
            "bad-request",
            "Bad request",
            detail,
        )
    }

    /// Creates the problem with status 405. `allow` lists the methods that are forwarded.
    pub fn method_not_allowed(detail: impl Into<Cow<'static, str>>, allow: HeaderValue) -> Self {
        let mut problem = Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method-not-allowed",
            "Method not allowed",
            detail,
        );
        problem.headers.insert(ALLOW, allow);
        problem
    }

    /// Creates the problem of a body that is longer than `limit` bytes, with status 413.
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

    /// Creates the problem of an unavailable store or a reached memory bound, with status 503.
    pub fn store_unavailable(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "store-unavailable",
            "Store unavailable",
            detail,
        )
        .retry_after(RETRY_LATER)
    }

    /// Creates the problem of a missing or invalid response, with status 502. `is_held`: a retry with the same key is
    /// rejected, because the outcome is unknown.
    pub fn upstream_unavailable(detail: &str, is_held: bool) -> Self {
        let (status, kind) = (StatusCode::BAD_GATEWAY, "upstream-unavailable");
        Self::without_response(status, kind, "Upstream unavailable", detail, is_held)
    }

    /// Creates the problem of a late response, with status 504. `is_held` as for
    /// [`upstream_unavailable`](Self::upstream_unavailable).
    pub fn upstream_timeout(phase: TimeoutPhase, detail: &str, is_held: bool) -> Self {
        let (status, kind) = (StatusCode::GATEWAY_TIMEOUT, "upstream-timeout");
        let mut problem =
            Self::without_response(status, kind, "Upstream timed out", detail, is_held);
        problem.timeout = Some(phase);
        problem
    }

    /// Creates the problem of an HTTP/2 request to a server that authenticates the connection of a client.
    pub fn http1_required() -> Self {
        let mut problem = Self::new(
            StatusCode::UNAUTHORIZED,
            "http1-required",
            "HTTP/1.1 required",
            "The server authenticates connections with NTLM, Negotiate or Kerberos. Use HTTP/1.1.",
        );
        problem.requires_http1 = true;
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

    /// Sets the wait in `Retry-After`, in seconds.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry = Retry::After(wait, RetryAfterForm::Seconds);
        self
    }

    /// States that a retry gets the same response.
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
    /// In the order in which a request passes them.
    pub const ALL: [Self; 4] = [Self::Connect, Self::FirstByte, Self::Idle, Self::Total];

    /// Returns the name in problem documents and log messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::FirstByte => "first-byte",
            Self::Idle => "idle",
            Self::Total => "total",
        }
    }
}
