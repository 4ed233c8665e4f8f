//! Limits and idempotency keys as tower layers for an axum application, without the proxy.
//!
//! An application has its own routes, so it needs one rule: its limits and the meaning of its keys. [`Embedded`] holds
//! the state that the layers share. tower applies layers from last to first:
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
//! Serve it with `into_make_service_with_connect_info::<SocketAddr>()`: a request whose peer is not known has no client,
//! and passes all layers unchanged, which is logged once. Apply the layers to the outermost router: inside a nested one
//! they see a shortened path, and could take two requests for one. All state is in memory.
//!
//! The layers are adapters: the stages themselves are the functions that the gateway calls.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::{Arc, Once};
use std::task::{Context, Poll};

use axum::extract::ConnectInfo;
use bytes::Bytes;
use futures_util::future::{Either, Ready, ready};
use http::{HeaderValue, Request, Response};
use http_body::Body;
use http_body_util::BodyExt as _;
use tokio_util::task::TaskTracker;
use tower::{Layer, Service};

use crate::body::{BodyError, BoxError, RequestBody, ResponseBody};
use crate::buffers::{BufferBounds, Buffers};
use crate::client::Trust;
use crate::clock::Clock;
use crate::context::RequestContext;
use crate::hash_keys::HashKeySource;
use crate::idempotency::{Idempotency, RouteKeys, Rule};
use crate::intake::HeadError;
use crate::intake::headers::{CountedHeaders, HeaderNames, PADDED_VALUE, has_padded_value};
use crate::metrics::Metrics;
use crate::problem::Problem;
use crate::respond::{Preferences, RespondSettings, render};
use crate::store::StoreCapacity;
use crate::store::memory::MemoryBuckets;
use crate::store::memory::records::MemoryRecords;
use crate::throttle::{Limit, LimitId, Mode, RouteLimits, Throttle};

/// Buckets tracked at once.
const MAX_CLIENTS: usize = 1_000_000;

/// Executions in flight at once.
const MAX_EXECUTIONS: usize = 65_536;

/// The state that the layers of one application share.
#[derive(Debug)]
pub struct Embedded {
    limits: Vec<Arc<Limit>>,
    rule: Option<Rule>,
    trust: Arc<Trust>,
    settings: Arc<RespondSettings>,
    throttle: Arc<Throttle<MemoryBuckets>>,
    records: MemoryRecords,
    hash_keys: HashKeySource,
    buffers: Arc<Buffers>,
    metrics: Metrics,
    tasks: TaskTracker,
    clock: Clock,
}

impl Embedded {
    /// Creates layers that apply `limits` to every client and, if given, a rule for idempotency keys. No peer is trusted
    /// to set `X-Forwarded-For`.
    pub fn new(limits: Vec<Limit>, idempotency: Option<Rule>) -> Self {
        let limits: Vec<_> = (0..)
            .zip(limits)
            .map(|(index, limit)| {
                let id = LimitId(index);
                Arc::new(Limit { id, ..limit })
            })
            .collect();
        let clock = Clock::real();
        let hash_keys = HashKeySource::random();
        let buckets = MemoryBuckets::new(MAX_CLIENTS, clock.clone());
        let route = ("embedded".into(), idempotency.is_some());
        Self {
            trust: Arc::default(),
            settings: Arc::default(),
            throttle: Arc::new(Throttle::new(buckets, hash_keys.clone())),
            records: MemoryRecords::new(StoreCapacity::default(), clock.clone()),
            hash_keys,
            buffers: Arc::new(Buffers::new(BufferBounds::default())),
            metrics: Metrics::new(
                [(&route.0, route.1)],
                limits.iter().map(|limit| &limit.name),
                [],
            ),
            tasks: TaskTracker::new(),
            limits,
            rule: idempotency,
            clock,
        }
    }

    /// Sets the peers that are trusted to set `X-Forwarded-For`.
    #[must_use]
    pub fn trusting(self, trust: Trust) -> Self {
        let trust = Arc::new(trust);
        Self { trust, ..self }
    }

    /// Sets the form of the responses that the layers make: dialect, hints for SDKs, link to documentation, CORS.
    #[must_use]
    pub fn speaking(self, settings: RespondSettings) -> Self {
        let settings = Arc::new(settings);
        Self { settings, ..self }
    }

    /// Sets the bounds on request and response bodies that are held in memory. Choose bounds that are not below
    /// `max_request` of the rule: a larger keyed request body is always rejected with 503.
    #[must_use]
    pub fn buffering(self, bounds: BufferBounds) -> Self {
        let buffers = Arc::new(Buffers::new(bounds));
        Self { buffers, ..self }
    }

