//! Serves one client connection: TLS handshake, ALPN or protocol detection, then HTTP/1 or HTTP/2.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};
use bytes::BytesMut;
use futures_util::future::{self, Either};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;

use super::drain::DrainSignal;
use crate::http::certificates::ALPN_HTTP2;
use crate::http::connections::ConnectionPermit;
use crate::http::http1::{self, FlushBatch, Protocol, Rewind, detect};
use crate::http::http2;
use crate::http::service::Received;
use crate::http::settings::ConnectionSettings;
use crate::http::socket::{ClientSocket, counted, keep_alive};
use crate::metrics::{TlsFailure, Totals};
use crate::pipeline::Pipeline;
use crate::request::body::RequestBody;
use crate::request::context::ClientConnection;

pub(super) struct WorkerContext {
    pub(super) pipeline: Arc<ArcSwap<Pipeline>>,
    pub(super) drain: DrainSignal,
    pub(super) flush_batch: FlushBatch,
    pub(super) tasks: TaskTracker,
}

impl WorkerContext {
    /// The client that `max_connections_per_client` counts for a connection from this peer.
    pub(super) fn connection_owner(&self, peer: SocketAddr) -> Option<IpAddr> {
        self.pipeline.load().trust().connection_owner(peer.ip())
    }
}

pub(super) async fn serve(
    stream: TcpStream,
    peer: IpAddr,
    permit: Arc<ConnectionPermit>,
    context: Arc<WorkerContext>,
) {
    if let Err(error) = set_socket_options(&stream) {
        tracing::debug!(%peer, %error, "cannot set TCP_NODELAY or TCP keep-alive, closing client connection");
        return;
    }
    let (tasks, held) = (context.tasks.clone(), Arc::clone(&permit));
    let connection = move |scheme| ClientConnection::new(peer, scheme, tasks, held);
    let serving = async {
        let (settings, tls, totals) = {
            let pipeline = context.pipeline.load();
            let tls = pipeline.settings().tls.as_ref();
            (
                Arc::clone(pipeline.connection_settings()),
                tls.map(|tls| Arc::clone(&tls.config)),
                Arc::clone(&pipeline.metrics().totals),
            )
        };
        let (settings, context) = (&*settings, &*context);
        let stream = counted(stream, &totals);
        match tls {
            None => serve_protocol(stream, None, connection("http"), settings, context).await,
            Some(tls) => {
                if let Some(stream) = tls_handshake(tls, stream, settings, &totals).await {
                    let negotiated = negotiated(&stream);
                    let connection = connection("https");
                    serve_protocol(stream, negotiated, connection, settings, context).await;
                }
            }
        }
    };
    tokio::select! {
        // HTTP/2 is polled first, because it sends GOAWAY when it is replaced.
        biased;
        () = serving => {}
        () = permit.replaced() => {
            tracing::debug!(%peer, "idle client connection replaced by a new one");
        }
    }
}

fn set_socket_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    keep_alive(stream)
}

/// Each phase of a connection has its own box, so that a connection uses only the memory of its current phase: most
/// connections are long-lived and idle. The functions that return the box are not `async`, because an `async` function
/// would reserve memory for the values it moves into the box.
type BoxedFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

fn tls_handshake<'a, IO>(
    tls: Arc<ServerConfig>,
    stream: IO,
    settings: &'a ConnectionSettings,
    totals: &'a Totals,
) -> BoxedFuture<'a, Option<TlsStream<IO>>>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'a,
{
    Box::pin(async move {
        let handshake = TlsAcceptor::from(tls).accept(stream);
        let failure = match tokio::time::timeout(settings.timeouts.handshake, handshake).await {
            Ok(Ok(stream)) => return Some(stream),
            Ok(Err(error)) => {
                tracing::debug!(%error, "TLS handshake with client failed, closing connection");
                let source = error.get_ref().and_then(|it| it.downcast_ref());
                match source {
                    None => TlsFailure::Closed,
                    Some(rustls::Error::AlertReceived(_)) => TlsFailure::Alert,
                    Some(_) => TlsFailure::Protocol,
                }
            }
            Err(_elapsed) => {
                tracing::debug!(
                    "TLS handshake with client timed out (handshake_timeout), closing connection"
                );
                TlsFailure::Timeout
            }
        };
        totals.tls_failures[failure as usize].inc();
        None
    })
}

/// `None` if the client did not offer ALPN.
fn negotiated<IO>(stream: &TlsStream<IO>) -> Option<Protocol> {
    match stream.get_ref().1.alpn_protocol()? {
        ALPN_HTTP2 => Some(Protocol::Http2),
        _ => Some(Protocol::Http1),
    }
}

