//! The table `idempotency` of a `[[route]]` in the configuration.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderName, Method, StatusCode};

use super::claim::RecordSettings;
use super::key::IDEMPOTENCY_KEY;
use crate::request::context::{KeyFunction, Resend};

/// Settings of the keys of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRule {
    /// Whether a request must have a key.
    pub requirement: Requirement,
    /// Methods of requests with keys. Others are forwarded without any check.
    pub methods: Vec<Method>,
    /// Header with the key.
    pub header: HeaderName,
    /// Top-level member of a JSON body that can contain the key.
    pub body_field: Option<Arc<str>>,
    /// Property of a request by which the keys of different callers are kept apart.
    pub scope: Scope,
    /// How long a record is kept, whether a key with an unknown outcome can be claimed again, and the maximum number of
    /// keys per scope.
    pub settings: RecordSettings,
    /// What happens to a duplicate while the first request is in flight.
    pub in_flight: InFlightPolicy,
    /// What happens to a response with status 5xx or 408, unless `release_on` releases the key.
    pub on_server_error: OnServerError,
    /// Statuses that release the key. Default: 401, 403, 425, 429, and 408 or 503 with `Retry-After`.
    pub release_on: Option<Vec<StatusCode>>,
    /// Maximum length of a request body in bytes. A longer one gets 413.
    pub max_request: usize,
    /// Maximum length of a stored response body in bytes. A longer one is forwarded and not stored.
    pub max_response: usize,
    /// Response headers that are not stored.
    pub exclude_headers: Vec<HeaderName>,
}

/// Whether a request must have a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// A request without a key is forwarded.
    Optional,
    /// A request without a key gets 400.
    Required,
}

/// Property of a request that separates callers, who can then use equal keys independently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The value of `Authorization`, or the client address if it is absent. If it is signed for each request, the
    /// client address and the identity in it.
    Credential,
    /// One key space for all callers.
    Shared,
    /// These properties together; never empty.
    Parts(Box<[ScopePart]>),
    /// The name that a function of an embedding application returns, or [`Credential`](Self::Credential) if it returns
    /// none.
    Function(KeyFunction),
}

impl Scope {
    /// Creates a scope that separates callers by the name that `function` returns, for example the authenticated user.
    /// Callers of one rule with the same name get each other's responses. Without a name, the scope is
    /// [`Credential`](Self::Credential), which all rules share. Only the layers of the module `embed` can apply it.
    pub fn by(function: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self::Function(KeyFunction::new(function))
    }

    /// Returns the headers of which a request must not have several lines. Several `Cookie` lines are valid.
    pub fn headers(&self) -> impl Iterator<Item = &HeaderName> {
        let parts = match self {
            Self::Parts(parts) => &**parts,
            Self::Credential | Self::Shared | Self::Function(_) => &[],
        };
        let by_credential = matches!(self, Self::Credential | Self::Function(_));
        let credential = by_credential.then_some(&AUTHORIZATION);
        let headers = parts.iter().filter_map(|part| match part {
            ScopePart::Header(name) => Some(name),
            ScopePart::Cookie(_) | ScopePart::Client => None,
        });
        credential.into_iter().chain(headers)
    }
}

/// Property in a [`Scope`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScopePart {
    /// The client address.
    Client,
    /// The value of a header, or the client address if it is absent.
    Header(HeaderName),
    /// The value of a cookie, or the client address if it is absent.
    Cookie(Box<str>),
}

/// Action on a duplicate while the first request is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlightPolicy {
    /// It waits for the response, at most for this time.
    Wait(Duration),
    /// It gets 409 with `Retry-After`.
    Conflict,
}

/// What happens to a response of the upstream with status 5xx or 408.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "gateway",
    derive(serde::Deserialize, schemars::JsonSchema),
    serde(rename_all = "lowercase")
)]
pub enum OnServerError {
    /// The response is stored and replayed.
    Replay,
    /// The response is not stored, so the next request with the same idempotency key is executed.
    Release,
}

/// What happens to the next request with the same idempotency key if the outcome of the first request is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "gateway",
    derive(serde::Deserialize, schemars::JsonSchema),
    serde(rename_all = "lowercase")
)]
pub enum OnUnknown {
    /// The request gets 409. It is never executed a second time.
    Hold,
    /// The request is executed, possibly a second time. The upstream must detect this with the idempotency key.
    Release,
}

impl Resend {
    pub(crate) fn under(claim: Option<OnUnknown>) -> Self {
        match claim {
            None => Self::ByMethod,
            Some(OnUnknown::Hold) => Self::Never,
            Some(OnUnknown::Release) => Self::Always,
        }
    }
}

impl Default for KeyRule {
    fn default() -> Self {
        Self {
            requirement: Requirement::Optional,
            methods: vec![Method::POST, Method::PATCH],
            header: IDEMPOTENCY_KEY,
            body_field: None,
            scope: Scope::Credential,
            settings: RecordSettings::default(),
            in_flight: InFlightPolicy::Wait(Duration::from_secs(10)),
            on_server_error: OnServerError::Replay,
            release_on: None,
            max_request: 1 << 20,
            max_response: 1 << 20,
            exclude_headers: Vec::new(),
        }
    }
}

impl Default for RecordSettings {
    fn default() -> Self {
        Self {
            ttl: Duration::from_hours(24),
            on_unknown: OnUnknown::Hold,
            max_keys_per_scope: NonZeroU32::MAX,
        }
    }
}
