//! One connection: which HTTP it speaks, and speaking it.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;

use bytes::BytesMut;
use http::{Request, StatusCode, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::task::TaskTracker;

use super::drain::Drain;
use super::echo::Echoes;
use super::streams::Streams;
use super::{Caps, Deadlines, Seat, keep_alive};
use crate::pipeline::{Connection, Pipeline};
use crate::wire::{Cut, Protocol, Rewound, Wire, sniff};

/// Bytes of one HTTP/1 connection that hyper holds at most while one side is slower than the other.
const H1_BUFFER: usize = 64 * 1024;

/// Bytes of one HTTP/2 stream that are sent ahead of the client reading them.
const H2_SEND_BUFFER: usize = 64 * 1024;

/// The terms on which a worker serves its connections.
pub(super) struct Terms {
    pub(super) pipeline: Pipeline,
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) deadlines: Deadlines,
    pub(super) caps: Caps,
    pub(super) drain: Drain,
    pub(super) tasks: TaskTracker,
}

/// Serves a connection to its end.
pub(super) async fn serve(stream: TcpStream, peer: IpAddr, seat: Arc<Seat>, terms: Arc<Terms>) {
    if let Err(error) = stream.set_nodelay(true).and_then(|()| keep_alive(&stream)) {
        tracing::debug!(%error, "a connection was gone before it was served");
        return;
    }
    let tasks = terms.tasks.clone();
    let connection = move |scheme| Connection::new(peer, scheme, tasks, seat);
    match &terms.tls {
        None => speak(stream, connection("http"), &terms).await,
        Some(acceptor) => {
            if let Some(stream) = shake_hands(acceptor, stream, &terms.deadlines).await {
                speak(stream, connection("https"), &terms).await;
            }
        }
    }
}

/// A future in a box of its own. A connection lives for long and mostly waits: at rest it is to take up
/// what its present stage needs, and not what the largest one would. The box is made by a function that
/// is not async itself, because an async one would keep room for what it moves into the box.
type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

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
    IO: AsyncRead + AsyncWrite + Cut + Unpin + Send + 'static,
{
    Box::pin(async move {
        let outcome = match sniff(&mut io, terms.deadlines.head).await {
            Ok((Protocol::Http1, early)) => speak_http1(io, early, connection, terms).await,
            Ok((Protocol::Http2, early)) => {
                let io = Rewound::new(io, early, terms.deadlines.write);
                speak_http2(io, connection, terms).await
            }
            Err(unsniffed) => {
                tracing::debug!(error = %unsniffed, "a connection came to nothing");
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
) -> Boxed<'_, hyper::Result<()>>
where
    IO: AsyncRead + AsyncWrite + Cut + Unpin + Send + 'static,
{
    Box::pin(async move {
        let connection = Arc::new(connection);
        let (wire, exchanges) = Wire::new(io, early, &terms.caps, terms.deadlines);
        let service = service_fn(|request: Request<Incoming>| {
            let exchange = exchanges.begin();
            let knows_chunks = request.version() != Version::HTTP_10;
            let answering = terms
                .pipeline
                .answer(&connection, request, exchange.violation());
            // hyper keeps room for this as long as the connection lives: at rest it is to be a pointer.
            Box::pin(async move {
                let response = answering.await;
                if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                    exchange.tunnel();
                }
                Ok::<_, Infallible>(response.map(|body| {
                    if knows_chunks || body.size_hint().exact().is_some() {
                        exchange.carry(body)
                    } else {
                        exchange.carry_to_close(body)
                    }
                }))
            })
        });
        // The wire keeps the deadlines: hyper's own would need a timer reset on every request.
        let serving = http1::Builder::new()
            .header_read_timeout(None)
            .max_headers(terms.caps.header_lines)
            .max_buf_size(H1_BUFFER.max(terms.caps.head_bytes.saturating_mul(2)))
            .serve_connection(TokioIo::new(wire), service)
            .with_upgrades();
        let (mut serving, mut echoes) = (pin!(serving), Echoes::default());
        tokio::select! {
            biased;
            outcome = poll_fn(|cx| echoes.poll(serving.as_mut(), cx)) => return outcome,
            () = terms.drain.watch() => {}
        }
        serving.as_mut().graceful_shutdown();
        serving.await
    })
}

fn speak_http2<IO>(
    io: Rewound<IO>,
    connection: Connection,
    terms: &Terms,
) -> Boxed<'_, hyper::Result<()>>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    Box::pin(async move {
        let connection = Arc::new(connection);
        let pipeline = terms.pipeline.clone();
        let streams = Streams::default();
        let opened = streams.clone();
        let service = service_fn(move |request| {
            let (pipeline, connection, stream) =
                (pipeline.clone(), Arc::clone(&connection), opened.begin());
            async move {
                let response = pipeline.answer(&connection, request, None).await;
                Ok::<_, Infallible>(response.map(|body| stream.until_end_of(body)))
            }
        });
        let serving = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(terms.caps.h2_streams)
            .max_pending_accept_reset_streams(terms.caps.h2_resets)
            .max_local_error_reset_streams(terms.caps.h2_resets)
            .max_header_list_size(u32::try_from(terms.caps.head_bytes).unwrap_or(u32::MAX))
            .max_send_buf_size(H2_SEND_BUFFER)
            .keep_alive_interval(terms.deadlines.idle)
            .keep_alive_timeout(terms.deadlines.head)
            .serve_connection(TokioIo::new(io), service);
        let mut serving = pin!(serving);
        tokio::select! {
            biased;
            outcome = serving.as_mut() => return outcome,
            () = terms.drain.watch() => {}
            () = streams.at_rest(terms.deadlines.idle) => {}
        () = streams.stalled(terms.deadlines.write) => {
            tracing::debug!("a client did not read its answer in time");
            return Ok(());
        }
        }
        serving.as_mut().graceful_shutdown();
        serving.await
    })
}
