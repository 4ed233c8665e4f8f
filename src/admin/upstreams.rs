//! How upstreams stand, and their circuits opened and closed by hand.
//!
//! A circuit that an operator opens stays open until an operator closes it. Closing one forgets what opened
//! it, and leaves it to open again by itself.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Serialize;

use super::listener::AdminState;
use super::problem::Problem;
use super::seconds;
use crate::clock::Moment;
use crate::upstream::UpstreamState;
use crate::upstream::breaker;
use crate::upstream::state::ServerState;

/// Where these are asked for.
pub(super) fn routes() -> Router<Arc<AdminState>> {
    Router::new()
        .route("/upstreams", get(overview))
        .route("/upstreams/{upstream}", get(look_at))
        .route("/upstreams/{upstream}/servers/{server}/open", post(open))
        .route("/upstreams/{upstream}/servers/{server}/close", post(close))
}

#[derive(Debug, Serialize)]
struct Overview {
    upstreams: Vec<UpstreamView>,
}

#[derive(Debug, Serialize)]
struct UpstreamView {
    name: String,
    servers: Vec<ServerView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retries: Option<RetriesView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    concurrency: Option<ConcurrencyView>,
}

#[derive(Debug, Serialize)]
struct ServerView {
    server: String,
    weight: u32,
    in_flight: u32,
    /// Whether health checks took it out.
    ejected: bool,
    circuit: CircuitView,
}

#[derive(Debug, Serialize)]
struct CircuitView {
    state: &'static str,
    /// Whether an operator opened it.
    held: bool,
    for_seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining_seconds: Option<f64>,
    openings: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    opened_by: Option<&'static str>,
    failures_in_a_row: u32,
    window: WindowView,
}

#[derive(Debug, Serialize)]
struct WindowView {
    succeeded: u64,
    failed: u64,
}

#[derive(Debug, Serialize)]
struct RetriesView {
    requests: u64,
    retries: u64,
    refused: u64,
}

#[derive(Debug, Serialize)]
struct ConcurrencyView {
    limit: u32,
    in_flight: u32,
    shed: u64,
}

async fn overview(State(admin): State<Arc<AdminState>>) -> Json<Overview> {
    let now = admin.clock.now();
    let upstreams = admin.upstream_states.iter();
    Json(Overview {
        upstreams: upstreams
            .map(|state| UpstreamView::of(state, now))
            .collect(),
    })
}

async fn look_at(
    State(admin): State<Arc<AdminState>>,
    Path(upstream): Path<String>,
) -> Result<Json<UpstreamView>, Problem> {
    let state = find(&admin, &upstream)?;
    Ok(Json(UpstreamView::of(state, admin.clock.now())))
}

async fn open(
    State(admin): State<Arc<AdminState>>,
    Path((upstream, server)): Path<(String, String)>,
) -> Result<Json<ServerView>, Problem> {
    let now = admin.clock.now();
    let state = find_server(&admin, &upstream, &server)?;
    if state.breaker.hold_open(now).is_some() {
        tracing::warn!(upstream, server, "the circuit was opened by an operator");
    }
    Ok(Json(ServerView::of(state, now)))
}

async fn close(
    State(admin): State<Arc<AdminState>>,
    Path((upstream, server)): Path<(String, String)>,
) -> Result<Json<ServerView>, Problem> {
    let now = admin.clock.now();
    let state = find_server(&admin, &upstream, &server)?;
    if state.breaker.close(now).is_some() {
        tracing::info!(upstream, server, "the circuit was closed by an operator");
    }
    Ok(Json(ServerView::of(state, now)))
}

fn find<'a>(admin: &'a AdminState, name: &str) -> Result<&'a UpstreamState, Problem> {
    let mut upstream_states = admin.upstream_states.iter();
    let found = upstream_states.find(|state| &*state.upstream.name == name);
    found.map(|state| &**state).ok_or_else(|| {
        let names = admin.upstream_states.iter();
        let names: Vec<_> = names.map(|state| &*state.upstream.name).collect();
        not_found("upstream", &names)
    })
}

fn find_server<'a>(
    admin: &'a AdminState,
    upstream: &str,
    server: &str,
) -> Result<&'a ServerState, Problem> {
    let servers = &find(admin, upstream)?.servers;
    let found = servers.iter().find(|state| state.name() == server);
    found.ok_or_else(|| {
        let names: Vec<_> = servers.iter().map(ServerState::name).collect();
        not_found("server", &names)
    })
}

fn not_found(what: &str, names: &[&str]) -> Problem {
    let names = names.join(", ");
    let detail = format!("There is no such {what}. There is: {names}");
    Problem::plain(StatusCode::NOT_FOUND, detail)
}

impl UpstreamView {
    fn of(state: &UpstreamState, now: Moment) -> Self {
        let servers = state.servers.iter();
        Self {
            name: state.upstream.name.to_string(),
            servers: servers.map(|server| ServerView::of(server, now)).collect(),
            retries: state.budget.as_ref().map(|budget| {
                let seen = budget.snapshot(now);
                RetriesView {
                    requests: seen.requests,
                    retries: seen.retries,
                    refused: seen.rejected,
                }
            }),
            concurrency: state
                .concurrency
                .as_ref()
                .map(|concurrency| ConcurrencyView {
                    limit: concurrency.limit(),
                    in_flight: concurrency.in_flight(),
                    shed: concurrency.shed(),
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
    fn of(seen: &breaker::BreakerSnapshot, now: Moment) -> Self {
        let (held, remaining) = match seen.state {
            breaker::BreakerState::Open { remaining, held } => (held, remaining),
            _ => (false, None),
        };
        Self {
            state: seen.state.name(),
            held,
            for_seconds: seconds(now.since(seen.since)),
            remaining_seconds: remaining.map(seconds),
            openings: seen.openings,
            opened_by: seen.why.map(breaker::OpenCause::name),
            failures_in_a_row: seen.consecutive_failures,
            window: WindowView {
                succeeded: seen.succeeded,
                failed: seen.failed,
            },
        }
    }
}
