//! Endpoints of the configuration in force: its state, a reload, and the drain before a restart.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::listener::{AdminState, Running};
use super::problem::AdminProblem;
use super::rfc3339;
use crate::server::reload::{ConfigStatus, Reloader};

pub(super) fn routes() -> OpenApiRouter<Arc<AdminState>> {
    OpenApiRouter::new()
        .routes(routes!(show_config))
        .routes(routes!(reload))
        .routes(routes!(drain))
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ConfigView {
    /// Name of the file.
    source: String,
    /// SHA-256 of the file.
    hash: String,
    loaded_at: String,
    /// Keys whose new values need a restart.
    pending_restart: Vec<&'static str>,
    last_reload: Option<ReloadView>,
}

#[derive(Debug, Serialize, ToSchema)]
struct ReloadView {
    at: String,
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    error: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct DrainView {
    draining: bool,
}

impl From<ConfigStatus> for ConfigView {
    fn from(status: ConfigStatus) -> Self {
        Self {
            source: status.source,
            hash: status.hash,
            loaded_at: rfc3339(status.loaded_at),
            pending_restart: status.pending_restart,
            last_reload: status.last_reload.map(|(at, error)| ReloadView {
                at: rfc3339(at),
                result: reload_result(error.as_deref()),
                error,
            }),
        }
    }
}

/// Shows the configuration in force, and the result of the last reload
#[utoipa::path(get, path = "/admin/v1/config", responses((status = 200, body = ConfigView)))]
async fn show_config(
    State(admin): State<Arc<AdminState>>,
) -> Result<Json<ConfigView>, AdminProblem> {
    Ok(Json(reloader(&admin)?.status().into()))
}

/// Reloads the configuration
#[utoipa::path(post, path = "/admin/v1/reload", responses((status = 200, body = ConfigView)))]
async fn reload(State(admin): State<Arc<AdminState>>) -> Result<Json<ConfigView>, AdminProblem> {
    let reloader = Arc::clone(reloader(&admin)?);
    // Files are read on another thread, so that probes get responses meanwhile.
    let reloading = tokio::task::spawn_blocking(move || reloader.reload("admin API"));
    match reloading.await.expect("a reload does not panic") {
        Ok(status) => Ok(Json(status.into())),
        Err(error) => Err(AdminProblem::not_reloaded(error.to_string())),
    }
}

/// Ends the gateway after a drain; requires that a token is configured
#[utoipa::path(post, path = "/admin/v1/drain", responses((status = 200, body = DrainView)))]
async fn drain(
    State(admin): State<Arc<AdminState>>,
    Running(gateway): Running,
) -> Result<Json<DrainView>, AdminProblem> {
    let settings = gateway.policy.admin.as_ref();
    if settings.is_none_or(|settings| settings.token.is_none()) {
        let detail = "A drain ends the gateway, so it requires a token. Set `token` or `token_file` in [admin].";
        return Err(AdminProblem::plain(StatusCode::FORBIDDEN, detail));
    }
    tracing::info!("drain requested on the admin API");
    admin.stop.drain();
    Ok(Json(DrainView { draining: true }))
}

/// `error` is that of the reload.
pub(super) fn reload_result(error: Option<&str>) -> &'static str {
    error.map_or("applied", |_| "rejected")
}

fn reloader(admin: &AdminState) -> Result<&Arc<Reloader>, AdminProblem> {
    let detail = "This gateway has a built-in configuration, which cannot be reloaded.";
    let reloader = admin.reloader.as_ref();
    reloader.ok_or_else(|| AdminProblem::plain(StatusCode::NOT_FOUND, detail))
}
