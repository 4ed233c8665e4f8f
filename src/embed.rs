//! The layers around somebody else's application, without the proxy.
//!
//! An application routes for itself, so all it needs here is one rule: who is calling, what they are
//! held to, what their keys mean. [`Embedded`] holds what the layers share. They are put on in the order
//! in which a request meets them last to first, as tower has it:
//!
//! ```
//! use std::num::NonZeroU32;
//! use std::time::Duration;
//!
//! use axum::Router;
//! use axum::routing::post;
//! use tidegate::embed::Embedded;
//! use tidegate::idempotency::Rule;
//! use tidegate::throttle::{Limit, Quota};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let quota = Quota::new(NonZeroU32::MIN, Duration::from_secs(1), 3)?;
//! let embedded = Embedded::new(vec![Limit::per_client("device", quota)], Some(Rule::default()));
//! let app: Router = Router::new()
//!     .route("/payments", post(|| async { "paid\n" }))
//!     .layer(embedded.idempotency())
//!     .layer(embedded.throttle())
//!     .layer(embedded.identify());
//! # Ok(())
//! # }
//! ```
//!
//! Serve it with `into_make_service_with_connect_info::<SocketAddr>()`: a request whose peer is not known
//! is nobody's, and passes all layers untouched, which is logged once. Put the layers on the outermost router:
//! inside a nested one they see a shortened path, and could take two requests for one. Everything is kept in
//! memory.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, Once};
use std::task::{Context, Poll};

use axum::extract::ConnectInfo;
use http::Request;
use tokio_util::task::TaskTracker;
use tower::{Layer, Service};

use crate::admin::Metrics;
use crate::client::Trust;
use crate::clock::Clock;
use crate::idempotency::{IdempotencyLayer, Naming, Rule};
use crate::respond::Manner;
use crate::route::{Route, RouteId, Routes};
use crate::store::memory::MemoryBuckets;
use crate::store::memory::records::{MemoryRecords, Room};
use crate::throttle::{Limit, LimitId, Passage, Resending, Side, ThrottleLayer};
use crate::upstream::UpstreamId;

/// Buckets tracked at once.
const MAX_CLIENTS: usize = 1_000_000;

/// Requests with keys carried out at once.
const MAX_EXECUTIONS: usize = 65_536;

/// The only rule there is.
const RULE: RouteId = RouteId(0);

/// What the layers of one application share.
#[derive(Debug)]
pub struct Embedded {
    trust: Arc<Trust>,
    manner: Arc<Manner>,
    routes: Routes,
    buckets: Arc<MemoryBuckets>,
    records: Arc<MemoryRecords>,
    naming: Naming,
    metrics: Arc<Metrics>,
    tasks: TaskTracker,
    clock: Clock,
}

impl Embedded {
    /// Layers that hold every client to `limits`, and mind keys as `idempotency` says, if it does. Nobody's
    /// `X-Forwarded-For` is believed.
    pub fn new(limits: Vec<Limit>, idempotency: Option<Rule>) -> Self {
        let limits: Vec<_> = (0..)
            .zip(limits)
            .map(|(place, limit)| {
                let id = LimitId(place);
                Arc::new(Limit { id, ..limit })
            })
            .collect();
        // The application routes for itself: pattern, upstream and log go unused.
        let route = Route {
            id: RULE,
            name: "embedded".into(),
            patterns: vec!["/".into()],
            methods: None,
            upstream: UpstreamId(0),
            limits: limits.clone(),
            cost: NonZeroU32::MIN,
            idempotency: idempotency.map(Arc::new),
            access_log: false,
        };
        let routes = Routes::compile(vec![route]).expect("this pattern is sound");
        let clock = Clock::real();
        Self {
            trust: Arc::default(),
            manner: Arc::default(),
            buckets: Arc::new(MemoryBuckets::new(MAX_CLIENTS, clock.clone())),
            records: Arc::new(MemoryRecords::new(Room::default(), clock.clone())),
            naming: Naming::random(),
            metrics: Arc::new(Metrics::new(&routes, &limits, &[])),
            tasks: TaskTracker::new(),
            routes,
            clock,
        }
    }

