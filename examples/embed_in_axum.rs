//! The throttle around an ordinary axum application, without the proxy.
//!
//! A middleware says who is calling and under which rule, and leaves both in the request as a
//! [`Passage`]; the layer behind it does the rest. Only the routes that wear the two are throttled.
//!
//! Run with:
//!
//! ```text
//! cargo run --example embed_in_axum
//! ```
//!
//! and in another terminal:
//!
//! ```text
//! for i in 1 2 3 4 5; do curl -s -o /dev/null -w '%{http_code}\n' http://127.0.0.1:3000/o/client/register; done
//! curl -i http://127.0.0.1:3000/o/client/register
//! curl -i http://127.0.0.1:3000/health
//! ```
//!
//! Expected output: 200 four times, then 429; then a 429 with
//!
//! ```text
//! retry-after: 1
//! ratelimit-policy: "device";q=4;w=4
//! ratelimit: "device";r=0;t=1
//! ```
//!
//! and a 200 without them.

use std::error::Error;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use tidegate::admin::Metrics;
use tidegate::client::Trust;
use tidegate::clock::Clock;
use tidegate::respond::Manner;
use tidegate::route::{Route, RouteId, Routes};
use tidegate::store::memory::MemoryBuckets;
use tidegate::throttle::{
    Exceed, KeyPart, Limit, LimitId, Mode, Passage, Quota, RetryAfterForm, Seed, Side,
    ThrottleLayer,
};
use tidegate::upstream::UpstreamId;
use tokio::net::TcpListener;

/// The only rule there is.
const RULE: RouteId = RouteId(0);

/// Buckets tracked at once.
const MAX_CLIENTS: usize = 100_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // Nobody's X-Forwarded-For is believed. Behind a proxy, name its network here.
    let trust = Arc::new(Trust::default());
    let throttled = Router::new()
        .route("/o/client/register", any(|| async { "registered\n" }))
        .layer(throttle()?)
        // A layer added later is met earlier: the caller is known by the time the throttle asks.
        .layer(middleware::from_fn_with_state(trust, identify));
    let app = throttled.route("/health", any(|| async { "well\n" }));

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).await?;
    Ok(())
}

/// Says who is calling, for the throttle to count by.
async fn identify(
    State(trust): State<Arc<Trust>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let caller = match trust.identify(peer.ip(), request.headers()) {
        Ok(caller) => caller,
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    request.extensions_mut().insert(Passage {
        caller,
        route: RULE,
        side: Side::Main,
    });
    next.run(request).await
}

/// 1 request a second for each client, and 3 more at once.
fn throttle() -> Result<ThrottleLayer<MemoryBuckets>, Box<dyn Error>> {
    let device = Arc::new(Limit {
        id: LimitId(0),
        name: "device".into(),
        quota: Quota::new(NonZeroU32::MIN, Duration::from_secs(1), 3)?,
        key: [KeyPart::Client].into(),
        exceed: Exceed::Reject,
        mode: Mode::Enforce,
        retry_after: RetryAfterForm::Seconds,
    });
    // The application routes for itself, so the patterns, the upstream and the log go unused.
    let routes = Routes::compile(vec![Route {
        id: RULE,
        name: "client".into(),
        patterns: vec!["/".into()],
        methods: None,
        upstream: UpstreamId(0),
        limits: vec![Arc::clone(&device)],
        cost: NonZeroU32::MIN,
        idempotency: None,
        access_log: false,
    }])?;
    let clock = Clock::real();
    let metrics = Metrics::new(&routes, &[device], &[]);
    Ok(ThrottleLayer::new(
        &routes,
        Arc::new(MemoryBuckets::new(MAX_CLIENTS, clock.clone())),
        Seed::random(),
        Arc::new(Manner::default()),
        Arc::new(metrics),
        clock,
    ))
}
