//! The layer that executes keyed requests once.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::BodyExt as _;
use tower::{Layer, Service};

use super::{Rejecting, Responding, context, take_ready};
use crate::body::{BodyError, BoxError, RequestBody, ResponseBody};
use crate::idempotency::{Idempotency, RouteKeys};
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
