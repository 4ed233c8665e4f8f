//! The admin listener: `/livez`, `/readyz`, `/metrics`, `/idempotency`, `/upstreams`.
//!
//! Probes answer anybody, as whatever restarts or routes around a gateway has no token. The rest is for
//! those who are admitted.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::auth::Auth;
use super::problem::Problem;
use super::{keys, scrape as metrics, serving, upstreams};
use crate::clock::Clock;
use crate::config::AdminSettings;
use crate::gateway::Stop;
use crate::hash_keys::HashKeySource;
use crate::pipeline::Shared;
use crate::store::{Health, RecordStore};
use crate::upstream::UpstreamState;

/// The text format Prometheus reads.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// How long the answer to an admitted request may take to make; only a store that hangs takes any time.
const PATIENCE: Duration = Duration::from_secs(10);

/// An admin listener at work, until dropped.
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    done: CancellationToken,
}

/// What an operator is told about, and may change.
#[derive(Debug)]
pub(crate) struct AdminSources {
    /// What is counted.
    pub registry: Registry,
    /// Whether the gateway is stopping.
    pub gateway: Stop,
    /// The records of its idempotency keys.
    pub records: RecordStore,
    /// What names them.
    pub hash_keys: HashKeySource,
    /// How its upstreams stand.
    pub upstream_states: Arc<[Arc<UpstreamState>]>,
    /// What time it is.
    pub clock: Clock,
}

/// What the handlers work with.
pub(super) struct AdminState {
    registry: Registry,
    gateway: Stop,
    pub(super) records: RecordStore,
    pub(super) hash_keys: HashKeySource,
    pub(super) upstream_states: Arc<[Arc<UpstreamState>]>,
    pub(super) clock: Clock,
    auth: Auth,
}

impl AdminSources {
    /// All there is of a gateway that is stopped by `gateway`.
    pub(crate) fn of(shared: &Shared, gateway: Stop) -> Self {
        Self {
            registry: metrics::registry(shared),
            gateway,
            records: shared.records.clone(),
            hash_keys: shared.hash_keys.clone(),
            upstream_states: Arc::clone(&shared.upstream_states),
            clock: shared.clock.clone(),
        }
    }
}

impl Admin {
    /// Serves on `socket`, on a thread of its own.
    pub(crate) fn start(
        socket: TcpListener,
        settings: &AdminSettings,
        sources: AdminSources,
    ) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let admin = Arc::new(AdminState::new(settings, sources));
        let done = CancellationToken::new();
        let stopped = done.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        std::thread::Builder::new()
            .name("tidegate-admin".into())
            .spawn(move || {
                runtime.block_on(async move {
                    match tokio::net::TcpListener::from_std(socket) {
                        Ok(listener) => serving::serve(listener, router(admin), stopped).await,
                        Err(error) => tracing::error!(%error, "the admin listener cannot be used"),
                    }
                });
            })?;
        Ok(Self { address, done })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.done.cancel();
    }
}

fn router(admin: Arc<AdminState>) -> Router {
    let private = Router::new()
        .route("/metrics", get(scrape))
        .merge(keys::routes())
        .merge(upstreams::routes())
        .method_not_allowed_fallback(other_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&admin), admit));
    Router::new()
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(readyz))
        .method_not_allowed_fallback(other_method)
        .fallback(nowhere)
        .merge(private)
        .with_state(admin)
}

async fn other_method() -> Problem {
    let detail = "It does not take this method; `Allow` has those it takes.";
    Problem::plain(StatusCode::METHOD_NOT_ALLOWED, detail)
}

async fn nowhere() -> Problem {
    Problem::plain(StatusCode::NOT_FOUND, "There is nothing here.")
}

async fn readyz(State(admin): State<Arc<AdminState>>) -> Response {
    if admin.gateway.is_draining() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response();
    }
    // A degraded store does not make the gateway unready: it still serves requests that do not need the store.
    let health = admin.records.health();
    let degraded: Vec<_> = health
        .into_iter()
        .filter_map(|Health { part, degraded, .. }| {
            Some(format!("ready, degraded: {}: {}\n", part.name(), degraded?))
        })
        .collect();
    if degraded.is_empty() {
        "ready\n".into_response()
    } else {
        degraded.concat().into_response()
    }
}

async fn scrape(State(admin): State<Arc<AdminState>>) -> Response {
    let mut text = String::new();
    match encode(&mut text, &admin.registry) {
        Ok(()) => ([(CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "metrics cannot be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn admit(State(admin): State<Arc<AdminState>>, request: Request, next: Next) -> Response {
    let mut response = match admin.auth.refusal(request.headers()) {
        Some(why) => Problem::plain(StatusCode::FORBIDDEN, why).into_response(),
        None => match tokio::time::timeout(PATIENCE, next.run(request)).await {
            Ok(response) => response,
            Err(_) => late().into_response(),
        },
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn late() -> Problem {
    let detail =
        format!("The store took longer than {PATIENCE:?}; what was asked may still be done.");
    Problem::plain(StatusCode::GATEWAY_TIMEOUT, detail)
}

impl AdminState {
    fn new(settings: &AdminSettings, sources: AdminSources) -> Self {
        Self {
            registry: sources.registry,
            gateway: sources.gateway,
            records: sources.records,
            hash_keys: sources.hash_keys,
            upstream_states: sources.upstream_states,
            clock: sources.clock,
            auth: Auth::new(settings),
        }
    }
}
