//! Error responses of the admin listener, as problem documents (RFC 9457).
//!
//! [`crate::respond`] does not render them, because its formats, retry headers and CORS headers are only for API
//! clients. A status code that describes the problem alone has the type `about:blank` (RFC 9457, section 4.2.1).

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use crate::http::http1::Violation;
use crate::idempotency::{KeyError, RecordState, ScopeHash, StoreError};
use crate::respond::error_type;

/// Problem document (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ProblemView)]
pub(super) struct AdminProblem {
    r#type: String,
    title: &'static str,
    status: u16,
    detail: String,
    error: Box<ErrorView>,
    /// State of an idempotency record.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    state: Option<&'static str>,
    /// Scopes of an idempotency key.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    scopes: Option<Vec<String>>,
}

// All problem documents of the gateway have this member, for API client libraries that read it. A doc comment would
// become a part of the description of the API.
#[derive(Debug, Serialize, ToSchema)]
struct ErrorView {
    r#type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    code: Option<&'static str>,
    message: String,
}

impl AdminProblem {
    /// A problem of type `about:blank`.
    pub(super) fn plain(status: StatusCode, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Error");
        let mut problem = Self::of(status, "", title, detail.into());
        problem.r#type = "about:blank".into();
        problem.error.code = None;
        problem
    }

    fn of(status: StatusCode, code: &'static str, title: &'static str, detail: String) -> Self {
        Self {
            r#type: format!("urn:tidegate:problem:{code}"),
            title,
            status: status.as_u16(),
            error: Box::new(ErrorView {
                r#type: error_type(status),
                code: Some(code),
                message: format!("{title}: {detail}"),
            }),
            detail,
            state: None,
            scopes: None,
        }
    }

    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self::of(
            StatusCode::BAD_REQUEST,
            "bad-request",
            "Bad request",
            detail,
        )
    }

    pub(super) fn not_reloaded(why: String) -> Self {
        let status = StatusCode::UNPROCESSABLE_ENTITY;
        let title = "Configuration rejected";
        Self::of(status, "configuration-rejected", title, why)
    }

    pub(super) fn several_scopes(scopes: impl IntoIterator<Item = ScopeHash>) -> Self {
        let scopes = scopes.into_iter().map(|scope| scope.to_string());
        Self {
            scopes: Some(scopes.collect()),
            ..Self::bad_request(
                "Several scopes have a record of this idempotency key. Add ?scope=SCOPE to select one.",
            )
        }
    }

    /// The problem of a request to free a key whose record has another state than unknown.
    pub(super) fn not_unknown(state: RecordState) -> Self {
        let state_text = match state {
            RecordState::InProgress => "in progress",
            RecordState::Completed => "completed",
            RecordState::Unknown => "unknown",
            RecordState::Tombstone => "completed without a stored response",
        };
        let detail = format!(
            "The record of this key is {state_text}. Only a key whose outcome is unknown can be freed. Freeing this \
             key would allow a second execution."
        );
        Self {
            state: Some(state.name()),
            ..Self::plain(StatusCode::CONFLICT, detail)
        }
    }
}

impl From<Violation> for AdminProblem {
    fn from(violation: Violation) -> Self {
        let detail = format!("The request is invalid: {violation}.");
        Self::of(violation.status(), "bad-request", "Bad request", detail)
    }
}

impl From<QueryRejection> for AdminProblem {
    fn from(rejection: QueryRejection) -> Self {
        Self::bad_request(rejection.body_text())
    }
}

impl From<KeyError> for AdminProblem {
    fn from(error: KeyError) -> Self {
        let detail = format!(
            "The idempotency key in the path is invalid: {error}. A key has 1 to 255 visible ASCII characters, \
             optionally as a quoted string. Percent-encode characters that a path does not allow."
        );
        let title = "Idempotency key invalid";
        Self::of(
            StatusCode::BAD_REQUEST,
            "idempotency-key-invalid",
            title,
            detail,
        )
    }
}

impl From<StoreError> for AdminProblem {
    fn from(error: StoreError) -> Self {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let detail = format!("The operation of the store failed: {error}");
        Self::of(status, "store-unavailable", "Store unavailable", detail)
    }
}

impl IntoResponse for AdminProblem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).expect("the problem was made of a status");
        let kind = HeaderValue::from_static("application/problem+json");
        (status, [(CONTENT_TYPE, kind)], Json(self)).into_response()
    }
}
