//! What the admin listener says when it will not do what it is asked: a problem document.
//!
//! Not one of [`crate::respond`]: those are told to clients in whatever form they prefer, with the headers
//! and the CORS the configuration gives them, and none of that is for an operator's tools. The types are
//! the gateway's where one fits; where the status says it all, it is `about:blank` (RFC 9457, section
//! 4.2.1).

use axum::Json;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::idempotency::{KeyError, ScopeHash, State, StoreError};

/// Why something was not done.
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
    pub(super) fn not_unknown(state: State) -> Self {
        let is = match state {
            State::InProgress => "in progress",
            State::Completed => "completed",
            State::Unknown => "unknown",
            State::Tombstone => "completed without its answer",
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
        (self.status, [(CONTENT_TYPE, kind)], Json(self)).into_response()
    }
}
