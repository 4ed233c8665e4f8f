//! `/admin/v1/lab/runs`: starts and lists runs of scenarios, and returns the verdict on a run.
//!
//! The id of a run is the id of a test if the scenario has `by = "test"`, and otherwise the address of a client. A run
//! starts with the first request of its test or client, or when it is created here.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::listener::AdminState;
use super::problem::AdminProblem;
use super::rfc3339;
use crate::lab::report::document::Document;
use crate::lab::report::{Report, ScenarioResult};
use crate::pipeline::GatewayState;
use crate::request::request_id::RequestId;
use crate::request::test_id::TestId;
use crate::scenario::{CountBy, RunInfo, ScenarioState};

const MAX_SHOWN: usize = 1_000;

static VERDICTS: Semaphore = Semaphore::const_new(1);

/// Checks whether a request of a run is in flight, before its verdict.
const SETTLE_CHECKS: u32 = 20;

const SETTLE_INTERVAL: Duration = Duration::from_millis(10);

pub(super) fn routes() -> OpenApiRouter<Arc<AdminState>> {
    OpenApiRouter::new()
        .routes(routes!(list_runs, create))
        .routes(routes!(show_run, remove))
}

/// Body of a request that creates a run.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewRun {
    scenario: String,
    id: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct RunsView {
    runs: Vec<RunView>,
    /// Number of runs that the list does not contain.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    left_out: Option<usize>,
}

#[derive(Debug, Serialize, ToSchema)]
struct RunView {
    scenario: String,
    id: String,
    /// RFC 3339 time in UTC.
    created: String,
    requests: u64,
    /// Path prefix of requests that belong to the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    path_prefix: Option<String>,
    /// Header of requests that belong to the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    header: Option<String>,
}

/// Lists runs of scenarios
#[utoipa::path(
    get,
    path = "/admin/v1/lab/runs",
    params(("scenario" = Option<String>, Query)),
    responses((status = 200, body = RunsView))
)]
async fn list_runs(
    State(admin): State<Arc<AdminState>>,
    RawQuery(query): RawQuery,
) -> Result<Json<RunsView>, AdminProblem> {
    let (gateway, name) = (admin.gateway()?, scenario_name(query.as_deref()));
    let states = gateway.scenarios.iter();
    let states =
        states.filter(|state| name.as_deref().is_none_or(|it| it == &*state.scenario.name));
    let mut runs: Vec<_> = states
        .flat_map(|state| state.runs().into_iter().map(move |run| (state, run)))
        .collect();
    runs.sort_by_key(|(_, run)| std::cmp::Reverse(run.created));
    let left_out = runs.len().saturating_sub(MAX_SHOWN);
    let shown = runs.iter().take(MAX_SHOWN);
    Ok(Json(RunsView {
        runs: shown.map(|(state, run)| RunView::of(state, run)).collect(),
        left_out: (left_out > 0).then_some(left_out),
    }))
}

/// Starts a run
#[utoipa::path(
    post,
    path = "/admin/v1/lab/runs",
    request_body = NewRun,
    responses((status = 201, body = RunView))
)]
async fn create(
    State(admin): State<Arc<AdminState>>,
    body: axum::body::Bytes,
) -> Result<Response, AdminProblem> {
    // The content type is not checked, because `curl -d` sends the type of a form.
    let new: NewRun = serde_json::from_slice(&body).map_err(|error| {
        AdminProblem::bad_request(format!(
            "The body is not a valid run: {error}. Send {{\"scenario\": \"NAME\", \"id\": \"ID\"}}."
        ))
    })?;
    let gateway = admin.gateway()?;
    let Some(state) = gateway.scenarios.get(&new.scenario) else {
        let names: Vec<&str> = gateway
            .scenarios
            .iter()
            .map(|it| &*it.scenario.name)
            .collect();
        let names = names.join(", ");
        let detail = format!("The configuration has no such scenario. Configured: {names}");
        return Err(AdminProblem::plain(StatusCode::NOT_FOUND, detail));
    };
    let id = run_id(&gateway, state, new.id)?;
    let run = RunView::of(state, &state.start_run(&id));
    Ok((StatusCode::CREATED, Json(run)).into_response())
}

