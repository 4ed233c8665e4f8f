//! HTTP/2 server on the `h2` crate.
//!
//! The alternative, hyper's server, was used before. hyper treats a stream that the client resets with `NO_ERROR` as a
//! complete body. It does not send `100 Continue`, sends the body of a response to `HEAD`, and does not show how much
//! of a response was sent. `h2` gives control over all of this.
//!
//! ```text
//! connection task ─ accept ─→ stream task: Request<Http2Body> → service → Response<B> → response::send → linger
//! ```
//!
//! Each request runs in its own task, which the worker tracks, so a drain waits for the task even if its connection has
//! ended. Every phase of a stream has a timeout:
//!
//! - `body_timeout` while the gateway waits for the request body,
//! - `write_timeout` while the client accepts no bytes of the response,
//! - a fixed time while the client still sends after the response (`linger`).
//!
//! When a timeout expires, the gateway resets the stream. Other streams of the connection are not affected. The gateway
//! sends no keep-alive pings: a connection without streams is closed after `idle_timeout`, and TCP keep-alive detects a
//! client that has vanished.

mod body;
mod flow;
mod linger;
mod response;
mod write_tracking;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream};
use http::{Method, Request, Response, StatusCode};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;

use self::flow::FlowControl;
use self::linger::LingeringStreams;
use self::write_tracking::{QueueSender, QueuedResponses};
use crate::http1::{Rewind, TrackDelivery, Violation};
use crate::metrics::Http2Metrics;
use crate::net::ClientSocket;
use crate::server_settings::{ClientTimeouts, ServerLimits};

pub(crate) use self::body::{Http2Body, Http2BodyError};

/// Flow-control window of a stream: bytes that a client may send before the gateway reads them.
const STREAM_WINDOW: u32 = 256 * 1024;

/// Flow-control window of a connection. It is 16 times the window of a stream, so that a few unread bodies do not block
/// the other streams.
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Limit of the bytes of a response that `h2` queues for the socket, per stream.
const SEND_BUFFER: usize = 64 * 1024;

/// Time after a reset in which `h2` ignores frames for the stream, which the client may have sent before it read the
/// reset. `h2` treats later frames as errors, and closes the connection after `h2_max_resets` of them.
const RESET_TIME: Duration = Duration::from_secs(5);

/// Limit of the reset streams whose frames are ignored, as a multiple of `h2_max_streams`.
const RESET_STREAMS: usize = 4;

/// State that the streams of a connection share.
struct ConnectionState<B> {
    flow: FlowControl,
    lingering: LingeringStreams,
    queue: QueueSender<B>,
}