    /// The same, believing `X-Forwarded-For` as `trust` says.
    #[must_use]
    pub fn trusting(self, trust: Trust) -> Self {
        let trust = Arc::new(trust);
        Self { trust, ..self }
    }

    /// Sets the form of the responses that the layers make: dialect, hints for SDKs, link to documentation, CORS.
    #[must_use]
    pub fn speaking(self, manner: Manner) -> Self {
        let manner = Arc::new(manner);
        Self { manner, ..self }
    }

    /// Says who is calling. Met first.
    pub fn identify(&self) -> IdentifyLayer {
        IdentifyLayer(Arc::clone(&self.trust))
    }

    /// Holds callers to their limits. Met second.
    pub fn throttle(&self) -> ThrottleLayer<MemoryBuckets> {
        ThrottleLayer::new(
            &self.routes,
            Arc::clone(&self.buckets),
            self.naming.clone(),
            Arc::clone(&self.manner),
            Arc::clone(&self.metrics),
            self.clock.clone(),
        )
    }

    /// Answers a repeated key from its record. Met last, next to the application.
    pub fn idempotency(&self) -> IdempotencyLayer<MemoryRecords> {
        IdempotencyLayer::new(
            &self.routes,
            Arc::clone(&self.records),
            self.naming.clone(),
            MAX_EXECUTIONS,
            self.tasks.clone(),
            Arc::clone(&self.manner),
            Arc::clone(&self.metrics),
            self.clock.clone(),
        )
    }

    /// Waits for requests with keys whose clients may have gone. To be called when no more requests come.
    pub async fn finish(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Finds out who is calling, for the layers behind it.
#[derive(Clone, Debug)]
pub struct IdentifyLayer(Arc<Trust>);

/// A service whose callers are known.
#[derive(Clone, Debug)]
pub struct Identify<Inner> {
    inner: Inner,
    trust: Arc<Trust>,
}

impl<Inner> Layer<Inner> for IdentifyLayer {
    type Service = Identify<Inner>;

    fn layer(&self, inner: Inner) -> Self::Service {
        Identify {
            inner,
            trust: Arc::clone(&self.0),
        }
    }
}

impl<Inner, B> Service<Request<B>> for Identify<Inner>
where
    Inner: Service<Request<B>>,
{
    type Response = Inner::Response;
    type Error = Inner::Error;
    type Future = Inner::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
        if peer.is_none() {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| {
                tracing::warn!(
                    "a request's peer is not known, so it passes unthrottled and unkeyed"
                );
            });
        }
        if let Some(ConnectInfo(peer)) = peer {
            // Of a header with too many hops nothing is believed, as if the peer were not trusted.
            let caller = self
                .trust
                .identify(peer.ip(), request.headers())
                .or_else(|_| Trust::default().identify(peer.ip(), request.headers()));
            if let Ok(caller) = caller {
                request.extensions_mut().insert(Passage {
                    caller,
                    route: RULE,
                    side: Side::Main,
                    resending: Resending::ByMethod,
                    arrival: None,
                });
            }
        }
        self.inner.call(request)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use axum::Router;
    use axum::body::Body;
    use axum::extract::State;
    use axum::response::Response;
    use axum::routing::post;
    use http::{HeaderValue, StatusCode};
    use http_body_util::BodyExt as _;
    use tokio::sync::Notify;
    use tower::ServiceExt as _;

    use super::*;
    use crate::respond::Hint;
    use crate::throttle::Quota;

    #[derive(Clone, Default)]
    struct Bank {
        payments: Arc<AtomicU32>,
        open: Arc<Notify>,
    }

    async fn pay(State(bank): State<Bank>) -> String {
        let number = bank.payments.fetch_add(1, Ordering::Relaxed) + 1;
        bank.open.notified().await;
        format!("payment {number}")
    }

    fn app(embedded: &Embedded, bank: &Bank) -> Router {
        Router::new()
            .route("/payments", post(pay))
            .with_state(bank.clone())
            .layer(embedded.idempotency())
            .layer(embedded.throttle())
            .layer(embedded.identify())
    }

    fn embedded() -> Embedded {
        let quota = Quota::new(NonZeroU32::MIN, Duration::from_secs(1), 3).unwrap();
        let limits = vec![Limit::per_client("device", quota)];
        Embedded::new(limits, Some(Rule::default()))
    }

    fn request(peer: Option<&str>) -> Request<Body> {
        let mut request = Request::post("/payments")
            .header("idempotency-key", "k")
            .body(Body::from("100"))
            .unwrap();
        if let Some(peer) = peer {
            let peer: SocketAddr = peer.parse().unwrap();
            request.extensions_mut().insert(ConnectInfo(peer));
        }
        request
    }

    async fn text(response: Response) -> String {
        let body = response.into_body().collect().await.unwrap();
        String::from_utf8(body.to_bytes().into()).unwrap()
    }

    #[tokio::test]
    async fn an_application_wears_both_layers() {
        let (embedded, bank) = (embedded(), Bank::default());
        let app = app(&embedded, &bank);
        for replayed in [false, true, true, true] {
            bank.open.notify_one();
            let response = app
                .clone()
                .oneshot(request(Some("192.0.2.1:9")))
                .await
                .unwrap();
            assert_eq!(
                response.headers().contains_key("idempotent-replayed"),
                replayed
            );
            assert!(response.headers().contains_key("ratelimit"));
            assert_eq!(text(response).await, "payment 1");
        }
        let refused = app
            .clone()
            .oneshot(request(Some("192.0.2.1:9")))
            .await
            .unwrap();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()["x-should-retry"], "true");
        let wait = refused.headers()["retry-after-ms"].to_str().unwrap();
        assert!((1..=1_000).contains(&wait.parse().unwrap()), "{wait} ms");
        bank.open.notify_one();
        let other = app.oneshot(request(Some("192.0.2.2:9"))).await.unwrap();
        assert_eq!(text(other).await, "payment 2");
    }

