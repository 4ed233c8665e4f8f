//! Settings of idempotency keys on a route: the table `idempotency` of a `[[route]]` in the configuration.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderName, Method, StatusCode};

use super::claim::RecordSettings;
use super::key::IDEMPOTENCY_KEY;
use crate::request::context::{KeyFunction, Resend};

/// Settings that a route applies to requests with an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRule {
    /// Whether a request must have an idempotency key.
    pub requirement: Requirement,
    /// Methods to which these settings apply. Requests with other methods are forwarded with their idempotency key, but
    /// without any check.
    pub methods: Vec<Method>,
    /// Header that contains the idempotency key.
    pub header: HeaderName,
    /// Top-level member of a JSON body that can contain the idempotency key; `None` if only the header is read.
    pub body_field: Option<Arc<str>>,
    /// Property of a request by which idempotency keys of different callers are kept apart.
    pub scope: Scope,
    /// Settings that the idempotency store applies to the records of the route.
    pub settings: RecordSettings,
    /// What the gateway does with a duplicate request while the first request is in flight.
    pub in_flight: InFlightPolicy,
    /// What the gateway does with a response that has a server error status.
    pub on_server_error: OnServerError,
    /// Statuses that mean "not executed" and release the idempotency key. `None` stands for the default list: 401, 403,
    /// 425, 429, and 408 or 503 with `Retry-After`.
    pub release_on: Option<Vec<StatusCode>>,
    /// Maximum length of the body of a request with an idempotency key, in bytes. A longer body is rejected with 413.
    pub max_request: usize,
    /// Maximum length of the body of a response that is stored, in bytes. A longer response is forwarded and not
    /// stored.
    pub max_response: usize,
    /// Names of response headers that are not stored, so a replay does not contain them.
    pub exclude_headers: Vec<HeaderName>,
}

/// Whether a request on a route must have an idempotency key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// The idempotency key is optional. A request without a key is forwarded without a check for duplicates.
    Optional,
    /// A request without an idempotency key is rejected with 400.
    Required,
}

/// Property of a request that separates callers: two callers can use the same idempotency key independently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Callers are separated by the value of `Authorization`, or by the client address if the header is absent. For an
    /// `Authorization` header that is signed separately for each request, the client address and the identity in the
    /// header are used.
    Credential,
    /// Callers are not separated: the same idempotency key means the same request for all callers.
    Shared,
    /// Callers are separated by these properties together. The list is never empty.
    Parts(Box<[ScopePart]>),
    /// Callers are separated by the name that a function of an embedding application returns. If it returns none, this
    /// is [`Credential`](Self::Credential). The gateway has no such scopes.
    Function(KeyFunction),
}

impl Scope {
    /// Creates a scope that separates callers by the name that `function` returns, for example by the authenticated
    /// user. Two callers of one rule with the same name get each other's responses, so the name must identify one
    /// caller. Equal names in different rules are different scopes. If `function` returns `None` or an empty name, the
    /// scope is [`Credential`](Self::Credential), which all rules share.
    ///
    /// Only the layers of the module `embed` can apply such a scope.
    pub fn by(function: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        Self::Function(KeyFunction::new(function))
    }

    /// Returns the request headers that are part of the scope, except `Cookie`. The gateway rejects a request that has
    /// several lines of such a header. `Cookie` is left out, because several `Cookie` lines are valid and are joined
    /// before this check.
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

/// Single property of a request that is part of the scope of its idempotency key. Equal keys in different scopes are
/// different keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScopePart {
    /// Callers are separated by client address.
    Client,
    /// Callers are separated by the value of a request header, or by client address if the header is absent.
    Header(HeaderName),
    /// Callers are separated by the value of a cookie, or by client address if the cookie is absent.
    Cookie(Box<str>),
}

/// Action on a duplicate request that arrives while the first request with the same idempotency key is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlightPolicy {
    /// The duplicate request waits for the response to the first request, at most for this duration.
    Wait(Duration),
    /// The duplicate request is rejected with 409 and `Retry-After`.
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
    /// Returns the rule for a request that is executed under a claim, or without one.
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
