//! State of the gateway at a glance, its routes, and explanations of requests.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::config::ConfigView;
use super::keys::view::RecordStoreView;
use super::limits::buckets::TokensView;
use super::limits::mode_name;
use super::listener::{AdminState, Running};
use super::problem::AdminProblem;
use super::traffic::{Totals, TrafficView};
use super::{rfc3339, seconds};
use crate::clock::Moment;
use crate::config::Backend;
use crate::idempotency::{Records as _, Requirement};
use crate::pipeline::GatewayState;
use crate::pipeline::explain::{self, explain};
use crate::request::client::ClientId;
use crate::store::Health;
use crate::throttle::{Charge, ChargeOutcome, Limit, decide};

pub(super) fn routes() -> OpenApiRouter<Arc<AdminState>> {
    OpenApiRouter::new()
        .routes(routes!(overview))
        .routes(routes!(list_routes))
        .routes(routes!(explain_request))
}

#[derive(Debug, Serialize, ToSchema)]
struct Overview {
    version: &'static str,
    /// Seconds since the start.
    uptime: f64,
    now: String,
    draining: bool,
    store: StoreView,
    /// Null on Redis, where a count reads every record.
    records: Option<RecordStoreView>,
    /// Null if the configuration is built in.
    config: Option<ConfigView>,
    warnings: Vec<WarningView>,
    /// Number of subscribers of `events`.
    subscribers: usize,
    /// Requests since the start.
    totals: Totals,
    /// Requests of the last 15 minutes.
    traffic: TrafficView,
}

#[derive(Debug, Serialize, ToSchema)]
struct StoreView {
    backend: &'static str,
    /// Parts of the store that fail.
    degraded: Vec<DegradedView>,
}

#[derive(Debug, Serialize, ToSchema)]
struct DegradedView {
    part: &'static str,
    reason: String,
}

#[derive(Debug, Serialize, ToSchema)]
struct WarningView {
    since: String,
    text: String,
}

#[derive(Debug, Serialize, ToSchema)]
struct RoutesView {
    routes: Vec<RouteView>,
}

