//! Serves one client connection: TLS handshake, ALPN or protocol detection, then HTTP/1 or HTTP/2.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use bytes::BytesMut;
use futures_util::future::{self, Either};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;

use super::drain::DrainSignal;
use super::tls;
use crate::http::connections::ConnectionPermit;
use crate::http::http1::{self, FlushBatch, Protocol, Rewind, detect};
use crate::http::http2;
use crate::http::service::Received;
use crate::http::settings::{ClientTimeouts, ServerLimits};
use crate::http::socket::{ClientSocket, keep_alive};
use crate::pipeline::Pipeline;
use crate::request::body::{BoxError, RequestBody};
use crate::request::context::ClientConnection;

/// State that all connections of a worker share.
pub(super) struct WorkerContext {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) timeouts: ClientTimeouts,
    pub(super) limits: ServerLimits,
    pub(super) drain: DrainSignal,
    pub(super) flush_batch: FlushBatch,
    pub(super) tasks: TaskTracker,
}

impl WorkerContext {
    /// Returns the client that `max_connections_per_client` counts for a connection from this peer.
    pub(super) fn connection_owner(&self, peer: SocketAddr) -> Option<IpAddr> {
        self.pipeline.trust().connection_owner(peer.ip())
    }
}

/// Serves a client connection and returns when the connection is closed. Errors are logged.
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
        match &context.tls {
            None => serve_protocol(stream, None, connection("http"), &context).await,
            Some(acceptor) => {
                if let Some(stream) = tls_handshake(acceptor, stream, &context.timeouts).await {
                    let negotiated = negotiated(&stream);
                    serve_protocol(stream, negotiated, connection("https"), &context).await;
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

/// A boxed future. Each phase of a connection has its own box, so a connection uses only the memory of its current
/// phase. This matters because most connections are long-lived and idle. The functions that return the box are not
/// `async`, because an `async` function would reserve memory for the values it moves into the box.
type BoxedFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Performs the TLS handshake. Returns `None` if the handshake fails or `handshake_timeout` expires.
fn tls_handshake<'a>(
    acceptor: &'a TlsAcceptor,
    stream: TcpStream,
    timeouts: &'a ClientTimeouts,
) -> BoxedFuture<'a, Option<TlsStream<TcpStream>>> {
    Box::pin(async move {
        match tokio::time::timeout(timeouts.handshake, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(error)) => {
                tracing::debug!(%error, "TLS handshake with client failed, closing connection");
                None
            }
            Err(_elapsed) => {
                tracing::debug!(
                    "TLS handshake with client timed out (handshake_timeout), closing connection"
                );
                None
            }
        }
    })
}

/// Returns the protocol that client and gateway have negotiated with ALPN. `None` if the client did not offer ALPN.
fn negotiated(stream: &TlsStream<TcpStream>) -> Option<Protocol> {
    match stream.get_ref().1.alpn_protocol()? {
        tls::HTTP2 => Some(Protocol::Http2),
        _ => Some(Protocol::Http1),
    }
}

/// Serves the protocol that was negotiated with ALPN. If none was negotiated, the first bytes of the client determine
/// whether the gateway serves HTTP/1 or HTTP/2.
///
/// A negotiated protocol is binding. Other parties on the path, such as a load balancer, act on the result of ALPN. A
/// client that then uses the other protocol could pass their checks. Its bytes are an error in the negotiated protocol.
fn serve_protocol<IO>(
    mut io: IO,
    negotiated: Option<Protocol>,
    connection: ClientConnection,
    context: &WorkerContext,
) -> BoxedFuture<'_, ()>
where
    IO: AsyncRead + AsyncWrite + ClientSocket + Unpin + Send + 'static,
{
    Box::pin(async move {
        let detected = tokio::select! {
            biased;
            detected = detect(&mut io, context.timeouts.head) => detected,
            // At this point the client has sent nothing, or a part of the HTTP/2 preface. It must not delay the drain.
            () = drain_wait(context) => return,
        };
        let (detected, early) = match detected {
            Ok(detected) => detected,
            Err(error) => {
                tracing::debug!(%error, "cannot detect HTTP version of client, closing connection");
                return;
            }
        };
        let outcome = match negotiated.unwrap_or(detected) {
            Protocol::Http1 => serve_http1(io, early, connection, context).await,
            Protocol::Http2 => {
                let io = Rewind::new(io, early, context.timeouts.write).with_lingering_close();
                serve_http2(io, connection, context).await
            }
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, "client connection closed because of an error");
        }
    })
}

/// Waits until the drain starts, and then as long as a connection without a request stays open during a drain.
async fn drain_wait(context: &WorkerContext) {
    context.drain.watch().await;
    tokio::time::sleep(context.timeouts.drain).await;
}

fn serve_http1<IO>(
    io: IO,
    early: BytesMut,
    connection: ClientConnection,
    context: &WorkerContext,
) -> BoxedFuture<'_, Result<(), BoxError>>
where
    IO: AsyncRead + AsyncWrite + ClientSocket + Unpin + Send + 'static,
{
    Box::pin(async move {
        let connection = Arc::new(connection);
        let service = |received: Received<http1::Http1Body>| {
            let (max_body, metrics) = (context.limits.body_bytes, context.pipeline.metrics());
            match received {
                Received::Request(request) => {
                    let request = request.map(|body| RequestBody::http1(body, max_body, metrics));
                    // The future is boxed, because otherwise even an idle connection would reserve memory for it.
                    Either::Left(Box::pin(context.pipeline.respond(&connection, request)))
                }
                Received::Invalid { violation, head } => {
                    let reply =
                        (context.pipeline).reject_invalid(&connection, violation, head.as_deref());
                    Either::Right(future::ready(reply))
                }
            }
        };
        let stop = context.drain.watch();
        let (limits, timeouts, batch) = (&context.limits, context.timeouts, &context.flush_batch);
        let permit = &connection.permit;
        http1::serve(io, early, permit, limits, timeouts, batch, stop, service).await?;
        Ok(())
    })
}

fn serve_http2<IO>(
    io: Rewind<IO>,
    connection: ClientConnection,
    context: &WorkerContext,
) -> BoxedFuture<'_, Result<(), BoxError>>
where
    IO: AsyncRead + AsyncWrite + ClientSocket + Unpin + Send + 'static,
{
    Box::pin(async move {
        let connection = Arc::new(connection);
        let permit = Arc::clone(&connection.permit);
        let pipeline = Arc::clone(&context.pipeline);
        let max_body = context.limits.body_bytes;
        let service = move |received: Received<http2::Http2Body>| {
            let (pipeline, connection) = (Arc::clone(&pipeline), Arc::clone(&connection));
            match received {
                Received::Request(request) => {
                    let metrics = pipeline.metrics();
                    let request = request.map(|body| RequestBody::http2(body, max_body, metrics));
                    Either::Left(async move { pipeline.respond(&connection, request).await })
                }
                Received::Invalid { violation, head } => {
                    let reply = pipeline.reject_invalid(&connection, violation, head.as_deref());
                    Either::Right(future::ready(reply))
                }
            }
        };
        let stop = context.drain.watch();
        let (limits, timeouts, tasks) = (&context.limits, context.timeouts, &context.tasks);
        let metrics = Arc::clone(&context.pipeline.metrics().http2);
        http2::serve(io, &permit, limits, timeouts, tasks, metrics, stop, service).await?;
        Ok(())
    })
}
