//! Tower layer that executes requests with an idempotency key once.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use tower::{Layer, Service};

use super::{ProblemRenderer, ResponseFuture, context, take_ready};
use crate::body::{BodyError, BoxError, RequestBody, ResponseBody};
use crate::context::{Delivery, FailedRequest};
use crate::idempotency::{Idempotency, RouteKeys};
use crate::problem::Problem;
use crate::store::memory::records::MemoryRecords;

/// Tower layer that executes requests with an idempotency key once and replays their responses.
#[derive(Clone, Debug)]
pub struct IdempotencyLayer(pub(super) Arc<IdempotencyState>);

#[derive(Debug)]
pub(super) struct IdempotencyState {
    pub(super) stage: Idempotency<MemoryRecords>,
    pub(super) keys: Option<Arc<RouteKeys>>,
    pub(super) problems: ProblemRenderer,
}

/// Service of [`IdempotencyLayer`], which executes requests with an idempotency key once.
#[derive(Clone, Debug)]
pub struct Idempotent<Inner> {
    inner: Inner,
    state: Arc<IdempotencyState>,
}

impl<Inner> Layer<Inner> for IdempotencyLayer {
    type Service = Idempotent<Inner>;

    fn layer(&self, inner: Inner) -> Self::Service {
        Idempotent {
            inner,
            state: Arc::clone(&self.0),
        }
    }
}

impl<Inner, ReqBody, ResBody> Service<Request<ReqBody>> for Idempotent<Inner>
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
    type Future = ResponseFuture<ResponseBody, Inner::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let mut inner = take_ready(&mut self.inner);
        let state = Arc::clone(&self.state);
        let mut call = move |request| {
            let called = inner.call(request);
            async move {
                let response = called.await?;
                Ok::<_, Inner::Error>(response.map(|body| {
                    let to_error = |error: ResBody::Error| BodyError::Application(error.into());
                    ResponseBody::streaming(body.map_err(to_error))
                }))
            }
        };
        Box::pin(async move {
            let (Some(ctx), Some(keys)) = (context(&request), &state.keys) else {
                return call(request).await;
            };
            let keyed = match keys.inspect(&request) {
                Ok(Some(keyed)) => keyed,
                Ok(None) => return call(request).await,
                Err(error) => return Ok(state.problems.render(error.into(), &ctx.preferences)),
            };
            // The error of the application is saved here, because this function returns it for the first request.
            // Duplicate requests that wait for the first request get a problem response instead.
            let failure = Arc::new(Mutex::new(None));
            let slot = Arc::clone(&failure);
            let execute = move |request: Request<RequestBody>, _| async move {
                // The body is always complete here, because the idempotency stage has read it into memory.
                let whole = |body: RequestBody| body.whole().cloned().unwrap_or_default();
                let called = call(request.map(|body| whole(body).into())).await;
                called.map_err(|error| {
                    *slot.lock() = Some(error);
                    application_failed()
                })
            };
            let request = request.map(RequestBody::application);
            let response = state.stage.run(&ctx, keys, keyed, request, execute).await;
            match (response, failure.lock().take()) {
                (_, Some(error)) => Err(error),
                (Ok(response), None) => Ok(response),
                (Err(problem), None) => Ok(state.problems.render(problem, &ctx.preferences)),
            }
        })
    }
}

/// Returns the result of a request for which the application returned an error. It is unknown whether the application
/// has executed the request.
fn application_failed() -> FailedRequest {
    FailedRequest {
        problem: Problem::upstream_unavailable(
            "The application returned an error instead of a response. Check its logs before you repeat the request.",
            false,
        ),
        delivery: Delivery::PossiblySent,
    }
}
