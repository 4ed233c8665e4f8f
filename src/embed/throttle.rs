//! Tower layer that applies rate limits.

use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use tower::{Layer, Service};

use super::{ProblemRenderer, ResponseFuture, context, take_ready};
use crate::store::memory::MemoryBuckets;
use crate::throttle::{RouteLimits, Throttle};

/// Tower layer that applies rate limits to the requests of identified clients.
#[derive(Clone, Debug)]
pub struct ThrottleLayer(pub(super) Arc<ThrottleState>);

#[derive(Debug)]
pub(super) struct ThrottleState {
    pub(super) throttle: Arc<Throttle<MemoryBuckets>>,
    pub(super) limits: RouteLimits,
    pub(super) problems: ProblemRenderer,
}

/// Service of [`ThrottleLayer`], which applies rate limits before it calls the inner service.
#[derive(Clone, Debug)]
pub struct Throttled<Inner> {
    inner: Inner,
    state: Arc<ThrottleState>,
}

impl<Inner> Layer<Inner> for ThrottleLayer {
    type Service = Throttled<Inner>;

    fn layer(&self, inner: Inner) -> Self::Service {
        Throttled {
            inner,
            state: Arc::clone(&self.0),
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
    type Future = ResponseFuture<ResBody, Inner::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        let mut inner = take_ready(&mut self.inner);
        let state = Arc::clone(&self.state);
        Box::pin(async move {
            let Some(ctx) = context(&request) else {
                return inner.call(request).await;
            };
            let ThrottleState {
                throttle,
                limits,
                problems,
            } = &*state;
            let charged = throttle.charge(&ctx, limits, request.headers()).await;
            match charged {
                Ok(admission) => {
                    let mut response = inner.call(request).await?;
                    limits.write_headers(&admission, response.headers_mut());
                    Ok(response)
                }
                Err(problem) => Ok(problems.render(problem, &ctx.preferences)),
            }
        })
    }
}