    /// Returns the layer that identifies the client, which a request passes first. It rejects a request with 400 if a
    /// header that a limit or the scope is counted by is repeated, or if a value has white space around it.
    pub fn identify(&self) -> IdentifyLayer {
        let mut names = HeaderNames::default();
        let headers_of = |mode| {
            let limits = self.limits.iter().filter(move |limit| limit.mode == mode);
            limits.flat_map(|limit| limit.headers())
        };
        let rule = self.rule.as_ref();
        let scope = rule.into_iter().flat_map(|rule| rule.scope.headers());
        let counted = names.add_route(
            headers_of(Mode::Enforce).chain(scope),
            headers_of(Mode::Shadow),
            rule.map(|rule| &rule.header),
        );
        IdentifyLayer(Arc::new(Identifying {
            trust: Arc::clone(&self.trust),
            names,
            counted,
            rejecting: self.rejecting(),
        }))
    }

    /// Returns the layer that applies the limits, which a request passes second.
    pub fn throttle(&self) -> ThrottleLayer {
        let limits = RouteLimits::new(
            &self.limits,
            NonZeroU32::MIN,
            self.settings.rate_limit,
            &self.metrics.routes[0],
            &self.metrics,
            self.clock.clone(),
        );
        ThrottleLayer(Arc::new(Throttling {
            throttle: Arc::clone(&self.throttle),
            limits,
            rejecting: self.rejecting(),
        }))
    }

    /// Returns the layer that replays responses to repeated keys, which a request passes last.
    pub fn idempotency(&self) -> IdempotencyLayer {
        let rule = self.rule.clone();
        IdempotencyLayer(Arc::new(Keying {
            stage: Idempotency::new(
                self.records.clone(),
                self.hash_keys.clone(),
                MAX_EXECUTIONS,
                Arc::clone(&self.buffers),
                self.tasks.clone(),
                self.clock.clone(),
            ),
            keys: rule.map(|rule| {
                let metrics = Arc::clone(&self.metrics.routes[0]);
                Arc::new(RouteKeys::new(rule, metrics))
            }),
            rejecting: self.rejecting(),
        }))
    }

    /// Waits for executions whose clients may have disconnected. To be called when no more requests arrive.
    pub async fn finish(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn rejecting(&self) -> Rejecting {
        Rejecting {
            settings: Arc::clone(&self.settings),
            clock: self.clock.clone(),
        }
    }
}

/// Renders the problems of a layer.
#[derive(Clone, Debug)]
struct Rejecting {
    settings: Arc<RespondSettings>,
    clock: Clock,
}

impl Rejecting {
    fn render<B: From<Bytes>>(&self, problem: Problem, preferences: &Preferences) -> Response<B> {
        render(problem, preferences, &self.settings, &self.clock)
    }
}

/// The future of a request.
type Responding<B, E> = Pin<Box<dyn Future<Output = Result<Response<B>, E>> + Send>>;

/// Identifies the client of each request for the layers behind it.
#[derive(Clone, Debug)]
pub struct IdentifyLayer(Arc<Identifying>);

#[derive(Debug)]
struct Identifying {
    trust: Arc<Trust>,
    names: HeaderNames,
    counted: CountedHeaders,
    rejecting: Rejecting,
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
            static WARNED: Once = Once::new();
            WARNED.call_once(|| {
                tracing::warn!(
                    "the peer of a request is not known, so no limit and no key applies to it"
                );
            });
            return Either::Left(self.inner.call(request));
        };
        match self.identifying.identify(peer, &mut request) {
            Ok(ctx) => {
                request.extensions_mut().insert(Arc::new(ctx));
                Either::Left(self.inner.call(request))
            }
            Err(error) => {
                let preferences = Preferences::of(request.headers());
                let response = self
                    .identifying
                    .rejecting
                    .render(error.into(), &preferences);
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
    ) -> Result<RequestContext, HeadError> {
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
            .map_err(|error| HeadError::Invalid(error.to_string().into()))?;
        self.counted.check(headers, &caller, host.as_ref())?;
        Ok(RequestContext::new(caller, false, headers, None))
    }
}

/// Returns the context that [`IdentifyLayer`] has attached to a request.
fn context<B>(request: &Request<B>) -> Option<Arc<RequestContext>> {
    request.extensions().get().cloned()
}

/// Takes the service that was found ready, and leaves a clone for the next request.
fn take_ready<Inner: Clone>(inner: &mut Inner) -> Inner {
    let clone = inner.clone();
    std::mem::replace(inner, clone)
}

/// Applies limits to the requests of identified clients.
#[derive(Clone, Debug)]
pub struct ThrottleLayer(Arc<Throttling>);

#[derive(Debug)]
struct Throttling {
    throttle: Arc<Throttle<MemoryBuckets>>,
    limits: RouteLimits,
    rejecting: Rejecting,
}

/// A service with limits.
#[derive(Clone, Debug)]
pub struct Throttled<Inner> {
    inner: Inner,
    throttling: Arc<Throttling>,
}

impl<Inner> Layer<Inner> for ThrottleLayer {
    type Service = Throttled<Inner>;

