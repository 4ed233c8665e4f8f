//! The layer that executes keyed requests once.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use tower::{Layer, Service};

use super::{Rejecting, Responding, context, take_ready};
use crate::body::{BodyError, BoxError, RequestBody, ResponseBody};
use crate::context::{Failed, Undone};
use crate::idempotency::{Idempotency, RouteKeys};
use crate::problem::Problem;
use crate::store::memory::records::MemoryRecords;

/// Executes keyed requests of identified clients once, and replays their responses.
#[derive(Clone, Debug)]
pub struct IdempotencyLayer(pub(super) Arc<Keying>);

#[derive(Debug)]
pub(super) struct Keying {
    pub(super) stage: Idempotency<MemoryRecords>,
    pub(super) keys: Option<Arc<RouteKeys>>,
    pub(super) rejecting: Rejecting,
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
    Inner::Error: Send + 'static,
    ReqBody: Body<Data = Bytes> + From<Bytes> + Send + 'static,
    ReqBody::Error: Into<BoxError>,
    ResBody: Body<Data = Bytes> + Send + 'static,
    ResBody::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody>;
    type Error = Inner::Error;
    type Future = Responding<ResponseBody, Inner::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let mut inner = take_ready(&mut self.inner);
        let keying = Arc::clone(&self.keying);
        let mut call = move |request| {
            let responding = inner.call(request);
            async move {
                let response = responding.await?;
                Ok::<_, Inner::Error>(response.map(|body| {
                    let errors = |error: ResBody::Error| BodyError::Application(error.into());
                    ResponseBody::streaming(body.map_err(errors))
                }))
            }
        };
        Box::pin(async move {
            let (Some(ctx), Some(keys)) = (context(&request), &keying.keys) else {
                return call(request).await;
            };
            let keyed = match keys.inspect(&request) {
                Ok(Some(keyed)) => keyed,
                Ok(None) => return call(request).await,
                Err(error) => return Ok(keying.rejecting.render(error.into(), &ctx.preferences)),
            };
            // The error of the application, for this caller. Duplicates get the problem.
            let failure = Arc::new(Mutex::new(None));
            let slot = Arc::clone(&failure);
            let execute = move |request: Request<RequestBody>, _| async move {
                // The stage has read the whole body.
                let whole = |body: RequestBody| body.whole().cloned().unwrap_or_default();
                let called = call(request.map(|body| whole(body).into())).await;
                called.map_err(|error| {
                    *slot.lock() = Some(error);
                    application_failed()
                })
            };
            let request = request.map(RequestBody::application);
            let response = keying.stage.run(&ctx, keys, keyed, request, execute).await;
            match (response, failure.lock().take()) {
                (_, Some(error)) => Err(error),
                (Ok(response), None) => Ok(response),
                (Err(problem), None) => Ok(keying.rejecting.render(problem, &ctx.preferences)),
            }
        })
    }
}

/// The result of a request whose service returned an error. It may have been executed.
fn application_failed() -> Failed {
    Failed {
        problem: Problem::upstream_unavailable("The application failed.", false),
        undone: Undone::Lost,
    }
}
