//! Tower layer of a rule. One layer contains all steps, so that an application cannot apply them in a wrong order or
//! without a client.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Once};
use std::task::{Context, Poll};

use axum::extract::connect_info::MockConnectInfo;
use axum::extract::{ConnectInfo, OriginalUri};
use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use tokio_util::task::TaskTracker;
use tower::{Layer, Service};

use super::rules::HeaderChecks;
use crate::clock::{Clock, Moment};
use crate::idempotency::{Idempotency, IdempotencyError, OnUnknown, RouteKeys};
use crate::metrics::RouteMetrics;
use crate::request::body::{BodyError, BoxError, RequestBody, ResponseBody};
use crate::request::client::Trust;
use crate::request::context::{Delivery, FailedRequest, RequestContext};
use crate::request::head;
use crate::request::request_id::RequestId;
use crate::respond::cors::preflight_method;
use crate::respond::{Preferences, Problem, RespondSettings, render};
use crate::store::{BucketStore, OpenStore, RecordStore};
use crate::throttle::{KeySource, RouteLimits, Throttle};

/// Tower layer that applies the limits and the idempotency keys of a rule. Clones share their state.
#[derive(Clone, Debug)]
pub struct EmbeddedLayer(Arc<RuleState>);

/// Service of [`EmbeddedLayer`].
#[derive(Clone, Debug)]
pub struct EmbeddedService<Inner> {
    inner: Inner,
    rule: Arc<RuleState>,
}

#[derive(Debug)]
pub(super) struct RuleState {
    pub(super) trust: Arc<Trust>,
    pub(super) respond: Arc<RespondSettings>,
    pub(super) throttle: Arc<Throttle<BucketStore>>,
    pub(super) headers: HeaderChecks,
    pub(super) limits: RouteLimits,
    pub(super) idempotency: Idempotency<RecordStore>,
    /// `None` if the rule ignores keys.
    pub(super) keys: Option<Arc<RouteKeys>>,
    /// Closed at shutdown, after which no execution starts.
    pub(super) tasks: TaskTracker,
    pub(super) metrics: Arc<RouteMetrics>,
    /// Not closed before the last layer is dropped.
    pub(super) _store: OpenStore,
    pub(super) clock: Clock,
}

/// Request extension of a request that is executed under a claim. Nested layers do not claim its key again, because
/// they would wait for this claim.
#[derive(Clone, Copy, Debug)]
struct Claimed;

impl EmbeddedLayer {
    pub(super) fn new(rule: RuleState) -> Self {
        Self(Arc::new(rule))
    }
}

impl<Inner> Layer<Inner> for EmbeddedLayer {
    type Service = EmbeddedService<Inner>;

    fn layer(&self, inner: Inner) -> Self::Service {
        EmbeddedService {
            inner,
            rule: Arc::clone(&self.0),
        }
    }
}

impl<Inner, ReqBody, ResBody> Service<Request<ReqBody>> for EmbeddedService<Inner>
where
    Inner: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone + Send + 'static,
    Inner::Future: Send,
    Inner::Error: Send + 'static,
    ReqBody: Body<Data = Bytes> + From<Bytes> + Send + 'static,
    ReqBody::Error: Into<BoxError>,
    ResBody: Body<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody>;
    type Error = Inner::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        // The clone is not ready, so it is kept for the next request.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let call = move |request| {
            let called = inner.call(request);
            async move {
                Ok(called.await?.map(|body| {
                    let to_error = |error: ResBody::Error| BodyError::Application(error.into());
                    ResponseBody::streaming(body.map_err(to_error))
                }))
            }
        };
        let rule = Arc::clone(&self.rule);
        Box::pin(async move {
            // An error of the application has no status, so it is not counted.
            let response = rule.respond(request, call).await?;
            rule.metrics.responded(response.status().as_u16());
            Ok(response)
        })
    }
}