    fn layer(&self, inner: Inner) -> Self::Service {
        Throttled {
            inner,
            throttling: Arc::clone(&self.0),
        }
    }
}

impl<Inner, ReqBody, ResBody> Service<Request<ReqBody>> for Throttled<Inner>
where
    Inner: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    Inner::Future: Send,
    ReqBody: Send + 'static,
    ResBody: From<Bytes>,
{
    type Response = Response<ResBody>;
    type Error = Inner::Error;
    type Future = Responding<ResBody, Inner::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let mut inner = take_ready(&mut self.inner);
        let throttling = Arc::clone(&self.throttling);
        Box::pin(async move {
            let Some(ctx) = context(&request) else {
                return inner.call(request).await;
            };
            let Throttling {
                throttle,
                limits,
                rejecting,
            } = &*throttling;
            let charged = throttle.charge(&ctx, limits, request.headers()).await;
            match charged {
                Ok(admission) => {
                    let mut response = inner.call(request).await?;
                    limits.write_headers(&admission, response.headers_mut());
                    Ok(response)
                }
                Err(problem) => Ok(rejecting.render(problem, &ctx.preferences)),
            }
        })
    }
}

/// Executes keyed requests of identified clients once, and replays their responses.
#[derive(Clone, Debug)]
pub struct IdempotencyLayer(Arc<Keying>);

#[derive(Debug)]
struct Keying {
    stage: Idempotency<MemoryRecords>,
    keys: Option<Arc<RouteKeys>>,
    rejecting: Rejecting,
}

/// A service whose keyed requests are executed once.
#[derive(Clone, Debug)]
pub struct Idempotent<Inner> {
    inner: Inner,
    keying: Arc<Keying>,
}

impl<Inner> Layer<Inner> for IdempotencyLayer {
    type Service = Idempotent<Inner>;

    fn layer(&self, inner: Inner) -> Self::Service {
        Idempotent {
            inner,
            keying: Arc::clone(&self.0),
        }
    }
}

impl<Inner, ReqBody, ResBody> Service<Request<ReqBody>> for Idempotent<Inner>
where
    Inner: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    Inner::Future: Send,
    Inner::Error: Into<Infallible> + Send,
    ReqBody: Body<Data = Bytes> + From<Bytes> + Send + 'static,
    ReqBody::Error: Into<BoxError>,
    ResBody: Body<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = Responding<ResponseBody, Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let mut inner = take_ready(&mut self.inner);
        let keying = Arc::clone(&self.keying);
        let mut call = move |request| {
            let responding = inner.call(request);
            async move {
                let Ok(response) = responding.await.map_err(Into::<Infallible>::into);
                response.map(|body| {
                    let errors = |error: ResBody::Error| BodyError::Application(error.into());
                    ResponseBody::streaming(body.map_err(errors))
                })
            }
        };
        Box::pin(async move {
            let (Some(ctx), Some(keys)) = (context(&request), &keying.keys) else {
                return Ok(call(request).await);
            };
            let keyed = match keys.inspect(&request) {
                Ok(Some(keyed)) => keyed,
                Ok(None) => return Ok(call(request).await),
                Err(error) => return Ok(keying.rejecting.render(error.into(), &ctx.preferences)),
            };
            let execute = move |request: Request<RequestBody>, _| async move {
                // The stage has read the whole body.
                let whole = |body: RequestBody| body.whole().cloned().unwrap_or_default();
                Ok(call(request.map(|body| whole(body).into())).await)
            };
            let request = request.map(RequestBody::application);
            let response = keying.stage.run(&ctx, keys, keyed, request, execute).await;
            Ok(response
                .unwrap_or_else(|problem| keying.rejecting.render(problem, &ctx.preferences)))
        })
    }
}

#[cfg(test)]
mod tests;
