//! Records of idempotency keys, and the deletion of records whose outcome is unknown.
//!
//! A key is looked up in every scope, because an operator who gets a key from a client does not know its scope. Stored
//! responses can contain secrets such as cookies, so they are shown only with `?body=true`.
//!
//! Only a key whose outcome is unknown can be freed: freeing any other would allow a second execution. The store checks
//! the state and deletes the record in one atomic operation.

mod key_request;
pub(super) mod view;

use std::sync::Arc;

use axum::Json;
use axum::http::{StatusCode, Uri};
use axum::routing::get;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::key_request::KeyRequest;
use self::view::{KeyRecordView, KeyView, RecordStoreView};
use super::listener::{AdminState, Running};
use super::problem::AdminProblem;
use crate::idempotency::{self, KeyHash, RecordInfo, Records as _};
use crate::pipeline::GatewayState;

/// Of records in a response, and of scopes in a problem document: a common key, such as `1`, can have a record in each
/// of thousands of scopes.
const MAX_SHOWN: usize = 100;

/// Maximum number of records that a lookup reads. Further ones are not counted.
const MAX_FOUND: usize = 10_000;

/// Maximum size of all stored bodies in a response, in bytes. The latest record is shown even if its body is larger.
const MAX_BODY_BYTES: usize = 16 << 20;

pub(super) fn routes() -> OpenApiRouter<Arc<AdminState>> {
    OpenApiRouter::new()
        .routes(routes!(show_counts))
        .routes(routes!(show_key, free_key))
        // Without a key, the request gets the problem of an invalid key.
        .route(
            "/admin/v1/idempotency/keys/",
            get(show_key).delete(free_key),
        )
}

/// Counts the idempotency records by state
#[utoipa::path(get, path = "/admin/v1/idempotency", responses((status = 200, body = RecordStoreView)))]
async fn show_counts(Running(gateway): Running) -> Result<Json<RecordStoreView>, AdminProblem> {
    let counts = gateway.store.records.count().await?;
    Ok(Json(counts.into()))
}

/// Shows the records of an idempotency key
#[utoipa::path(
    get,
    path = "/admin/v1/idempotency/keys/{*key}",
    params(
        ("key" = String, Path),
        ("scope" = Option<String>, Query, pattern = "^[0-9A-Fa-f]{32}$", description = "One scope only"),
        ("body" = Option<bool>, Query, description = "Whether to show the stored responses")
    ),
    responses((status = 200, body = KeyView))
)]
async fn show_key(Running(gateway): Running, uri: Uri) -> Result<Json<KeyView>, AdminProblem> {
    let request = KeyRequest::of(&uri)?;
    let found = find(&gateway, &request, MAX_FOUND).await?;
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
            None => None,
            Some(_) => gateway.store.records.response(info.id).await?,
        };
        records.push(KeyRecordView::of(info).with(response.as_deref()));
    }
    let left_out = found.len() - records.len();
    Ok(Json(KeyView {
        key: request.key.as_str().to_owned(),
        records,
        left_out: (left_out > 0).then_some(left_out),
    }))
}

/// Frees an idempotency key whose outcome is unknown
#[utoipa::path(
    delete,
    path = "/admin/v1/idempotency/keys/{*key}",
    params(
        ("key" = String, Path),
        ("scope" = Option<String>, Query, pattern = "^[0-9A-Fa-f]{32}$", description = "Scope of the key")
    ),
    responses((status = 204))
)]
async fn free_key(Running(gateway): Running, uri: Uri) -> Result<StatusCode, AdminProblem> {
    let request = KeyRequest::of(&uri)?;
    let found = find(&gateway, &request, MAX_SHOWN).await?;
    let [info] = &found[..] else {
        let scopes = found.iter().take(MAX_SHOWN).map(|info| info.id.scope);
        return Err(AdminProblem::several_scopes(scopes));
    };
    if info.state != idempotency::RecordState::Unknown {
        return Err(AdminProblem::not_unknown(info.state));
    }
    if !gateway.store.records.free_unknown(info.id).await? {
        return Err(AdminProblem::plain(
            StatusCode::CONFLICT,
            "The key was not freed, because its record changed during this request. Look up the key again.",
        ));
    }
    // Log formats quote and escape a string field, but not the message.
    tracing::info!(
        key = request.key.as_str(),
        scope = %info.id.scope,
        "operator freed idempotency key whose outcome was unknown, next request with this key is executed"
    );
    Ok(StatusCode::NO_CONTENT)
}

/// Returns up to `max` records of a key, latest first, or a 404 problem.
async fn find(
    gateway: &GatewayState,
    request: &KeyRequest,
    max: usize,
) -> Result<Vec<RecordInfo>, AdminProblem> {
    let store = &gateway.store;
    let key = KeyHash::of(&store.hash_keys.keys().secret, &request.key);
    let mut found = store.records.find(key, request.scope, max).await?;
    if found.is_empty() {
        let detail = match request.scope {
            None => {
                "No record of this idempotency key exists. The key was never used, was freed, or has expired."
            }
            Some(_) => {
                "No record of this idempotency key exists in this scope. Omit `scope` to search all scopes."
            }
        };
        return Err(AdminProblem::plain(StatusCode::NOT_FOUND, detail));
    }
    found.sort_by_key(|info| info.age);
    Ok(found)
}