impl RuleState {
    async fn respond<B, F, Fut, E>(
        &self,
        request: Request<B>,
        call: F,
    ) -> Result<Response<ResponseBody>, E>
    where
        B: Body<Data = Bytes> + From<Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
        F: FnOnce(Request<B>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Response<ResponseBody>, E>> + Send,
        E: Send + 'static,
    {
        let (mut parts, body) = request.into_parts();
        let ctx = match self.identify(&mut parts) {
            Ok(ctx) => ctx,
            Err(problem) => return Ok(self.render(problem, &Preferences::of(&parts.headers))),
        };
        let source = KeySource::from(&parts);
        let admission = match self.throttle.charge(&ctx, &self.limits, source).await {
            Ok(admission) => admission,
            Err(problem) => return Ok(self.render(problem, &ctx.preferences)),
        };
        let mut response = self.execute(&ctx, parts, body, call).await?;
        self.limits
            .write_headers(&admission, response.headers_mut());
        Ok(response)
    }

    /// As the gateway does.
    fn identify(&self, request: &mut Parts) -> Result<RequestContext, Problem> {
        let peer = peer(request).ok_or_else(unknown_peer)?;
        let HeaderChecks { names, identifying } = &self.headers;
        let caller = head::identify(request, peer.ip(), names, &self.trust, identifying)?;
        let headers = &request.headers;
        let is_preflight = preflight_method(&request.method, headers).is_some();
        Ok(RequestContext::new(
            caller,
            Moment::default(),
            is_preflight,
            headers,
            None,
        ))
    }

    async fn execute<B, F, Fut, E>(
        &self,
        ctx: &RequestContext,
        parts: Parts,
        body: B,
        call: F,
    ) -> Result<Response<ResponseBody>, E>
    where
        B: Body<Data = Bytes> + From<Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
        F: FnOnce(Request<B>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Response<ResponseBody>, E>> + Send,
        E: Send + 'static,
    {
        let request = Request::from_parts(parts, body);
        let is_claimed = request.extensions().get::<Claimed>().is_some();
        let Some(keys) = self.keys.as_ref().filter(|_| !is_claimed) else {
            return call(request).await;
        };
        let mut keyed = match keys.inspect(&request) {
            Ok(Some(keyed)) => keyed,
            Ok(None) => return call(request).await,
            Err(error) => return Ok(self.render(error.into(), &ctx.preferences)),
        };
        if self.tasks.is_closed() {
            let error = IdempotencyError::StoreUnavailable;
            return Ok(self.render(error.into(), &ctx.preferences));
        }
        let (mut parts, body) = request.into_parts();
        keys.name_caller(&mut keyed, &parts);
        let request_id = RequestId::sent(&parts.headers);
        // A nested router of axum removes the prefix of the path, which the fingerprint contains.
        let routed = parts.uri.clone();
        if let Some(OriginalUri(original)) = parts.extensions.get() {
            parts.uri = original.clone();
        }
        // For the first request. Duplicates that wait for it get a problem instead.
        let failure = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&failure);
        let tasks = self.tasks.clone();
        let execute = move |mut request: Request<RequestBody>, claim: Option<OnUnknown>| async move {
            if claim.is_some() {
                // If `tasks`, which contain this execution, are open here, the shutdown waits for it.
                if tasks.is_closed() {
                    return Err(shut_down());
                }
                request.extensions_mut().insert(Claimed);
            }
            *request.uri_mut() = routed;
            let called = call(request.map(|body| {
                let whole = body.whole().cloned();
                whole
                    .expect("the idempotency stage has read the body")
                    .into()
            }));
            let called = called.await;
            called.map_err(|error| {
                *slot.lock() = Some(error);
                application_failed()
            })
        };
        let request = Request::from_parts(parts, RequestBody::application(body));
        let running =
            (self.idempotency).run(ctx, keys, keyed, request_id.as_ref(), request, execute);
        let response = running.await;
        match (response, failure.lock().take()) {
            (_, Some(error)) => Err(error),
            (Ok(response), None) => Ok(response),
            (Err(problem), None) => Ok(self.render(problem, &ctx.preferences)),
        }
    }

    fn render(&self, problem: Problem, preferences: &Preferences) -> Response<ResponseBody> {
        render(problem, preferences, &self.respond, &self.clock)
    }
}

fn peer(request: &Parts) -> Option<SocketAddr> {
    let connected = request.extensions.get::<ConnectInfo<SocketAddr>>();
    let mocked = || request.extensions.get::<MockConnectInfo<SocketAddr>>();
    connected
        .map(|ConnectInfo(peer)| *peer)
        .or_else(|| mocked().map(|MockConnectInfo(peer)| *peer))
}

/// Without a client, limits and idempotency keys cannot be applied, so the request is not executed.
fn unknown_peer() -> Problem {
    static LOGGED: Once = Once::new();
    let detail = "The server does not know the address of the client, so it cannot apply limits and idempotency keys. \
                  The request was not executed. Serve the application with \
                  into_make_service_with_connect_info::<SocketAddr>().";
    LOGGED.call_once(|| {
        tracing::error!(
            "peer address unknown, responding with 500; serve the application with \
             into_make_service_with_connect_info::<SocketAddr>()"
        );
    });
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "client-address-unknown",
        "Client address unknown",
        detail,
    )
    .never_retry()
}

fn shut_down() -> FailedRequest {
    FailedRequest {
        problem: IdempotencyError::StoreUnavailable.into(),
        delivery: Delivery::Unsent,
    }
}

/// It is unknown whether the application has executed the request.
fn application_failed() -> FailedRequest {
    FailedRequest {
        problem: Problem::upstream_unavailable(
            "The application returned an error instead of a response. Check its logs before you repeat the request.",
            false,
        ),
        delivery: Delivery::PossiblySent,
    }
}
