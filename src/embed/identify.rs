//! Tower layer that identifies the client of a request.

use std::net::SocketAddr;
use std::sync::{Arc, Once};
use std::task::{Context, Poll};

use axum::extract::ConnectInfo;
use bytes::Bytes;
use futures_util::future::{Either, Ready, ready};
use http::{HeaderValue, Request, Response};
use tower::{Layer, Service};

use super::ProblemRenderer;
use crate::client::Trust;
use crate::context::RequestContext;
use crate::intake::HeadError;
use crate::intake::headers::{CountedHeaders, HeaderNames, PADDED_VALUE, has_padded_value};
use crate::respond::Preferences;

/// Tower layer that identifies the client of each request. The other layers require this layer.
#[derive(Clone, Debug)]
pub struct IdentifyLayer(pub(super) Arc<IdentifyState>);

#[derive(Debug)]
pub(super) struct IdentifyState {
    pub(super) trust: Arc<Trust>,
    pub(super) names: HeaderNames,
    pub(super) counted: CountedHeaders,
    pub(super) problems: ProblemRenderer,
}

/// Service of [`IdentifyLayer`], which attaches the identified client to each request.
#[derive(Clone, Debug)]
pub struct Identify<Inner> {
    inner: Inner,
    state: Arc<IdentifyState>,
}

impl<Inner> Layer<Inner> for IdentifyLayer {
    type Service = Identify<Inner>;

    fn layer(&self, inner: Inner) -> Self::Service {
        Identify {
            inner,
            state: Arc::clone(&self.0),
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
                    "peer address unknown, rate limits and idempotency keys not applied; serve the application with \
                     into_make_service_with_connect_info::<SocketAddr>()"
                );
            });
            return Either::Left(self.inner.call(request));
        };
        match self.state.identify(peer, &mut request) {
            Ok(ctx) => {
                request.extensions_mut().insert(Arc::new(ctx));
                Either::Left(self.inner.call(request))
            }
            Err(error) => {
                let preferences = Preferences::of(request.headers());
                let response = self.state.problems.render(error.into(), &preferences);
                Either::Right(ready(Ok(response)))
            }
        }
    }
}

impl IdentifyState {
    /// Normalises the headers of a request from `peer` in the same way as the gateway, and identifies its client.
    fn identify<B>(
        &self,
        peer: SocketAddr,
        request: &mut Request<B>,
    ) -> Result<RequestContext, HeadError> {
        // The host is read from the request target, because an HTTP/2 request has its host there instead of in the
        // header `Host`.
        let authority = request.uri().authority();
        let host = authority.and_then(|host| HeaderValue::from_str(host.as_str()).ok());
        let headers = request.headers_mut();
        if has_padded_value(headers) {
            return Err(PADDED_VALUE);
        }
        self.names.normalise(headers, true);
        let lookalikes = headers.keys().filter(|name| self.names.is_lookalike(name));
        for name in lookalikes.cloned().collect::<Vec<_>>() {
            headers.remove(name);
        }
        // If `X-Forwarded-For` has too many hops, it is ignored, as if the peer were not trusted to send it.
        let caller = self
            .trust
            .identify(peer.ip(), headers)
            .or_else(|_| Trust::default().identify(peer.ip(), headers))
            .map_err(|error| HeadError::Invalid(error.to_string().into()))?;
        self.counted.check(headers, &caller, host.as_ref())?;
        Ok(RequestContext::new(caller, false, headers, None))
    }
}
