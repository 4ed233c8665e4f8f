//! The admin listener: `/livez`, `/readyz`, `/metrics`, the endpoints below `/admin/v1/`, and a dashboard at `/`.
//!
//! The probes have no access control, because orchestrators and load balancers have no token and use any `Host`. All
//! other endpoints check the origin of a request, and all of these except `/` the token.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Weak};
use std::time::Duration;

use axum::Router;
use axum::body::to_bytes;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::OpenApiRouter;

use super::auth::{origin_rejection, token_rejection};
use super::dashboard::Index;
use super::events::{self, Change, LastState};
use super::problem::AdminProblem;
use super::scrape::text;
use super::traffic::Traffic;
use super::{config, keys, limits, openapi, overview, scrape as metrics, serve, upstreams};
use crate::admin::stage_metrics::OPENMETRICS;
use crate::config::AdminSettings;
use crate::http::connections::Connections;
use crate::pipeline::GatewayState;
use crate::request::head::requested_host;
use crate::respond::Problem;
use crate::server::live::Live;
use crate::server::reload::Reloader;
use crate::server::{Gateway, Stop};
use crate::store::{CapacityUse, Health};

/// It expires if the idempotency store does not respond, or if a reload has to wait for its files.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// In bytes.
const MAX_REJECTION: usize = 4096;

/// A running admin listener, which stops when this value is dropped.
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    done: CancellationToken,
}

/// It does not keep the gateway alive, because a store ends its work when the last `GatewayState` is dropped, and the
/// thread of the listener can outlive the gateway.
pub(super) struct AdminState {
    live: Weak<Live>,
    pub(super) stop: Stop,
    /// `None` if the configuration is built in.
    pub(super) reloader: Option<Arc<Reloader>>,
    pub(super) traffic: Mutex<Traffic>,
    pub(super) changes: broadcast::Sender<Change>,
    /// Cancelled when the listener stops.
    pub(super) done: CancellationToken,
    connections: Arc<Connections>,
}

impl AdminState {
    pub(super) fn gateway(&self) -> Result<Arc<GatewayState>, AdminProblem> {
        let live = self.live.upgrade();
        let detail = "The gateway has stopped.";
        let live =
            live.ok_or_else(|| AdminProblem::plain(StatusCode::SERVICE_UNAVAILABLE, detail))?;
        Ok(live.state())
    }
}

/// State of the gateway in force when a request arrives.
pub(super) struct Running(pub(super) Arc<GatewayState>);

impl FromRequestParts<Arc<AdminState>> for Running {
    type Rejection = AdminProblem;

    async fn from_request_parts(
        _: &mut Parts,
        admin: &Arc<AdminState>,
    ) -> Result<Self, AdminProblem> {
        admin.gateway().map(Self)
    }
}

fn settings(gateway: &GatewayState) -> &AdminSettings {
    let settings = gateway.policy.admin.as_ref();
    settings.expect("an admin listener is configured")
}

impl Admin {
    pub(crate) fn start(
        socket: TcpListener,
        gateway: &Gateway,
        reloader: Option<Arc<Reloader>>,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let (max, per_client) = (serve::MAX_CONNECTIONS, serve::MAX_CONNECTIONS_PER_CLIENT);
        let connections = Connections::new(max, per_client);
        let trust = gateway.shared().policy.trust.clone();
        let done = CancellationToken::new();
        let admin = Arc::new(AdminState {
            live: Arc::downgrade(gateway.live()),
            stop: gateway.stopper(),
            reloader,
            traffic: Mutex::default(),
            changes: events::channel(),
            done: done.clone(),
            connections: Arc::clone(&connections),
        });
        let stopped = done.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::Builder::new()
            .name("tidegate-admin".into())
            .spawn(move || {
                runtime.block_on(async move {
                    match tokio::net::TcpListener::from_std(socket) {
                        Ok(listener) => {
                            let observer = tokio::spawn(observe(Arc::clone(&admin)));
                            let router = router(admin);
                            serve::serve(listener, router, connections, &trust, stopped).await;
                            observer.abort();
                        }
                        Err(error) => tracing::error!(
                            %address,
                            %error,
                            "cannot register admin listener with the event loop, admin API unavailable"
                        ),
                    }
                });
            })?;
        Ok(Self { address, done })
    }

    /// The address that the admin listener is bound to, with the actual port if port 0 is configured.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.done.cancel();
    }
}

async fn observe(admin: Arc<AdminState>) {
    let mut last = LastState::default();
    while let Ok(gateway) = admin.gateway() {
        admin.traffic.lock().sample(&gateway);
        last.compare(&admin, &gateway);
        drop(gateway);
        tokio::time::sleep(events::INTERVAL).await;
    }
}

