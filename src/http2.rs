//! HTTP/2 to clients, over the `h2` crate.
//!
//! hyper's server was the alternative, and was in use. It reports a stream that its client resets with `NO_ERROR`
//! as a complete body, sends no `100 Continue`, sends the body of a response to `HEAD`, and does not show how
//! much of a response a client has taken. `h2` has all of this in its interface.
//!
//! ```text
//! connection task ─ accept ─→ stream task: Request<Body> → service → Response<B> → response::send → linger
//! ```
//!
//! Each request runs in its own task, which the worker tracks: a drain waits for it even if its connection ends.
//! Every state of a stream has a deadline: `body` while the request body is awaited, `write` while the client
//! takes nothing of the response, and a fixed one while the client still sends after the response (`linger`). A
//! stream that misses one is reset, and the other streams of its connection go on. The gateway sends no keep-alive
//! pings: a connection without streams is closed after `idle`, and TCP keep-alive finds a client that has vanished.

mod body;
mod delivery;
mod flow;
mod linger;
mod response;

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

use self::delivery::{QueueEnd, Queued};
use self::flow::Flow;
use self::linger::Lingering;
use crate::http1::{ResponseBody, Rewind, Violation};
use crate::metrics::Http2Metrics;
use crate::net::ClientSocket;
use crate::settings::{Caps, Deadlines};

pub(crate) use self::body::{Body, BodyError};

/// Bytes of a request body that a client may send ahead of the gateway reading them.
const STREAM_WINDOW: u32 = 256 * 1024;

/// The same for all streams of a connection: several bodies that are not read leave room for others.
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Bytes of a response that are queued for the socket, per stream.
const SEND_BUFFER: usize = 64 * 1024;

/// Time for which frames are ignored that a client sent before it read the reset of their stream. `h2` regards later
/// frames as errors, and closes the connection after `h2_max_resets` of them.
const RESET_TIME: Duration = Duration::from_secs(5);

/// Reset streams whose frames are ignored, as a multiple of `h2_max_streams`.
const RESET_STREAMS: usize = 4;

/// State of a connection that its streams share.
struct Streams<B> {
    flow: Flow,
    lingering: Lingering,
    queue: QueueEnd<B>,
}