/// If the scenario counts by test, an id is generated if the request contains none. Otherwise the id is the address of
/// a client, in the form by which the gateway identifies the client.
fn run_id(
    gateway: &GatewayState,
    state: &ScenarioState,
    id: Option<String>,
) -> Result<String, AdminProblem> {
    if state.scenario.by == CountBy::Test {
        return match id {
            None => Ok(RequestId::of(&HeaderMap::new()).to_string()),
            Some(id) if TestId::parse(&id).is_some() => Ok(id),
            Some(_) => Err(AdminProblem::bad_request(
                "The id is not valid. Use 1 to 64 letters, digits, dots, dashes, underscores or tildes, but not an IP \
                 address.",
            )),
        };
    }
    let address = id.and_then(|id| id.parse().ok());
    let Some(address) = address else {
        return Err(AdminProblem::bad_request(
            "This scenario counts requests by client, so the id of a run is the IP address of a client. To choose ids, \
             set `by = \"test\"` in the scenario.",
        ));
    };
    Ok(gateway.policy.trust.client_id(address).to_string())
}

/// Shows the verdict on the client of a run
#[utoipa::path(
    get,
    path = "/admin/v1/lab/runs/{id}",
    params(("id" = String, Path), ("scenario" = Option<String>, Query)),
    responses((status = 200, body = Object))
)]
async fn show_run(
    State(admin): State<Arc<AdminState>>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, AdminProblem> {
    let gateway = admin.gateway()?;
    let state = Arc::clone(find(&gateway, &id, query.as_deref())?);
    // The client can have received a response that is not complete in the trace yet.
    for _ in 0..SETTLE_CHECKS {
        if !state.is_in_flight(&id) {
            break;
        }
        tokio::time::sleep(SETTLE_INTERVAL).await;
    }
    // A large trace takes long to judge, and must not delay the probes. A verdict copies the trace, so only one is made
    // at a time. The permit moves to the thread, which continues if this request is abandoned.
    let permit = VERDICTS.acquire().await;
    let document = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        report(&state, id)
    });
    let document = document.await.ok().flatten().ok_or_else(not_found)?;
    let json = HeaderValue::from_static("application/json");
    Ok(([(CONTENT_TYPE, json)], document).into_response())
}

/// `None` if the run does not exist.
fn report(state: &ScenarioState, id: String) -> Option<String> {
    let (trace, in_flight) = state.run_trace(&id)?;
    let ends = trace.attempts.iter().map(|attempt| {
        let response = attempt.response.as_ref();
        response.map_or(attempt.arrived, |response| response.ended)
    });
    let (started, duration) = (trace.started, ends.max().unwrap_or_default());
    let result = ScenarioResult::of(&state.scenario, trace, !in_flight);
    let report = Report {
        client: id,
        client_version: None,
        started,
        scenarios: vec![ScenarioResult { duration, ..result }],
        include_secrets: false,
    };
    Some(Document::of(&report).to_json())
}

/// Removes a run
#[utoipa::path(
    delete,
    path = "/admin/v1/lab/runs/{id}",
    params(("id" = String, Path), ("scenario" = Option<String>, Query)),
    responses((status = 204))
)]
async fn remove(
    State(admin): State<Arc<AdminState>>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<StatusCode, AdminProblem> {
    let gateway = admin.gateway()?;
    if find(&gateway, &id, query.as_deref())?.remove_run(&id) {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(not_found())
    }
}

/// If several scenarios have a run with this id, `scenario=NAME` in the query must select one.
fn find<'a>(
    gateway: &'a GatewayState,
    id: &str,
    query: Option<&str>,
) -> Result<&'a Arc<ScenarioState>, AdminProblem> {
    let name = scenario_name(query);
    let states = gateway.scenarios.iter();
    let mut found = states
        .filter(|state| name.as_deref().is_none_or(|it| it == &*state.scenario.name))
        .filter(|state| state.has_run(id));
    match (found.next(), found.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(not_found()),
        (Some(_), Some(_)) => Err(AdminProblem::bad_request(
            "Several scenarios have a run with this id. Add ?scenario=NAME to select one.",
        )),
    }
}

fn scenario_name(query: Option<&str>) -> Option<String> {
    let mut parameters = query?.split('&');
    let value = parameters.find_map(|parameter| parameter.strip_prefix("scenario="))?;
    let value = value.replace('+', " ");
    let decoded = percent_encoding::percent_decode_str(&value);
    Some(decoded.decode_utf8_lossy().into_owned())
}

fn not_found() -> AdminProblem {
    AdminProblem::plain(
        StatusCode::NOT_FOUND,
        "No run has this id. GET /admin/v1/lab/runs lists all runs.",
    )
}

impl RunView {
    fn of(state: &ScenarioState, run: &RunInfo) -> Self {
        let by_test = state.scenario.by == CountBy::Test && TestId::parse(&run.id).is_some();
        Self {
            scenario: run.scenario.to_string(),
            id: run.id.to_string(),
            created: rfc3339(run.created),
            requests: run.requests,
            path_prefix: by_test.then(|| format!("/t/{}/", run.id)),
            header: by_test.then(|| format!("X-Tidegate-Test: {}", run.id)),
        }
    }
}