/// Why a connection ended early.
#[derive(Debug, Error)]
pub(crate) enum ServeError {
    /// The client violated the protocol, or the connection failed.
    #[error(transparent)]
    Connection(#[from] h2::Error),
    /// The client did not complete the connection preface within `header_timeout`.
    #[error("the client did not complete the HTTP/2 connection preface in time")]
    PrefaceTimeout,
}

/// Serves HTTP/2 on `io` until the client closes the connection or the connection is idle for too long. Once `stop` is
/// ready, the connection closes after its last stream.
///
/// `service` responds to a request. A request whose declared empty body does not end in time is passed with a
/// violation. The service's future is dropped if the client resets the stream or disconnects.
pub(crate) async fn serve<IO, S, Responding, B>(
    io: Rewind<IO>,
    limits: &ServerLimits,
    timeouts: ClientTimeouts,
    tasks: &TaskTracker,
    metrics: Arc<Http2Metrics>,
    stop: impl Future<Output = ()>,
    service: S,
) -> Result<(), ServeError>
where
    IO: AsyncRead + AsyncWrite + ClientSocket + Unpin,
    S: Fn(Request<Http2Body>, Option<Violation>) -> Responding + Clone + Send + 'static,
    Responding: Future<Output = Response<B>> + Send,
    B: TrackDelivery + Send + 'static,
    B::Error: Send,
{
    let socket = io.state();
    let queued = QueuedResponses::new();
    // Each stream task holds a clone, so the reference count shows how many tasks exist.
    let state = Arc::new(ConnectionState {
        flow: FlowControl::new(Arc::clone(&socket)),
        lingering: LingeringStreams::new(metrics),
        queue: queued.sender(),
    });
    let handshake = builder(limits).handshake::<_, Bytes>(io);
    let handshake = timeout(timeouts.head, handshake).await;
    let mut connection = handshake.map_err(|_| ServeError::PrefaceTimeout)??;
    let mut stop = pin!(stop);
    let mut is_draining = false;
    let mut is_stopping = false;
    let mut is_aborted = false;
    let mut last_active = Instant::now();
    let mut check = pin!(sleep(timeouts.idle.min(timeouts.write)));
    loop {
        tokio::select! {
            biased;
            accepted = poll_fn(|cx| {
                let accepted = connection.poll_accept(cx);
                let is_written = match &accepted {
                    Poll::Pending => true,
                    // `None` after a graceful shutdown means that all responses are written. After a close by the
                    // client or an abort, it does not.
                    Poll::Ready(None) => !socket.is_ended() && !is_aborted,
                    Poll::Ready(Some(_)) => false,
                };
                if is_written && !socket.is_blocked() {
                    queued.written(cx);
                }
                accepted
            }) => {
                let Some(accepted) = accepted else {
                    return Ok(());
                };
                let (request, respond) = accepted?;
                last_active = Instant::now();
                let (service, state) = (service.clone(), Arc::clone(&state));
                tasks.spawn(async move {
                    exchange(request, respond, timeouts, &state, service).await;
                });
            }
            () = stop.as_mut(), if !is_draining => {
                connection.graceful_shutdown();
                state.lingering.drain();
                is_draining = true;
                is_stopping = true;
                check.as_mut().reset(Instant::now() + timeouts.head.min(timeouts.write));
            }
            () = check.as_mut() => {
                let now = Instant::now();
                // While the socket is blocked, the write timeout of `Rewind` applies.
                if Arc::strong_count(&state) > 1 || socket.is_blocked() {
                    last_active = now;
                }
                let inactive = now.saturating_duration_since(last_active);
                let idle_limit = if is_stopping { timeouts.head } else { timeouts.idle };
                if connection.has_streams() {
                    // No task serves these streams. They have queued bytes that the client's windows do not permit to
                    // send.
                    if inactive >= timeouts.write {
                        is_aborted = true;
                        connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                    }
                } else if inactive >= idle_limit {
                    if is_stopping {
                        // The client has not acknowledged the graceful shutdown in time.
                        connection.abrupt_shutdown(Reason::NO_ERROR);
                    } else {
                        connection.graceful_shutdown();
                        is_stopping = true;
                        last_active = now;
                    }
                }
                let idle_limit = if is_stopping { timeouts.head } else { timeouts.idle };
                check.as_mut().reset(now + idle_limit.min(timeouts.write));
            }
        }
    }
}

fn builder(limits: &ServerLimits) -> Builder {
    let mut builder = Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(limits.h2_streams)
        .reset_stream_duration(RESET_TIME)
        .max_concurrent_reset_streams(RESET_STREAMS.saturating_mul(limits.h2_streams as usize))
        .max_pending_accept_reset_streams(limits.h2_resets)
        .max_local_error_reset_streams(Some(limits.h2_resets))
        .max_header_list_size(u32::try_from(limits.head_bytes).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BUFFER);
    builder
}

/// Serves one stream. At the end, `h2` resets the stream if the client has not ended its side.
async fn exchange<Responding, B>(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    timeouts: ClientTimeouts,
    state: &ConnectionState<B>,
    service: impl FnOnce(Request<Http2Body>, Option<Violation>) -> Responding,
) where
    Responding: Future<Output = Response<B>>,
    B: TrackDelivery,
{
    let is_head = request.method() == Method::HEAD;
    let (mut request, mut first_read, mut unread) = body::receive(request, timeouts.body);
    // Upstream treats a request with `content-length: 0` as complete when it has received the head. So the gateway
    // waits for the end of the stream first.
    let violation = match request.body_mut().end_if_declared_empty().await {
        Ok(()) => None,
        Err(Http2BodyError::Stalled(_)) => Some(Violation::BodyTimeout),
        Err(Http2BodyError::Stream(error)) => {
            tracing::debug!(%error, "HTTP/2 stream failed before the request was complete");
            return;
        }
    };
    let mut responding = pin!(service(request, violation));
    let response = poll_fn(|cx| {
        if let Poll::Ready(response) = responding.as_mut().poll(cx) {
            return Poll::Ready(Some(response));
        }
        if first_read.poll(cx).is_ready() {
            let mut interim = Response::new(());
            *interim.status_mut() = StatusCode::CONTINUE;
            if let Err(error) = respond.send_informational(interim) {
                tracing::debug!(%error, "sending 100 Continue failed");
            }
        }
        // Ready if the client resets the stream or the connection fails.
        respond.poll_reset(cx).map(|_| None)
    })
    .await;
    let Some(response) = response else {
        tracing::debug!("client cancelled the HTTP/2 request");
        return;
    };
    let (parts, body) = response.into_parts();
    // Only responses that are not 2xx linger. curl 7.88 continues an upload after a complete 2xx response and does not
    // read a later reset. An immediate reset does not always help: curl then reports error 92, or continues to wait.
    let lingers = !parts.status.is_success();
    let mut body = Box::pin(body);
    let (write, flow) = (timeouts.write, &state.flow);
    let sending = response::send(&mut respond, parts, is_head, body.as_mut(), write, flow);
    let sent = unread.discard_during(pin!(sending)).await;
    match sent {
        Ok(stream) => state.queue.push(body, stream),
        Err(error) => {
            tracing::debug!(%error, "sending HTTP/2 response failed");
            return;
        }
    }
    if lingers {
        state.lingering.linger(unread).await;
    }
}