/// Why a connection ended early.
#[derive(Debug, Error)]
pub(crate) enum ServeError {
    /// The client violated the protocol, or the connection failed.
    #[error(transparent)]
    Connection(#[from] h2::Error),
    /// The client did not complete the connection preface within `header_timeout`.
    #[error("the connection preface timed out")]
    PrefaceTimeout,
}

/// Serves HTTP/2 on `io` until the client closes the connection, it is idle, or `stop` is ready and the last
/// stream has ended.
///
/// `service` responds to a request. A request that is not complete comes with its violation. The service's future
/// is dropped if the client resets the stream or disconnects.
pub(crate) async fn serve<IO, S, Responding, B>(
    io: Rewind<IO>,
    caps: &Caps,
    deadlines: Deadlines,
    tasks: &TaskTracker,
    metrics: Arc<Http2Metrics>,
    stop: impl Future<Output = ()>,
    service: S,
) -> Result<(), ServeError>
where
    IO: AsyncRead + AsyncWrite + ClientSocket + Unpin,
    S: Fn(Request<Body>, Option<Violation>) -> Responding + Clone + Send + 'static,
    Responding: Future<Output = Response<B>> + Send,
    B: ResponseBody + Send + 'static,
    B::Error: Send,
{
    let socket = io.state();
    let queued = Queued::new();
    // Each stream task holds a clone, so the count shows how many there are.
    let streams = Arc::new(Streams {
        flow: Flow::new(Arc::clone(&socket)),
        lingering: Lingering::new(metrics),
        queue: queued.end(),
    });
    let handshake = builder(caps).handshake::<_, Bytes>(io);
    let handshake = timeout(deadlines.head, handshake).await;
    let mut connection = handshake.map_err(|_| ServeError::PrefaceTimeout)??;
    let mut stop = pin!(stop);
    let mut is_draining = false;
    let mut is_stopping = false;
    let mut is_aborted = false;
    let mut last_active = Instant::now();
    let mut check = pin!(sleep(deadlines.idle.min(deadlines.write)));
    loop {
        tokio::select! {
            biased;
            accepted = poll_fn(|cx| {
                let accepted = connection.poll_accept(cx);
                let is_written = match &accepted {
                    Poll::Pending => true,
                    // A shutdown of either side ends after the last response is written, and the client's close does
                    // not.
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
                let (service, streams) = (service.clone(), Arc::clone(&streams));
                tasks.spawn(async move {
                    exchange(request, respond, deadlines, &streams, service).await;
                });
            }
            () = stop.as_mut(), if !is_draining => {
                connection.graceful_shutdown();
                streams.lingering.drain();
                is_draining = true;
                is_stopping = true;
                check.as_mut().reset(Instant::now() + deadlines.head.min(deadlines.write));
            }
            () = check.as_mut() => {
                let now = Instant::now();
                // The write timeout of a blocked socket is the socket's own.
                if Arc::strong_count(&streams) > 1 || socket.is_blocked() {
                    last_active = now;
                }
                let inactive = now.saturating_duration_since(last_active);
                let patience = if is_stopping { deadlines.head } else { deadlines.idle };
                if connection.has_streams() {
                    // The last bytes of responses, for which the client has withdrawn the window.
                    if inactive >= deadlines.write {
                        is_aborted = true;
                        connection.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
                    }
                } else if inactive >= patience {
                    if is_stopping {
                        // A graceful shutdown ends when the client acknowledges it, and this client does not.
                        connection.abrupt_shutdown(Reason::NO_ERROR);
                    } else {
                        connection.graceful_shutdown();
                        is_stopping = true;
                        last_active = now;
                    }
                }
                let patience = if is_stopping { deadlines.head } else { deadlines.idle };
                check.as_mut().reset(now + patience.min(deadlines.write));
            }
        }
    }
}

fn builder(caps: &Caps) -> Builder {
    let mut builder = Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(caps.h2_streams)
        .reset_stream_duration(RESET_TIME)
        .max_concurrent_reset_streams(RESET_STREAMS.saturating_mul(caps.h2_streams as usize))
        .max_pending_accept_reset_streams(caps.h2_resets)
        .max_local_error_reset_streams(Some(caps.h2_resets))
        .max_header_list_size(u32::try_from(caps.head_bytes).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BUFFER);
    builder
}

/// Serves one stream. The stream is reset at the end if the client has not ended its side.
async fn exchange<Responding, B>(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    deadlines: Deadlines,
    streams: &Streams<B>,
    service: impl FnOnce(Request<Body>, Option<Violation>) -> Responding,
) where
    Responding: Future<Output = Response<B>>,
    B: ResponseBody,
{
    let is_head = request.method() == Method::HEAD;
    let (mut request, mut first_read, mut unread) = body::receive(request, deadlines.body);
    // Upstream would take a request with `content-length: 0` for complete as soon as it has the head.
    let violation = match request.body_mut().end_if_declared_empty().await {
        Ok(()) => None,
        Err(BodyError::Stalled(_)) => Some(Violation::BodyTimeout),
        Err(BodyError::Stream(error)) => {
            tracing::debug!(%error, "stream ended before the request was complete");
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
                tracing::debug!(%error, "100 Continue was not sent");
            }
        }
        // Ready if the client resets the stream or the connection ends.
        respond.poll_reset(cx).map(|_| None)
    })
    .await;
    let Some(response) = response else {
        tracing::debug!("client cancelled the request");
        return;
    };
    let (parts, body) = response.into_parts();
    // curl 7.88 continues an upload after a complete 2xx response and does not read a reset that arrives later. A reset at
    // once does not always help: curl reports error 92, or waits as before.
    let lingers = !parts.status.is_success();
    let mut body = Box::pin(body);
    let (write, flow) = (deadlines.write, &streams.flow);
    let sending = response::send(&mut respond, parts, is_head, body.as_mut(), write, flow);
    let sent = unread.discard_during(pin!(sending)).await;
    match sent {
        Ok(stream) => streams.queue.push(body, stream),
        Err(error) => {
            tracing::debug!(%error, "response was not sent to its end");
            return;
        }
    }
    if lingers {
        streams.lingering.linger(unread).await;
    }
}
