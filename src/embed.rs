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
use bytes::Bytes;
use futures_util::future::{Either, Ready, ready};
use http::{HeaderValue, Request, Response};
use tokio_util::task::TaskTracker;
use tower::{Layer, Service};

use crate::admin::Metrics;
use crate::buffers::{BufferBounds, Buffers};
use crate::client::Trust;
use crate::clock::Clock;
use crate::idempotency::{IdempotencyLayer, Naming, Rule};
use crate::intake::headers::{HeaderNames, PADDED_VALUE, has_padded_value};
use crate::respond::{Manner, Rejection, problem};
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
    buffers: Arc<Buffers>,
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
            buffers: Arc::new(Buffers::new(BufferBounds::default())),
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

    /// Sets the bounds on request and response bodies that are held in memory. Choose bounds that are not below
    /// `max_request` of the rule: a larger keyed request body is always rejected with 503.
    #[must_use]
    pub fn buffering(self, bounds: BufferBounds) -> Self {
        let buffers = Arc::new(Buffers::new(bounds));
        Self { buffers, ..self }
    }

    /// Identifies the client. Applied first. Rejects a request with 400 if a header that a limit or the scope is
    /// counted by is repeated, or if a value has white space around it.
    pub fn identify(&self) -> IdentifyLayer {
        IdentifyLayer(Arc::new(Identifying {
            trust: Arc::clone(&self.trust),
            names: self.routes.headers().clone(),
            manner: Arc::clone(&self.manner),
            clock: self.clock.clone(),
        }))
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
            Arc::clone(&self.buffers),
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

/// Identifies the client of each request for the layers behind it.
#[derive(Clone, Debug)]
pub struct IdentifyLayer(Arc<Identifying>);

#[derive(Debug)]
struct Identifying {
    trust: Arc<Trust>,
    names: HeaderNames,
    manner: Arc<Manner>,
    clock: Clock,
}

/// A service that receives requests with identified clients.
#[derive(Clone, Debug)]
pub struct Identify<Inner> {
    inner: Inner,
    identifying: Arc<Identifying>,
}

impl<Inner> Layer<Inner> for IdentifyLayer {
    type Service = Identify<Inner>;

    fn layer(&self, inner: Inner) -> Self::Service {
        Identify {
            inner,
            identifying: Arc::clone(&self.0),
        }
    }
}

impl<Inner, ReqBody, ResBody> Service<Request<ReqBody>> for Identify<Inner>
where
    Inner: Service<Request<ReqBody>, Response = Response<ResBody>>,
    ResBody: From<Bytes>,
{
    type Response = Response<ResBody>;
    type Error = Inner::Error;
    type Future = Either<Inner::Future, Ready<Result<Response<ResBody>, Inner::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<ReqBody>) -> Self::Future {
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
        let Some(&ConnectInfo(peer)) = peer else {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| {
                tracing::warn!(
                    "the peer of a request is not known, so no limit and no key applies to it"
                );
            });
            return Either::Left(self.inner.call(request));
        };
        match self.identifying.identify(peer, &mut request) {
            Ok(passage) => {
                request.extensions_mut().insert(passage);
                Either::Left(self.inner.call(request))
            }
            Err(rejection) => {
                let Identifying { manner, clock, .. } = &*self.identifying;
                let response = problem::response(&rejection, request.headers(), manner, clock);
                Either::Right(ready(Ok(response)))
            }
        }
    }
}

impl Identifying {
    /// Reduces the headers of a request from `peer` to one spelling, as the gateway does, and identifies its client.
    fn identify<B>(
        &self,
        peer: SocketAddr,
        request: &mut Request<B>,
    ) -> Result<Passage, Rejection> {
        // HTTP/2 has the host in the target.
        let authority = request.uri().authority();
        let host = authority.and_then(|host| HeaderValue::from_str(host.as_str()).ok());
        let headers = request.headers_mut();
        if has_padded_value(headers) {
            return Err(PADDED_VALUE);
        }
        self.names.settle(headers, true);
        let lookalikes = headers.keys().filter(|name| self.names.is_lookalike(name));
        for name in lookalikes.cloned().collect::<Vec<_>>() {
            headers.remove(name);
        }
        // A header with too many hops is ignored, as if the peer were not trusted.
        let caller = self
            .trust
            .identify(peer.ip(), headers)
            .or_else(|_| Trust::default().identify(peer.ip(), headers))
            .map_err(|error| Rejection::bad_request(error.to_string()))?;
        self.names
            .check_counted(RULE.0, headers, &caller, host.as_ref())?;
        Ok(Passage {
            caller,
            route: RULE,
            side: Side::Main,
            resending: Resending::ByMethod,
            arrival: None,
        })
    }
}

#[cfg(test)]
mod tests;