/// If no protocol was negotiated with ALPN, the first bytes of the client determine it.
///
/// A negotiated protocol is binding, because other parties on the path, such as a load balancer, act on it. A client
/// that then uses the other protocol could pass their checks.
fn serve_protocol<'a, IO>(
    mut io: IO,
    negotiated: Option<Protocol>,
    connection: ClientConnection,
    settings: &'a ConnectionSettings,
    context: &'a WorkerContext,
) -> BoxedFuture<'a, ()>
where
    IO: AsyncRead + AsyncWrite + ClientSocket + Unpin + Send + 'static,
{
    Box::pin(async move {
        let detected = tokio::select! {
            biased;
            detected = detect(&mut io, settings.timeouts.head) => detected,
            // The client has sent nothing, or a part of the HTTP/2 preface. It must not delay the drain.
            () = drain_wait(settings, context) => return,
        };
        let (detected, early) = match detected {
            Ok(detected) => detected,
            Err(error) => {
                tracing::debug!(%error, "cannot detect HTTP version of client, closing connection");
                return;
            }
        };
        let outcome = match negotiated.unwrap_or(detected) {
            Protocol::Http1 => serve_http1(io, early, connection, settings, context).await,
            Protocol::Http2 => {
                let io = Rewind::new(io, early, settings.timeouts.write).with_lingering_close();
                serve_http2(io, connection, settings, context).await
            }
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, "client connection closed because of an error");
        }
    })
}

/// A connection without a request stays open for this time during a drain.
async fn drain_wait(settings: &ConnectionSettings, context: &WorkerContext) {
    context.drain.watch().await;
    tokio::time::sleep(settings.timeouts.drain).await;
}

fn serve_http1<'a, IO>(
    io: IO,
    early: BytesMut,
    connection: ClientConnection,
    settings: &'a ConnectionSettings,
    context: &'a WorkerContext,
) -> BoxedFuture<'a, io::Result<()>>
where
    IO: AsyncRead + AsyncWrite + ClientSocket + Unpin + Send + 'static,
{
    Box::pin(async move {
        let connection = Arc::new(connection);
        // The cache saves 60 instructions per request. An idle connection keeps the stages of its last request.
        let mut current = Cache::new(&*context.pipeline);
        let service = |received: Received<http1::Http1Body>| {
            let pipeline = Arc::clone(current.load());
            match received {
                Received::Request(request) => {
                    let max_body = pipeline.settings().limits.body_bytes;
                    let totals = &pipeline.metrics().totals;
                    let request = request.map(|body| RequestBody::http1(body, max_body, totals));
                    // Otherwise even an idle connection would reserve memory for the future.
                    Either::Left(Box::pin(pipeline.respond(&connection, request)))
                }
                Received::Invalid { violation, head } => {
                    let reply = pipeline.reject_invalid(&connection, violation, head.as_deref());
                    Either::Right(future::ready(reply))
                }
            }
        };
        let stop = context.drain.watch();
        let ConnectionSettings { limits, timeouts } = settings;
        let (timeouts, batch) = (*timeouts, &context.flush_batch);
        let permit = &connection.permit;
        http1::serve(io, early, permit, limits, timeouts, batch, stop, service).await
    })
}

fn serve_http2<'a, IO>(
    io: Rewind<IO>,
    connection: ClientConnection,
    settings: &'a ConnectionSettings,
    context: &'a WorkerContext,
) -> BoxedFuture<'a, io::Result<()>>
where
    IO: AsyncRead + AsyncWrite + ClientSocket + Unpin + Send + 'static,
{
    Box::pin(async move {
        let connection = Arc::new(connection);
        let permit = Arc::clone(&connection.permit);
        let current = Arc::clone(&context.pipeline);
        let service = move |received: Received<http2::Http2Body>| {
            let (pipeline, connection) = (current.load_full(), Arc::clone(&connection));
            match received {
                Received::Request(request) => {
                    let max_body = pipeline.settings().limits.body_bytes;
                    let totals = &pipeline.metrics().totals;
                    let request =
                        request.map(|body| RequestBody::of_client(body, max_body, totals));
                    Either::Left(async move { pipeline.respond(&connection, request).await })
                }
                Received::Invalid { violation, head } => {
                    let reply = pipeline.reject_invalid(&connection, violation, head.as_deref());
                    Either::Right(future::ready(reply))
                }
            }
        };
        let stop = context.drain.watch();
        let ConnectionSettings { limits, timeouts } = settings;
        let (timeouts, tasks) = (*timeouts, &context.tasks);
        let metrics = Arc::clone(&context.pipeline.load().metrics().totals.http2);
        http2::serve(io, &permit, limits, timeouts, tasks, metrics, stop, service).await
    })
}
