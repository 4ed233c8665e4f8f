//! Problem documents of the admin listener.
//!
//! They are not rendered by [`crate::respond`]: its forms, hints, extra headers and CORS are for clients, not for an
//! operator's tools. A problem has the type of the gateway that fits, or `about:blank` if the status is sufficient
//! (RFC 9457, section 4.2.1). The `error` member is the same in both.

use axum::Json;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::idempotency::{KeyError, RecordState, ScopeHash, StoreError};
use crate::respond::error_type;

/// Why the admin listener rejects a request.
#[derive(Debug, Serialize)]
pub(super) struct Problem {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    #[serde(serialize_with = "number")]
    status: StatusCode,
    detail: String,
    #[serde(flatten)]
    more: Option<More>,
}

/// A problem as its document.
#[derive(Serialize)]
struct Document<'p> {
    #[serde(flatten)]
    problem: &'p Problem,
    error: ErrorMember<'p>,
}

/// The `error` member that all problem documents of the gateway have, for SDKs.
#[derive(Serialize)]
struct ErrorMember<'p> {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<&'p str>,
    message: String,
}

/// What a program can go on with.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum More {
    State(&'static str),
    Scopes(Vec<String>),
}

impl Problem {
    /// One whose status says it all.
    pub(super) fn plain(status: StatusCode, detail: impl Into<String>) -> Self {
        Self {
            kind: "about:blank",
            title: status.canonical_reason().unwrap_or("Error"),
            status,
            detail: detail.into(),
            more: None,
        }
    }

    /// The request cannot be understood.
    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self {
            kind: "urn:tidegate:problem:bad-request",
            title: "Bad request",
            ..Self::plain(StatusCode::BAD_REQUEST, detail)
        }
    }

    /// What stands for a key is none.
    pub(super) fn key_invalid(error: KeyError) -> Self {
        Self {
            kind: "urn:tidegate:problem:idempotency-key-invalid",
            title: "Idempotency key invalid",
            ..Self::bad_request(format!(
                "The idempotency key in the path cannot be used: {error}. It is 1 to 255 visible ASCII \
                 characters, bare or as a quoted string, percent-encoded where a path needs it."
            ))
        }
    }

    /// The key belongs to several, and it was not said whose is meant.
    pub(super) fn several_scopes(scopes: impl IntoIterator<Item = ScopeHash>) -> Self {
        let scopes = scopes.into_iter().map(|scope| scope.to_string());
        Self {
            more: Some(More::Scopes(scopes.collect())),
            ..Self::bad_request("Several scopes have this key. Name the one you mean: ?scope=SCOPE")
        }
    }

    /// The record is not in the state it would have to be in.
    pub(super) fn not_unknown(state: RecordState) -> Self {
        let is = match state {
            RecordState::InProgress => "in progress",
            RecordState::Completed => "completed",
            RecordState::Unknown => "unknown",
            RecordState::Tombstone => "completed without its answer",
        };
        Self {
            more: Some(More::State(state.name())),
            ..Self::plain(
                StatusCode::CONFLICT,
                format!(
                    "The record is {is}. Only a key whose outcome is unknown can be freed: what was, or is \
                     being, carried out would be carried out again."
                ),
            )
        }
    }

    /// The store cannot do it.
    pub(super) fn store_failed(error: &StoreError) -> Self {
        Self {
            kind: "urn:tidegate:problem:store-unavailable",
            title: "Store unavailable",
            ..Self::plain(
                StatusCode::SERVICE_UNAVAILABLE,
                format!("The store failed: {error}"),
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

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let kind = HeaderValue::from_static("application/problem+json");
        let document = Document {
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
