//! `/idempotency`: shows the records of idempotency keys, and frees keys whose outcome is unknown.
//!
//! A key is looked up in every scope, because an operator who gets a key from a client does not know its scope. Stored
//! responses can contain secrets such as cookies, so they are shown only with `?body=true`.
//!
//! Freeing a key deletes its record, so the next request with the key executes. Only a key whose outcome is unknown can
//! be freed, because freeing any other key would allow a second execution. The store checks the state and deletes the
//! record in one atomic operation.

mod key_request;
mod view;

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::routing::get;
use axum::{Json, Router};

use self::key_request::KeyRequest;
use self::view::{KeyRecordView, KeyView, RecordStoreView};
use super::listener::AdminState;
use super::problem::AdminProblem;
use crate::idempotency::{self, KeyHash, RecordInfo, Records as _};

/// Limit of the records of a key that a response shows, and of the scopes that a problem lists. A common key, such as
/// `1`, can have a record in very many scopes.
const MAX_SHOWN: usize = 100;

/// Limit of the records of a key that a lookup counts.
const MAX_FOUND: usize = 10_000;

/// Limit of the stored bodies in one response, in bytes. The latest record is shown even if its body is larger.
const MAX_BODY_BYTES: usize = 16 << 20;

pub(super) fn routes() -> Router<Arc<AdminState>> {
    let key = || get(show_key).delete(free_key);
    Router::new()
        .route("/idempotency", get(show_counts))
        .route("/idempotency/keys/", key())
        .route("/idempotency/keys/{*key}", key())
}

async fn show_counts(
    State(admin): State<Arc<AdminState>>,
) -> Result<Json<RecordStoreView>, AdminProblem> {
    let counted = admin.records.count().await;
    let counts = counted.map_err(|error| AdminProblem::store_failed(&error))?;
    Ok(Json(counts.into()))
}

async fn show_key(
    State(admin): State<Arc<AdminState>>,
    uri: Uri,
) -> Result<Json<KeyView>, AdminProblem> {
    let request = KeyRequest::of(&uri)?;
    let found = find(&admin, &request, MAX_FOUND).await?;
    let mut records = Vec::new();
    let mut bytes = 0;
    for info in found.iter().take(MAX_SHOWN) {
        if !request.with_body {
            records.push(KeyRecordView::of(info));
            continue;
        }
        bytes += info.response.map_or(0, |response| response.body_bytes);
        if bytes > MAX_BODY_BYTES && !records.is_empty() {
            break;
        }
        let response = match info.response {
            None => Ok(None),
            Some(_) => admin.records.response(info.id).await,
        };
        let response = response.map_err(|error| AdminProblem::store_failed(&error))?;
        records.push(KeyRecordView::of(info).with(response.as_deref()));
    }
    let left_out = found.len() - records.len();
    Ok(Json(KeyView {
        key: request.key.as_str().to_owned(),
        records,
        left_out: (left_out > 0).then_some(left_out),
    }))
}

async fn free_key(
    State(admin): State<Arc<AdminState>>,
    uri: Uri,
) -> Result<StatusCode, AdminProblem> {
    let request = KeyRequest::of(&uri)?;
    let found = find(&admin, &request, MAX_SHOWN).await?;
    let [info] = &found[..] else {
        let scopes = found.iter().take(MAX_SHOWN).map(|info| info.id.scope);
        return Err(AdminProblem::several_scopes(scopes));
    };
    if info.state != idempotency::RecordState::Unknown {
        return Err(AdminProblem::not_unknown(info.state));
    }
    let freed = admin.records.free_unknown(info.id).await;
    if !freed.map_err(|error| AdminProblem::store_failed(&error))? {
        return Err(AdminProblem::plain(
            StatusCode::CONFLICT,
            "The record changed during the request, and the key was not freed. Look up the key again.",
        ));
    }
    // Logged as a string field, because every log format quotes and escapes strings.
    tracing::info!(
        key = request.key.as_str(),
        scope = %info.id.scope,
        "idempotency key with unknown outcome freed by operator"
    );
    Ok(StatusCode::NO_CONTENT)
}

/// Returns up to `max` records of the requested key, latest first, or a 404 problem if there are none.
async fn find(
    admin: &AdminState,
    request: &KeyRequest,
    max: usize,
) -> Result<Vec<RecordInfo>, AdminProblem> {
    let found = admin
        .records
        .find(
            KeyHash::of(&admin.hash_keys.keys().secret, &request.key),
            request.scope,
            max,
        )
        .await;
    let mut found = found.map_err(|error| AdminProblem::store_failed(&error))?;
    if found.is_empty() {
        let detail = match request.scope {
            None => "No record of this key exists. It was never used, was freed, or has expired.",
            Some(_) => "No record of this key exists in this scope.",
        };
        return Err(AdminProblem::plain(StatusCode::NOT_FOUND, detail));
    }
    found.sort_by_key(|info| info.age);
    Ok(found)
}
