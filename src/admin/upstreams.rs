//! `/admin/v1/upstreams`: shows the state of upstreams, and opens and closes circuit breakers.
//!
//! A circuit breaker that an operator opens stays open until an operator closes it. Closing a circuit breaker resets
//! its failure counts. Later failures can open the breaker again.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::listener::{AdminState, Running};
use super::problem::AdminProblem;
use super::{not_found, seconds};
use crate::clock::Moment;
use crate::pipeline::GatewayState;
use crate::upstream::shared_state::ServerState;
use crate::upstream::{UpstreamState, breaker};

pub(super) fn routes() -> OpenApiRouter<Arc<AdminState>> {
    OpenApiRouter::new()
        .routes(routes!(show_all))
        .routes(routes!(show_one))
        .routes(routes!(open))
        .routes(routes!(close))
}

#[derive(Debug, Serialize, ToSchema)]
struct UpstreamsView {
    upstreams: Vec<UpstreamView>,
}

#[derive(Debug, Serialize, ToSchema)]
struct UpstreamView {
    name: String,
    /// Median latency of the last minute in seconds. Null without responses.
    p50: Option<f64>,
    p99: Option<f64>,
    servers: Vec<ServerView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    retries: Option<RetriesView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    concurrency: Option<ConcurrencyView>,
}

#[derive(Debug, Serialize, ToSchema)]
struct ServerView {
    server: String,
    weight: u32,
    in_flight: u32,
    /// Whether the server is ejected because of failed health checks. An ejected server receives no requests.
    ejected: bool,
    circuit: CircuitView,
}

#[derive(Debug, Serialize, ToSchema)]
struct CircuitView {
    state: &'static str,
    /// Whether an operator opened the circuit breaker. The breaker then stays open until an operator closes it.
    held: bool,
    /// How long the circuit breaker has been in its current state, in seconds.
    for_seconds: f64,
    /// How long until the open circuit breaker becomes half-open, in seconds. `None` if the breaker is not open or an
    /// operator opened it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    remaining_seconds: Option<f64>,
    /// How often the circuit breaker has opened since the gateway started.
    openings: u64,
    /// Cause of the last opening of the circuit breaker. `None` if the breaker has never opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    opened_by: Option<&'static str>,
    failures_in_a_row: u32,
    window: WindowView,
}

#[derive(Debug, Serialize, ToSchema)]
struct WindowView {
    succeeded: u64,
    failed: u64,
}

#[derive(Debug, Serialize, ToSchema)]
struct RetriesView {
    requests: u64,
    retries: u64,
    refused: u64,
}

#[derive(Debug, Serialize, ToSchema)]
struct ConcurrencyView {
    limit: u32,
    in_flight: u32,
    shed: u64,
}

/// Shows all upstreams and their servers
#[utoipa::path(get, path = "/admin/v1/upstreams", responses((status = 200, body = UpstreamsView)))]
async fn show_all(
    State(admin): State<Arc<AdminState>>,
    Running(gateway): Running,
) -> Json<UpstreamsView> {
    let upstreams = gateway.upstream_states.iter();
    let upstreams = upstreams.map(|state| UpstreamView::of(&admin, &gateway, state));
    let upstreams = upstreams.collect();
    Json(UpstreamsView { upstreams })
}

/// Shows an upstream
#[utoipa::path(
    get,
    path = "/admin/v1/upstreams/{upstream}",
    params(("upstream" = String, Path)),
    responses((status = 200, body = UpstreamView))
)]
async fn show_one(
    State(admin): State<Arc<AdminState>>,
    Running(gateway): Running,
    Path(upstream): Path<String>,
) -> Result<Json<UpstreamView>, AdminProblem> {
    let state = find(&gateway, &upstream)?;
    Ok(Json(UpstreamView::of(&admin, &gateway, state)))
}

