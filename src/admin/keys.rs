//! What is kept of idempotency keys: looked at, and freed where nobody knows what became of them.
//!
//! An operator is told a key by a client and does not know whose it is to the gateway, so keys are looked
//! up in every scope. Answers hold what their callers were meant to see alone, cookies among it, and are
//! shown only where they are asked for.
//!
//! A key is freed only while its outcome is unknown; that is the store's to say, in the moment it is
//! freed. Freeing any other would have a request carried out twice.

mod asked;
mod view;

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::routing::get;
use axum::{Json, Router};

use self::asked::Asked;
use self::view::{Found, Overview, Record};
use super::listener::AdminState;
use super::problem::Problem;
use crate::idempotency::{self, KeyHash, RecordInfo, Records as _};

/// Records shown of one key, and scopes named: a key that everybody uses has very many.
const MOST: usize = 100;

/// Records counted for one lookup.
const MOST_FOUND: usize = 10_000;

/// Bytes of bodies in one lookup. The latest record is shown whatever its size.
const MOST_BODY_BYTES: usize = 16 << 20;

/// Where these are asked for.
pub(super) fn routes() -> Router<Arc<AdminState>> {
    let key = || get(look_up).delete(free);
    Router::new()
        .route("/idempotency", get(overview))
        .route("/idempotency/keys/", key())
        .route("/idempotency/keys/{*key}", key())
}

async fn overview(State(admin): State<Arc<AdminState>>) -> Result<Json<Overview>, Problem> {
    let counted = admin.records.count().await;
    let counts = counted.map_err(|error| Problem::store_failed(&error))?;
    Ok(Json(counts.into()))
}

async fn look_up(State(admin): State<Arc<AdminState>>, uri: Uri) -> Result<Json<Found>, Problem> {
    let asked = Asked::of(&uri)?;
    let found = find(&admin, &asked, MOST_FOUND).await?;
    let mut records = Vec::new();
    let mut bytes = 0;
    for info in found.iter().take(MOST) {
        if !asked.with_body {
            records.push(Record::of(info));
            continue;
        }
        bytes += info.response.map_or(0, |response| response.body_bytes);
        if bytes > MOST_BODY_BYTES && !records.is_empty() {
            break;
        }
        let response = match info.response {
            None => Ok(None),
            Some(_) => admin.records.response(info.id).await,
        };
        let response = response.map_err(|error| Problem::store_failed(&error))?;
        records.push(Record::of(info).with(response.as_deref()));
    }
    let left_out = found.len() - records.len();
    Ok(Json(Found {
        key: asked.key.as_str().to_owned(),
        records,
        left_out: (left_out > 0).then_some(left_out),
    }))
}

async fn free(State(admin): State<Arc<AdminState>>, uri: Uri) -> Result<StatusCode, Problem> {
    let asked = Asked::of(&uri)?;
    let found = find(&admin, &asked, MOST).await?;
    let [info] = &found[..] else {
        let scopes = found.iter().take(MOST).map(|info| info.id.scope);
        return Err(Problem::several_scopes(scopes));
    };
    if info.state != idempotency::RecordState::Unknown {
        return Err(Problem::not_unknown(info.state));
    }
    let freed = admin.records.free_unknown(info.id).await;
    if !freed.map_err(|error| Problem::store_failed(&error))? {
        return Err(Problem::plain(
            StatusCode::CONFLICT,
            "The record changed at this moment, and nothing was freed. Look at it again.",
        ));
    }
    // As a string field: every format of the log quotes and escapes it.
    tracing::info!(
        key = asked.key.as_str(),
        scope = %info.id.scope,
        "an idempotency key whose outcome was unknown was freed by an operator"
    );
    Ok(StatusCode::NO_CONTENT)
}

/// Returns up to `most` records of the requested key, the latest first, or 404 if there is none.
async fn find(admin: &AdminState, asked: &Asked, most: usize) -> Result<Vec<RecordInfo>, Problem> {
    let found = admin
        .records
        .find(
            KeyHash::of(&admin.hash_keys.keys().secret, &asked.key),
            asked.scope,
            most,
        )
        .await;
    let mut found = found.map_err(|error| Problem::store_failed(&error))?;
    if found.is_empty() {
        let detail = match asked.scope {
            None => {
                "There is no record of this key: it was never used, it was freed, or it has expired."
            }
            Some(_) => "There is no record of this key in this scope.",
        };
        return Err(Problem::plain(StatusCode::NOT_FOUND, detail));
    }
    found.sort_by_key(|info| info.age);
    Ok(found)
}