fn router(admin: Arc<AdminState>) -> Router {
    let described = OpenApiRouter::with_openapi(openapi::base())
        .merge(overview::routes())
        .merge(limits::routes())
        .merge(events::routes())
        .merge(keys::routes())
        .merge(upstreams::routes())
        .merge(config::routes());
    #[cfg(feature = "lab")]
    let described = described.merge(super::lab::routes());
    let (private, mut api) = described.split_for_parts();
    openapi::complete(&mut api);
    let document = api
        .to_json()
        .expect("the document has only strings as keys");
    let endpoints = openapi::summary(&api);
    let index = Arc::new(Index::new(&endpoints));
    let json = (CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let private = private
        .route("/metrics", get(scrape))
        .route(
            "/",
            get(async move |headers: HeaderMap| index.show(&headers)),
        )
        .route(
            "/admin/v1/openapi.json",
            get(async move || ([json], document)),
        )
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(async move || not_found(&endpoints))
        .layer(middleware::map_response(describe_rejection))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&admin),
            authorize,
        ));
    Router::new()
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(readyz))
        .method_not_allowed_fallback(method_not_allowed)
        .merge(private)
        .layer(middleware::map_response(add_security_headers))
        .with_state(admin)
}

async fn method_not_allowed() -> AdminProblem {
    let detail = "This endpoint does not support the request method. Use a method that the `Allow` header lists.";
    AdminProblem::plain(StatusCode::METHOD_NOT_ALLOWED, detail)
}

fn not_found(endpoints: &str) -> AdminProblem {
    let detail = format!("No admin endpoint has this path. Endpoints:\n{endpoints}");
    AdminProblem::plain(StatusCode::NOT_FOUND, detail)
}

async fn readyz(State(admin): State<Arc<AdminState>>) -> Result<Response, AdminProblem> {
    if admin.stop.is_draining() {
        return Ok((StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response());
    }
    let records = &admin.gateway()?.store.records;
    // Without its store, the gateway still serves requests that do not need it.
    let degraded: String = records
        .health()
        .into_iter()
        .filter_map(|Health { part, degraded, .. }| {
            Some(format!("ready, degraded: {}: {}\n", part.name(), degraded?))
        })
        .collect();
    let ready = if degraded.is_empty() {
        "ready\n"
    } else {
        degraded.as_str()
    };
    let capacity_use = records.capacity_use().filter(CapacityUse::is_notable);
    let capacity_use = capacity_use.map_or(String::new(), |it| format!("idempotency keys: {it}\n"));
    Ok(format!("{ready}{capacity_use}").into_response())
}

async fn scrape(
    State(admin): State<Arc<AdminState>>,
    Running(gateway): Running,
    headers: HeaderMap,
) -> Response {
    let reloader = admin.reloader.clone();
    let registry = metrics::registry(gateway, Arc::clone(&admin.connections), reloader);
    let mut openmetrics = String::new();
    encode(&mut openmetrics, &registry).expect("writing to a string succeeds");
    if text::is_preferred(&headers) {
        let text = text::from_openmetrics(&openmetrics);
        ([(CONTENT_TYPE, text::CONTENT_TYPE)], text).into_response()
    } else {
        ([(CONTENT_TYPE, OPENMETRICS)], openmetrics).into_response()
    }
}

/// Rejects a request that a web page of another origin can have caused, a request without an unambiguous host, and one
/// without the token. Limits the time in which the request is handled.
async fn authorize(
    Running(gateway): Running,
    request: Request,
    next: Next,
) -> Result<Response, AdminProblem> {
    let host = requested_host(&request).map_err(|error| {
        let problem = Problem::from(error);
        AdminProblem::bad_request(problem.detail.as_ref())
    })?;
    let (settings, headers) = (settings(&gateway), request.headers());
    // The dashboard is static and has no data. A link on another page can lead to it: the other page cannot read it or
    // frame it.
    let is_page = request.uri().path() == "/";
    if let Some(reason) = origin_rejection(settings, host.as_ref(), headers, is_page) {
        return Err(AdminProblem::plain(StatusCode::FORBIDDEN, reason));
    }
    let rejection = token_rejection(settings, headers);
    if let Some(reason) = rejection.filter(|_| !is_page) {
        let problem = AdminProblem::plain(StatusCode::UNAUTHORIZED, reason);
        return Ok(([(WWW_AUTHENTICATE, "Bearer")], problem).into_response());
    }
    drop(gateway);
    let handled = tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await;
    handled.map_err(|_| {
        let detail = format!(
            "The operation did not end within {REQUEST_TIMEOUT:?}. It continues, and can still succeed."
        );
        AdminProblem::plain(StatusCode::GATEWAY_TIMEOUT, detail)
    })
}

/// Replaces a text with which axum rejects a request.
async fn describe_rejection(response: Response) -> Response {
    let content_type = response.headers().get(CONTENT_TYPE);
    let is_text = content_type.is_some_and(|it| it.as_bytes().starts_with(b"text/plain"));
    let status = response.status();
    if !is_text || !status.is_client_error() {
        return response;
    }
    let text = to_bytes(response.into_body(), MAX_REJECTION).await;
    let text = text.unwrap_or_default();
    AdminProblem::plain(status, String::from_utf8_lossy(&text)).into_response()
}

async fn add_security_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
