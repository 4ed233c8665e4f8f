//! Error responses of the admin listener, as problem documents (RFC 9457).
//!
//! [`crate::respond`] does not render these documents, because its output formats, retry headers and CORS headers are
//! only for API clients. The type of a problem is defined by the gateway, or it is `about:blank` if the status code
//! alone describes the problem (RFC 9457, section 4.2.1). The `error` member has the same form as in responses to API
//! clients.

use axum::Json;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::http1::Violation;
use crate::idempotency::{KeyError, RecordState, ScopeHash, StoreError};
use crate::respond::error_type;

/// An error response of the admin listener.
#[derive(Debug, Serialize)]
pub(super) struct AdminProblem {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    #[serde(serialize_with = "number")]
    status: StatusCode,
    detail: String,
    #[serde(flatten)]
    more: Option<ProblemExtension>,
}

/// JSON form of an [`AdminProblem`], with the additional member `error`.
#[derive(Serialize)]
struct ProblemDocument<'p> {
    #[serde(flatten)]
    problem: &'p AdminProblem,
    error: ErrorMember<'p>,
}

/// Problem document (RFC 9457).
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes the JSON of a problem document")]
pub(super) struct ProblemView {
    r#type: String,
    title: String,
    status: u16,
    detail: String,
    error: ErrorView,
    /// State of an idempotency record.
    #[schema(required = false)]
    state: Option<String>,
    /// Scopes of an idempotency key.
    #[schema(required = false)]
    scopes: Option<Vec<String>>,
}

#[derive(ToSchema)]
#[expect(dead_code, reason = "describes the JSON of a problem document")]
struct ErrorView {
    r#type: String,
    #[schema(required = false)]
    code: Option<String>,
    message: String,
}

/// The member `error`. All problem documents of the gateway have this member, for API client libraries that read it.
#[derive(Serialize)]
struct ErrorMember<'p> {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'p str>,
    message: String,
}

/// Extension member of a problem document, with data that a program needs to correct its request.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum ProblemExtension {
    State(&'static str),
    Scopes(Vec<String>),
}

impl AdminProblem {
    /// Creates a problem of type `about:blank`, whose title is the reason phrase of the status.
    pub(super) fn plain(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status,
            detail: detail.into(),
            more: None,
        }
    }

    /// Creates the problem of a malformed admin request, with status 400.
    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self {
            kind: "urn:tidegate:problem:bad-request",
            title: "Bad request",
            ..Self::plain(StatusCode::BAD_REQUEST, detail)
        }
    }

    /// Creates the problem of a configuration that was not put in force, with status 422.
    pub(super) fn not_reloaded(why: String) -> Self {
        Self {
            kind: "urn:tidegate:problem:configuration-rejected",
            title: "Configuration rejected",
            ..Self::plain(StatusCode::UNPROCESSABLE_ENTITY, why)
        }
    }

    /// Creates the problem of a request that the HTTP/1 server rejects.
    pub(super) fn violation(violation: Violation) -> Self {
        let status = violation.status();
        Self {
            status,
            ..Self::bad_request(format!("The request is invalid: {violation}."))
        }
    }

    /// Creates the problem of an admin request whose path contains an invalid idempotency key, with status 400.
    pub(super) fn key_invalid(error: KeyError) -> Self {
        Self {
            kind: "urn:tidegate:problem:idempotency-key-invalid",
            title: "Idempotency key invalid",
            ..Self::bad_request(format!(
                "The idempotency key in the path is invalid: {error}. A key has 1 to 255 visible ASCII characters, \
                 optionally as a quoted string. Percent-encode characters that a path does not allow."
            ))
        }
    }

    /// Creates the problem of a request that must select one of several `scopes`, with status 400.
    pub(super) fn several_scopes(scopes: impl IntoIterator<Item = ScopeHash>) -> Self {
        let scopes = scopes.into_iter().map(|scope| scope.to_string());
        Self {
            more: Some(ProblemExtension::Scopes(scopes.collect())),
            ..Self::bad_request(
                "Several scopes have a record of this idempotency key. Add ?scope=SCOPE to select one.",
            )
        }
    }

    /// Creates the problem of a request to delete a record whose state is not `unknown`, with status 409. `state` is
    /// the state of the record.
    pub(super) fn not_unknown(state: RecordState) -> Self {
        let state_text = match state {
            RecordState::InProgress => "in progress",
            RecordState::Completed => "completed",
            RecordState::Unknown => "unknown",
            RecordState::Tombstone => "completed without a stored response",
        };
        Self {
            more: Some(ProblemExtension::State(state.name())),
            ..Self::plain(
                StatusCode::CONFLICT,
                format!(
                    "The record of this key is {state_text}. Only a key whose outcome is unknown can be freed. \
                     Freeing this key would allow a second execution."
                ),
            )
        }
    }

    /// Creates the problem of a failed operation of the store, with status 503.
    pub(super) fn store_failed(error: &StoreError) -> Self {
        Self {
            kind: "urn:tidegate:problem:store-unavailable",
            title: "Store unavailable",
            ..Self::plain(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("The operation of the store failed: {error}"),
            )
        }
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

impl IntoResponse for AdminProblem {
    fn into_response(self) -> Response {
        let kind = HeaderValue::from_static("application/problem+json");
        let document = ProblemDocument {
            error: ErrorMember {
                kind: error_type(self.status),
                code: self.kind.strip_prefix("urn:tidegate:problem:"),
                message: format!("{}: {}", self.title, self.detail),
            },
            problem: &self,
        };
        (self.status, [(CONTENT_TYPE, kind)], Json(document)).into_response()
    }
}
