//! Settings of idempotency keys on a route: `idempotency` of a `[[route]]`.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderName, Method, StatusCode};

use super::claim::RecordSettings;
use super::key::IDEMPOTENCY_KEY;

/// Settings of idempotency keys on a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRule {
    /// Whether a request must have a key.
    pub requirement: Requirement,
    /// Methods to which the rule applies. Requests with other methods are forwarded with their key.
    pub methods: Vec<Method>,
    /// Header that contains the key.
    pub header: HeaderName,
    /// Top-level member of a JSON body that can contain the key.
    pub body_field: Option<Arc<str>>,
    /// Property that separates the key spaces of callers.
    pub scope: Scope,
    /// Settings that the store applies to records.
    pub settings: RecordSettings,
    /// Action on a duplicate request while the first is in flight.
    pub in_flight: InFlightPolicy,
    /// Action on a response with a server error.
    pub on_server_error: OnServerError,
    /// Statuses that mean "not executed" and release the key. `None`: 401, 403, 425, 429, and 408 or 503 with
    /// `Retry-After`.
    pub release_on: Option<Vec<StatusCode>>,
    /// Maximum length of the body of a request with a key, in bytes.
    pub max_request: usize,
    /// Maximum length of the body of a response that is stored, in bytes.
    pub max_response: usize,
    /// Response headers that are not stored.
    pub exclude_headers: Vec<HeaderName>,
}

/// Whether a request must have a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// A request can have a key.
    Optional,
    /// A request without a key is rejected.
    Required,
}

/// Property that separates the key spaces of callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Value of `Authorization`, or the client address if the header is absent. If the header is signed separately for
    /// each request: the client address and the identity in the header.
    Credential,
    /// All callers share one key space.
    Shared,
    /// These properties together; never empty.
    Parts(Box<[ScopePart]>),
}

impl Scope {
    /// Returns the headers of the scope, except `Cookie`. The caller checks that each header has one line, and several
    /// lines of `Cookie` are joined before that.
    pub fn headers(&self) -> impl Iterator<Item = &HeaderName> {
        let parts = match self {
            Self::Parts(parts) => &**parts,
            Self::Credential | Self::Shared => &[],
        };
        let credential = matches!(self, Self::Credential).then_some(&AUTHORIZATION);
        let headers = parts.iter().filter_map(|part| match part {
            ScopePart::Header(name) => Some(name),
            ScopePart::Cookie(_) | ScopePart::Client => None,
        });
        credential.into_iter().chain(headers)
    }
}

/// Single property that separates callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScopePart {
    /// Address of the client.
    Client,
    /// Value of a request header, or the client address if the header is absent.
    Header(HeaderName),
    /// Value of a cookie, or the client address if the cookie is absent.
    Cookie(Box<str>),
}

/// Action on a duplicate request while the first is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlightPolicy {
    /// The duplicate waits for the response to the first request, up to this time.
    Wait(Duration),
    /// The duplicate gets 409 with `Retry-After`.
    Conflict,
}

/// Action on a response with a server error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnServerError {
    /// The response is stored and replayed.
    Replay,
    /// The response is not stored, and the key is released: the next request with the key is executed.
    Release,
}

/// Action on a request whose key has an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnknown {
    /// The request is rejected, so it is never executed twice.
    Hold,
    /// The request is executed. The upstream must handle the key.
    Release,
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
            max_keys_per_scope: NonZeroU32::new(100_000).expect("not zero"),
        }
    }
}
