//! Endpoints of the configuration in force: its state, a reload, and the drain before a restart.

use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Serialize;
use serde_json::{Value, json};

use super::listener::AdminState;
use super::problem::AdminProblem;
use crate::server::reload::{ConfigStatus, Reloader};

pub(super) fn routes() -> Router<Arc<AdminState>> {
    Router::new()
        .route("/admin/v1/config", get(show))
        .route("/admin/v1/reload", post(reload))
        .route("/admin/v1/drain", post(drain))
}

/// Times are in the form of RFC 3339, in UTC.
#[derive(Debug, Serialize)]
struct ConfigView {
    source: String,
    hash: String,
    loaded_at: String,
    pending_restart: Vec<&'static str>,
    last_reload: Option<ReloadView>,
}

#[derive(Debug, Serialize)]
struct ReloadView {
    at: String,
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl From<ConfigStatus> for ConfigView {
    fn from(status: ConfigStatus) -> Self {
        let time = |at: SystemTime| humantime::format_rfc3339_millis(at).to_string();
        Self {
            source: status.source,
            hash: status.hash,
            loaded_at: time(status.loaded_at),
            pending_restart: status.pending_restart,
            last_reload: status.last_reload.map(|(at, error)| ReloadView {
                at: time(at),
                result: if error.is_none() {
                    "applied"
                } else {
                    "rejected"
                },
                error,
            }),
        }
    }
}

async fn show(State(admin): State<Arc<AdminState>>) -> Result<Json<ConfigView>, AdminProblem> {
    Ok(Json(reloader(&admin)?.status().into()))
}

async fn reload(State(admin): State<Arc<AdminState>>) -> Result<Json<ConfigView>, AdminProblem> {
    let reloader = Arc::clone(reloader(&admin)?);
    // Files are read on another thread, so that probes get responses meanwhile.
    let reloading = tokio::task::spawn_blocking(move || reloader.reload("admin API"));
    match reloading.await.expect("a reload does not panic") {
        Ok(status) => Ok(Json(status.into())),
        Err(error) => Err(AdminProblem::not_reloaded(error.to_string())),
    }
}

async fn drain(State(admin): State<Arc<AdminState>>) -> Result<Json<Value>, AdminProblem> {
    let gateway = admin.gateway()?;
    let settings = gateway.policy.admin.as_ref();
    if settings.is_none_or(|settings| settings.token.is_none()) {
        let detail = "A drain ends the gateway, so it requires a token. Set `token` or `token_file` in [admin].";
        return Err(AdminProblem::plain(StatusCode::FORBIDDEN, detail));
    }
    tracing::info!("drain requested on the admin API");
    admin.stop.drain();
    Ok(Json(json!({ "draining": true })))
}

fn reloader(admin: &AdminState) -> Result<&Arc<Reloader>, AdminProblem> {
    let detail = "This gateway has a built-in configuration, which cannot be reloaded.";
    let reloader = admin.reloader.as_ref();
    reloader.ok_or_else(|| AdminProblem::plain(StatusCode::NOT_FOUND, detail))
}
