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
use super::listener::Office;
use super::problem::Problem;
use crate::idempotency::{self, Finding, Records as _};

/// Records shown of one key, and scopes named: a key that everybody uses has very many.
const MOST: usize = 100;

/// Records looked at for one answer.
const MOST_FOUND: usize = 10_000;

/// Where these are asked for.
pub(super) fn routes() -> Router<Arc<Office>> {
    let key = || get(look_up).delete(free);
    Router::new()
        .route("/idempotency", get(overview))
        .route("/idempotency/keys/", key())
        .route("/idempotency/keys/{*key}", key())
}

async fn overview(State(office): State<Arc<Office>>) -> Result<Json<Overview>, Problem> {
    let counted = office.records.count().await;
    let census = counted.map_err(|error| Problem::store_failed(&error))?;
    Ok(Json(census.into()))
}

async fn look_up(State(office): State<Arc<Office>>, uri: Uri) -> Result<Json<Found>, Problem> {
    let asked = Asked::of(&uri)?;
    let found = find(&office, &asked).await?;
    let left_out = found.len().saturating_sub(MOST);
    let records = found.iter().take(MOST);
    Ok(Json(Found {
        key: asked.key.as_str().to_owned(),
        records: records
            .map(|finding| Record::of(finding, asked.with_body))
            .collect(),
        left_out: (left_out > 0).then_some(left_out),
    }))
}

async fn free(State(office): State<Arc<Office>>, uri: Uri) -> Result<StatusCode, Problem> {
    let asked = Asked::of(&uri)?;
    let found = find(&office, &asked).await?;
    let [finding] = &found[..] else {
        let scopes = found.iter().take(MOST).map(|finding| finding.id.scope);
        return Err(Problem::several_scopes(scopes));
    };
    if finding.state != idempotency::State::Unknown {
        return Err(Problem::not_unknown(finding.state));
    }
    let freed = office.records.free_unknown(finding.id).await;
    if !freed.map_err(|error| Problem::store_failed(&error))? {
        return Err(Problem::plain(
            StatusCode::CONFLICT,
            "The record changed at this moment, and nothing was freed. Look at it again.",
        ));
    }
    // As a string field: every format of the log quotes and escapes it.
    tracing::info!(
        key = asked.key.as_str(),
        scope = %finding.id.scope,
        "an idempotency key whose outcome was unknown was freed by an operator"
    );
    Ok(StatusCode::NO_CONTENT)
}

/// What there is of what was asked for, the latest first; never nothing.
async fn find(office: &Office, asked: &Asked) -> Result<Vec<Finding>, Problem> {
    let found = office
        .records
        .find(
            office.naming.names().secret.key(&asked.key),
            asked.scope,
            MOST_FOUND,
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
    found.sort_by_key(|finding| finding.age);
    Ok(found)
}