    #[tokio::test]
    async fn an_execution_outlives_its_client_and_is_waited_for() {
        let (embedded, bank) = (embedded(), Bank::default());
        let app = app(&embedded, &bank);
        let asking = tokio::spawn(app.clone().oneshot(request(Some("192.0.2.1:9"))));
        while bank.payments.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        asking.abort();
        assert!(asking.await.unwrap_err().is_cancelled());
        bank.open.notify_one();
        embedded.finish().await;
        let replayed = app.oneshot(request(Some("192.0.2.1:9"))).await.unwrap();
        assert_eq!(text(replayed).await, "payment 1");
    }

    #[tokio::test]
    async fn both_layers_follow_the_configured_hints_and_docs() {
        let link = "<https://docs.example/>; rel=\"describedby\"";
        let manner = Manner {
            hints: [Hint::Stripe].into_iter().collect(),
            docs: Some(HeaderValue::from_static(link)),
            ..Manner::default()
        };
        let (embedded, bank) = (embedded().speaking(manner), Bank::default());
        let app = app(&embedded, &bank);
        for (key, status, hint) in [
            ("two words", 400, "false"),
            ("two words", 400, "false"),
            ("two words", 400, "false"),
            ("two words", 400, "false"),
            ("k", 429, "true"),
        ] {
            let mut request = request(Some("192.0.2.1:9"));
            let headers = request.headers_mut();
            headers.insert("idempotency-key", HeaderValue::from_static(key));
            let response = app.clone().oneshot(request).await.unwrap();
            assert_eq!(response.status(), status);
            let headers = response.headers();
            assert_eq!(headers["stripe-should-retry"], hint);
            assert_eq!(headers["link"], link);
            assert!(!headers.contains_key("retry-after-ms"));
        }
    }

    #[tokio::test]
    async fn a_request_of_nobody_passes() {
        let (embedded, bank) = (embedded(), Bank::default());
        let app = app(&embedded, &bank);
        for number in 1..=6 {
            bank.open.notify_one();
            let response = app.clone().oneshot(request(None)).await.unwrap();
            assert_eq!(text(response).await, format!("payment {number}"));
        }
    }
}