#[derive(Debug, Serialize, ToSchema)]
struct RouteView {
    name: String,
    path: Vec<String>,
    /// Null for all methods.
    methods: Option<Vec<String>>,
    upstream: Option<String>,
    limits: Vec<String>,
    /// Number of tokens that a request takes from each limit.
    cost: u32,
    /// `optional` or `required`; null if keys are only forwarded.
    idempotency: Option<&'static str>,
    scenario: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct RequestToExplain {
    #[serde(default = "get")]
    method: String,
    /// Path and query.
    path: String,
    #[serde(default)]
    headers: HashMap<String, String>,
    /// IP address of the other end of the connection.
    #[schema(value_type = Option<String>)]
    peer: Option<IpAddr>,
}

#[derive(Debug, Serialize, ToSchema)]
struct ExplanationView {
    client: Option<String>,
    route: Option<String>,
    outcome: String,
    /// Limits that would be charged, in their present state.
    limits: Vec<LimitDecision>,
    /// Output of `tidegate explain`.
    lines: Vec<ExplanationLine>,
}

#[derive(Debug, Serialize, ToSchema)]
struct LimitDecision {
    limit: String,
    /// `enforce` or `shadow`.
    mode: &'static str,
    key: String,
    /// Whether the limit admits the request now, at once or after a delay.
    admits: bool,
    /// Delay of the request, or time after which a retry is admitted, in seconds.
    wait: f64,
    #[serde(flatten)]
    tokens: TokensView,
}

#[derive(Debug, Serialize, ToSchema)]
struct ExplanationLine {
    name: &'static str,
    value: String,
}

/// Shows the state of the gateway, and requests by outcome
#[utoipa::path(get, path = "/admin/v1/overview", responses((status = 200, body = Overview)))]
async fn overview(
    State(admin): State<Arc<AdminState>>,
    Running(gateway): Running,
) -> Json<Overview> {
    let records = &gateway.store.records;
    let degraded = |health: Health| {
        let (part, reason) = (health.part.name(), health.degraded?.to_string());
        Some(DegradedView { part, reason })
    };
    // A reload can have added the proxy.
    let trust = &gateway.policy.trust;
    let warning = gateway.unlisted_proxy.found();
    let warning = warning.filter(|(peer, _)| trust.connection_owner(*peer).is_some());
    Json(Overview {
        version: env!("TIDEGATE_VERSION"),
        uptime: seconds(gateway.clock.now().since(Moment::default())),
        now: rfc3339(gateway.clock.wall()),
        draining: admin.stop.is_draining(),
        store: StoreView {
            backend: match gateway.policy.store.backend {
                Backend::Memory => "memory",
                Backend::Disk { .. } => "disk",
                Backend::Redis(_) => "redis",
            },
            degraded: records
                .health()
                .into_iter()
                .filter_map(degraded)
                .collect(),
        },
        records: (!records.is_shared()).then(|| records.counts().into()),
        config: (admin.reloader.as_ref()).map(|reloader| reloader.status().into()),
        warnings: (warning.into_iter())
            .map(|(peer, at)| WarningView {
                since: rfc3339(at),
                text: format!(
                    "Requests from {peer} have many different X-Forwarded-For values, and count as one client, because \
                     {peer} is not in trusted_proxies of [client]. Add it there if it is your proxy."
                ),
            })
            .collect(),
        subscribers: gateway.rejections.subscribers(),
        totals: Totals::of(&gateway),
        traffic: admin.traffic.lock().view(&gateway.clock),
    })
}

/// Lists the routes
#[utoipa::path(get, path = "/admin/v1/routes", responses((status = 200, body = RoutesView)))]
async fn list_routes(Running(gateway): Running) -> Json<RoutesView> {
    let routes = &gateway.policy.routes;
    let routes = routes.matches().iter().zip(routes.iter());
    let routes = routes.map(|(matched, route)| RouteView {
        name: route.name.to_string(),
        path: matched.patterns.clone(),
        methods: (matched.methods.as_ref())
            .map(|methods| methods.iter().map(ToString::to_string).collect()),
        upstream: (route.upstream.as_ref()).map(|it| it.upstream.name.to_string()),
        limits: route.limits.iter().map(|it| it.name.to_string()).collect(),
        cost: route.cost.get(),
        idempotency: (route.idempotency.as_ref()).map(|rule| match rule.requirement {
            Requirement::Optional => "optional",
            Requirement::Required => "required",
        }),
        scenario: (route.scenario.as_ref()).map(|it| it.name.to_string()),
    });
    let routes = routes.collect();
    Json(RoutesView { routes })
}

/// Shows what would happen to a request, without consuming tokens
#[utoipa::path(
    post,
    path = "/admin/v1/explain",
    request_body = RequestToExplain,
    responses((status = 200, body = ExplanationView))
)]
async fn explain_request(
    Running(gateway): Running,
    body: Bytes,
) -> Result<Json<ExplanationView>, AdminProblem> {
    // The content type is not checked, because `curl -d` sends the type of a form.
    let asked: RequestToExplain = serde_json::from_slice(&body).map_err(|error| {
        AdminProblem::bad_request(format!(
            "The body is not a valid request: {error}. Send {{\"method\": \"GET\", \"path\": \"/\", \"headers\": {{}}, \
             \"peer\": \"192.0.2.7\"}}."
        ))
    })?;
    let mut headers = HeaderMap::new();
    for (name, value) in &asked.headers {
        let header = (
            HeaderName::try_from(name),
            HeaderValue::from_bytes(value.as_bytes()),
        );
        let (Ok(name), Ok(value)) = header else {
            let detail = format!("The name or the value of the header `{name}` is not valid.");
            return Err(AdminProblem::bad_request(detail));
        };
        headers.insert(name, value);
    }
    let request = explain::request(&asked.method, &asked.path, headers).map_err(|what| {
        AdminProblem::bad_request(format!("The {what} is not valid in a request."))
    })?;
    let peer = asked.peer.unwrap_or(Ipv4Addr::LOCALHOST.into());
    let explained = explain(&gateway.policy, request, peer);
    let mut limits = Vec::new();
    let charged = explained.route.zip(explained.client);
    if let Some((route, client)) = charged.filter(|_| explained.is_charged) {
        for limit in &route.limits {
            let headers = &explained.headers;
            let read = LimitDecision::read(&gateway, limit, route.cost, client, headers);
            limits.push(read.await?);
        }
    }
    let outcome = explained.lines.last().map(|(_, outcome)| outcome.clone());
    Ok(Json(ExplanationView {
        client: explained.client.map(|client| client.to_string()),
        route: explained.route.map(|route| route.name.to_string()),
        outcome: outcome.unwrap_or_default(),
        limits,
        lines: (explained.lines.into_iter())
            .map(|(name, value)| ExplanationLine { name, value })
            .collect(),
    }))
}

impl LimitDecision {
    async fn read(
        gateway: &GatewayState,
        limit: &Arc<Limit>,
        cost: NonZeroU32,
        client: ClientId,
        headers: &HeaderMap,
    ) -> Result<Self, AdminProblem> {
        // The limit in force knows since when its quota counts.
        let in_force = gateway.known_limit(&limit.name);
        let limit = in_force.map_or(limit, |it| &it.limit);
        let bucket = gateway.bucket(limit, client, headers);
        let view = gateway.store.buckets.read(limit, bucket).await?;
        let charge = Charge {
            limit,
            bucket,
            cost,
        };
        let decided = decide(&[charge], &mut [view.full_at], gateway.clock.now());
        let (admits, wait) = match decided.outcome {
            ChargeOutcome::Admitted { delay } => (true, delay),
            ChargeOutcome::Rejected { wait, .. } => (false, wait),
            ChargeOutcome::Unavailable => (false, Duration::ZERO),
        };
        Ok(Self {
            limit: limit.name.to_string(),
            mode: mode_name(limit.mode),
            key: limit.shown_key(bucket, client, headers.into()).to_string(),
            admits,
            wait: wait.as_secs_f64(),
            tokens: TokensView::of(gateway, limit, view),
        })
    }
}

fn get() -> String {
    "GET".into()
}
