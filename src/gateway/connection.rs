//! One connection: TLS handshake, protocol detection, HTTP.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use bytes::BytesMut;
use http::Request;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;

use super::drain::Drain;
use crate::body::RequestBody;
use crate::context::{ClientConnection, ConnectionPermit};
use crate::http1::{self, FlushBatch, Protocol, Rewind, detect};
use crate::http2;
use crate::net::{ClientSocket, keep_alive};
use crate::pipeline::Pipeline;
use crate::settings::{Caps, Deadlines};

/// What a worker serves its connections with.
pub(super) struct Terms {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) deadlines: Deadlines,
    pub(super) caps: Caps,
    pub(super) drain: Drain,
    pub(super) flush_batch: FlushBatch,
    pub(super) tasks: TaskTracker,
}

/// Serves a connection to its end.
pub(super) async fn serve(
    stream: TcpStream,
    peer: IpAddr,
    permit: Arc<ConnectionPermit>,
    terms: Arc<Terms>,
) {
    if let Err(error) = prepare(&stream) {
        tracing::debug!(%error, "connection closed before it was served");
        return;
    }
    let tasks = terms.tasks.clone();
    let connection = move |scheme| ClientConnection::new(peer, scheme, tasks, permit);
    match &terms.tls {
        None => speak(stream, connection("http"), &terms).await,
        Some(acceptor) => {
            if let Some(stream) = shake_hands(acceptor, stream, &terms.deadlines).await {
                speak(stream, connection("https"), &terms).await;
            }
        }
    }
}

/// Sets the options of a client's socket.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    keep_alive(stream)
}

/// A boxed future. A connection is open for long and mostly idle, so it should use the memory of its present state and
/// not of the largest one. The function that makes the box is not async, because an async function would reserve memory
/// for what it moves into the box.
type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Why a connection ended.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Completes the TLS handshake.
fn shake_hands<'a>(
    acceptor: &'a TlsAcceptor,
    stream: TcpStream,
    deadlines: &'a Deadlines,
) -> Boxed<'a, Option<TlsStream<TcpStream>>> {
    Box::pin(async move {
        match tokio::time::timeout(deadlines.handshake, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(error)) => {
                tracing::debug!(%error, "TLS handshake failed");
                None
            }
            Err(_elapsed) => {
                tracing::debug!("TLS handshake timed out");
                None
            }
        }
    })
}

/// Serves the protocol of the first bytes, also after ALPN: a client that agreed on one protocol and begins with another
/// would fail later.
fn speak<IO>(mut io: IO, connection: ClientConnection, terms: &Terms) -> Boxed<'_, ()>
where
    IO: AsyncRead + AsyncWrite + ClientSocket + Unpin + Send + 'static,
{
    Box::pin(async move {
        let outcome = match detect(&mut io, terms.deadlines.head).await {
            Ok((Protocol::Http1, early)) => speak_http1(io, early, connection, terms).await,
            Ok((Protocol::Http2, early)) => {
                let io = Rewind::new(io, early, terms.deadlines.write);
                speak_http2(io, connection, terms).await
            }
            Err(error) => {
                tracing::debug!(%error, "protocol detection failed");
                return;
            }
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, "connection ended early");
        }
    })
}

fn speak_http1<IO>(
    io: IO,
    early: BytesMut,
    connection: ClientConnection,
    terms: &Terms,
) -> Boxed<'_, Result<(), BoxError>>
where
    IO: AsyncRead + AsyncWrite + ClientSocket + Unpin + Send + 'static,
{
    Box::pin(async move {
        let connection = Arc::new(connection);
        let service = |request: Request<http1::Body>, violation| {
            let request = request.map(|body| RequestBody::http1(body, terms.caps.body_bytes));
            // Boxed, because an idle connection would reserve memory for it.
            Box::pin(terms.pipeline.respond(&connection, request, violation))
        };
        let stop = terms.drain.watch();
        let (caps, deadlines, batch) = (&terms.caps, terms.deadlines, &terms.flush_batch);
        http1::serve(io, early, caps, deadlines, batch, stop, service).await?;
        Ok(())
    })
}

fn speak_http2<IO>(
    io: Rewind<IO>,
    connection: ClientConnection,
    terms: &Terms,
) -> Boxed<'_, Result<(), BoxError>>
where
    IO: AsyncRead + AsyncWrite + ClientSocket + Unpin + Send + 'static,
{
    Box::pin(async move {
        let connection = Arc::new(connection);
        let pipeline = Arc::clone(&terms.pipeline);
        let max_body = terms.caps.body_bytes;
        let service = move |request: Request<http2::Body>, violation| {
            let (pipeline, connection) = (Arc::clone(&pipeline), Arc::clone(&connection));
            let request = request.map(|body| RequestBody::http2(body, max_body));
            async move { pipeline.respond(&connection, request, violation).await }
        };
        let stop = terms.drain.watch();
        let (caps, deadlines, tasks) = (&terms.caps, terms.deadlines, &terms.tasks);
        let metrics = Arc::clone(&terms.pipeline.metrics().http2);
        http2::serve(io, caps, deadlines, tasks, metrics, stop, service).await?;
        Ok(())
    })
}
