//! What a route's keys mean: `idempotency` of a `[[route]]`.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderName, Method, StatusCode};

use super::claim::Terms;
use super::key::IDEMPOTENCY_KEY;

/// What a route's keys mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Whether a request must have a key.
    pub requirement: Requirement,
    /// The methods whose keys are looked at; others pass.
    pub methods: Vec<Method>,
    /// The header that contains the key.
    pub header: HeaderName,
    /// The top-level member of a JSON body that can contain the key instead.
    pub body_field: Option<Arc<str>>,
    /// Whose keys are told apart.
    pub scope: Scope,
    /// What the store is asked to hold to.
    pub terms: Terms,
    /// What happens to a duplicate while the first runs.
    pub in_flight: InFlightPolicy,
    /// What happens to an answer that is a server error.
    pub on_server_error: OnServerError,
    /// Statuses that mean "not executed" and release the key. `None`: 401, 403, 425, 429, and 408 or 503 with
    /// `Retry-After`.
    pub release_on: Option<Vec<StatusCode>>,
    /// The largest request that can have a key, in bytes.
    pub max_request: usize,
    /// The largest answer that is kept, in bytes.
    pub max_response: usize,
    /// Headers of the answer that are not kept.
    pub exclude_headers: Vec<HeaderName>,
}

/// Whether a request must have a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// It may.
    Optional,
    /// It must.
    Required,
}

/// Which callers have separate key spaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Callers with different `Authorization` headers; clients, if the header is absent. If the header is signed
    /// separately for each request: clients with different identities in it.
    Credential,
    /// All callers share one key space.
    Shared,
    /// Callers that differ in one of these; never empty.
    Parts(Box<[ScopePart]>),
}

impl Scope {
    /// Returns the headers that the scope is read from. `Cookie` is not among them: its lines are joined before anything is
    /// read from them.
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

/// A property that separates callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScopePart {
    /// The client's address.
    Client,
    /// The value of a request header; the client's address if the header is absent.
    Header(HeaderName),
    /// The value of a cookie; the client's address if the cookie is absent.
    Cookie(Box<str>),
}

/// What happens to a duplicate while the first runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlightPolicy {
    /// It waits for the first one's answer, this long at most.
    Wait(Duration),
    /// It is told to come back.
    Conflict,
}

/// What happens to an answer that is a server error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnServerError {
    /// It is kept like any other.
    Replay,
    /// It is not kept, and the next request runs again.
    Release,
}

/// What a request whose outcome is not known means for the next one of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnknown {
    /// It is refused: never a second execution.
    Hold,
    /// It runs: upstream understands the key itself.
    Release,
}

impl Default for Rule {
    fn default() -> Self {
        Self {
            requirement: Requirement::Optional,
            methods: vec![Method::POST, Method::PATCH],
            header: IDEMPOTENCY_KEY,
            body_field: None,
            scope: Scope::Credential,
            terms: Terms::default(),
            in_flight: InFlightPolicy::Wait(Duration::from_secs(10)),
            on_server_error: OnServerError::Replay,
            release_on: None,
            max_request: 1 << 20,
            max_response: 1 << 20,
            exclude_headers: Vec::new(),
        }
    }
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            ttl: Duration::from_hours(24),
            on_unknown: OnUnknown::Hold,
            max_keys_per_scope: NonZeroU32::new(100_000).expect("not zero"),
        }
    }
}
