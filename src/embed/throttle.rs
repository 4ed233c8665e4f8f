//! The layer that applies limits.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use tower::{Layer, Service};

use super::{Rejecting, Responding, context, take_ready};
use crate::store::memory::MemoryBuckets;
use crate::throttle::{RouteLimits, Throttle};

/// Applies limits to the requests of identified clients.
#[derive(Clone, Debug)]
pub struct ThrottleLayer(pub(super) Arc<Throttling>);

#[derive(Debug)]
pub(super) struct Throttling {
    pub(super) throttle: Arc<Throttle<MemoryBuckets>>,
    pub(super) limits: RouteLimits,
    pub(super) rejecting: Rejecting,
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
