//! One connection: which HTTP it speaks, and speaking it.

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
use crate::context::{Connection, ConnectionPermit};
use crate::http1::{self, FlushBatch, Protocol, Rewind, detect};
use crate::http2;
use crate::net::{ClientSocket, keep_alive};
use crate::pipeline::Pipeline;
use crate::settings::{Caps, Deadlines};

/// The terms on which a worker serves its connections.
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
    let connection = move |scheme| Connection::new(peer, scheme, tasks, permit);
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

/// A future in a box of its own. A connection lives for long and mostly waits: at rest it is to take up
/// what its present stage needs, and not what the largest one would. The box is made by a function that
/// is not async itself, because an async one would keep room for what it moves into the box.
type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a connection ended of.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The stream, once both sides have agreed on TLS.
fn shake_hands<'a>(
    acceptor: &'a TlsAcceptor,
    stream: TcpStream,
    deadlines: &'a Deadlines,
) -> Boxed<'a, Option<TlsStream<TcpStream>>> {
    Box::pin(async move {
        match tokio::time::timeout(deadlines.handshake, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a TLS handshake failed");
                None
            }
            Err(_elapsed) => {
                tracing::debug!("a TLS handshake took too long");
                None
            }
        }
    })
}

/// Speaks the HTTP that shows in the first bytes, with ALPN or without: a client that agreed on one and
/// begins with the other would only fail later.
fn speak<IO>(mut io: IO, connection: Connection, terms: &Terms) -> Boxed<'_, ()>
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
                tracing::debug!(%error, "a connection came to nothing");
                return;
            }
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, "a connection ended early");
        }
    })
}

fn speak_http1<IO>(
    io: IO,
    early: BytesMut,
    connection: Connection,
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
    connection: Connection,
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
