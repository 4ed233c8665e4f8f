//! The layer that identifies clients.

use std::net::SocketAddr;
use std::sync::{Arc, Once};
use std::task::{Context, Poll};

use axum::extract::ConnectInfo;
use bytes::Bytes;
use futures_util::future::{Either, Ready, ready};
use http::{HeaderValue, Request, Response};
use tower::{Layer, Service};

use super::Rejecting;
use crate::client::Trust;
use crate::context::RequestContext;
use crate::intake::HeadError;
use crate::intake::headers::{CountedHeaders, HeaderNames, PADDED_VALUE, has_padded_value};
use crate::respond::Preferences;

/// Identifies the client of each request for the layers behind it.
#[derive(Clone, Debug)]
pub struct IdentifyLayer(pub(super) Arc<Identifying>);

#[derive(Debug)]
pub(super) struct Identifying {
    pub(super) trust: Arc<Trust>,
    pub(super) names: HeaderNames,
    pub(super) counted: CountedHeaders,
    pub(super) rejecting: Rejecting,
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