/// Opens the circuit of a server
#[utoipa::path(
    post,
    path = "/admin/v1/upstreams/{upstream}/servers/{server}/open",
    params(("upstream" = String, Path), ("server" = String, Path)),
    responses((status = 200, body = ServerView))
)]
async fn open(
    Running(gateway): Running,
    Path((upstream, server)): Path<(String, String)>,
) -> Result<Json<ServerView>, AdminProblem> {
    let now = gateway.clock.now();
    let state = find_server(&gateway, &upstream, &server)?;
    if state.breaker.hold_open(now).is_some() {
        tracing::warn!(upstream, server, "circuit breaker opened by operator");
    }
    Ok(Json(ServerView::of(state, now)))
}

/// Closes the circuit of a server
#[utoipa::path(
    post,
    path = "/admin/v1/upstreams/{upstream}/servers/{server}/close",
    params(("upstream" = String, Path), ("server" = String, Path)),
    responses((status = 200, body = ServerView))
)]
async fn close(
    Running(gateway): Running,
    Path((upstream, server)): Path<(String, String)>,
) -> Result<Json<ServerView>, AdminProblem> {
    let now = gateway.clock.now();
    let state = find_server(&gateway, &upstream, &server)?;
    if state.breaker.close(now).is_some() {
        tracing::info!(upstream, server, "circuit breaker closed by operator");
    }
    Ok(Json(ServerView::of(state, now)))
}

fn find<'a>(gateway: &'a GatewayState, name: &str) -> Result<&'a UpstreamState, AdminProblem> {
    let states = gateway.upstream_states.iter().map(AsRef::as_ref);
    let found = states.clone().find(|state| &*state.upstream.name == name);
    found.ok_or_else(|| not_found("upstream", states.map(|it| &*it.upstream.name)))
}

fn find_server<'a>(
    gateway: &'a GatewayState,
    upstream: &str,
    server: &str,
) -> Result<&'a ServerState, AdminProblem> {
    let mut servers = find(gateway, upstream)?.servers.iter();
    let names = servers.clone().map(ServerState::name);
    let found = servers.find(|state| state.name() == server);
    found.ok_or_else(|| not_found("server", names))
}

impl UpstreamView {
    fn of(admin: &AdminState, gateway: &GatewayState, state: &UpstreamState) -> Self {
        let (now, name) = (gateway.clock.now(), &state.upstream.name);
        let latency = admin.traffic.lock().latency(gateway, name, [0.5, 0.99]);
        let servers = state.servers.iter();
        Self {
            name: name.to_string(),
            p50: latency.map(|[p50, _]| p50),
            p99: latency.map(|[_, p99]| p99),
            servers: servers.map(|server| ServerView::of(server, now)).collect(),
            retries: state.budget.as_ref().map(|budget| {
                let snapshot = budget.snapshot(now);
                RetriesView {
                    requests: snapshot.requests,
                    retries: snapshot.retries,
                    refused: snapshot.rejected,
                }
            }),
            concurrency: state.concurrency.as_ref().map(|it| ConcurrencyView {
                limit: it.limit(),
                in_flight: it.in_flight(),
                shed: it.shed(),
            }),
        }
    }
}

impl ServerView {
    fn of(state: &ServerState, now: Moment) -> Self {
        Self {
            server: state.name().to_owned(),
            weight: state.server.weight.get(),
            in_flight: state.in_flight(),
            ejected: state.is_ejected(),
            circuit: CircuitView::of(&state.breaker.snapshot(now), now),
        }
    }
}

impl CircuitView {
    fn of(snapshot: &breaker::BreakerSnapshot, now: Moment) -> Self {
        let (held, remaining) = match snapshot.state {
            breaker::BreakerState::Open { remaining, held } => (held, remaining),
            _ => (false, None),
        };
        Self {
            state: snapshot.state.name(),
            held,
            for_seconds: seconds(now.since(snapshot.since)),
            remaining_seconds: remaining.map(seconds),
            openings: snapshot.openings,
            opened_by: snapshot.why.map(breaker::OpenCause::name),
            failures_in_a_row: snapshot.consecutive_failures,
            window: WindowView {
                succeeded: snapshot.succeeded,
                failed: snapshot.failed,
            },
        }
    }
}
