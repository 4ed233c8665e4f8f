//! HTTP/2 server, based on the `h2` crate.
//!
//! hyper's HTTP/2 server treats a stream that the client resets with `NO_ERROR` as a complete body. It also does not send
//! `100 Continue`, sends a body in response to `HEAD`, and does not report how much of a response was sent.
//!
//! ```text
//! connection task ─ accept ─→ stream task: Request<Http2Body> → service → Response<B> → response::send → linger
//! ```
//!
//! The worker tracks the stream tasks, so a drain waits for a task even if its connection has ended. Every phase of a
//! stream has a timeout, which resets this stream only: `body_timeout`, `write_timeout`, or that of `linger`. The gateway
//! sends no HTTP/2 pings: a connection without streams is closed after `idle_timeout` (see `lifecycle`), and TCP
//! keep-alive detects a client that has vanished.

mod body;
mod lifecycle;
mod linger;
mod response;
mod write_tracking;

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::{Method, Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use self::lifecycle::{Action, Lifecycle, Usage};
use self::linger::LingeringStreams;
use self::response::FlowControl;
use self::write_tracking::{QueueSender, QueuedResponses};
use super::IncompleteBody;
use super::connections::{ActiveRequest, ConnectionPermit};
use super::http1::{Rewind, TrackDelivery};
use super::service::{Abort, Received, Reply};
use super::settings::{ClientTimeouts, ServerLimits};
use crate::metrics::Http2Metrics;

pub(crate) use self::body::Http2Body;

/// The number of bytes that a client can send on a stream before the gateway reads them.
const STREAM_WINDOW: u32 = 256 * 1024;

/// 16 times the window of a stream, so that a few unread request bodies do not block the other streams.
const CONNECTION_WINDOW: u32 = 4 << 20;

/// Maximum number of response bytes that `h2` queues for the socket, per stream.
const SEND_BUFFER: usize = 64 * 1024;

/// How long `h2` ignores frames for a stream after the gateway has reset it: the client can have sent them before it
/// read the reset. `h2` treats later frames as errors, and closes the connection after `h2_max_resets` errors.
const RESET_TIME: Duration = Duration::from_secs(5);

/// Number of reset streams for which `h2` ignores late frames, as a multiple of `h2_max_streams`.
const RESET_STREAMS: usize = 4;

struct ConnectionState<B> {
    flow: FlowControl,
    lingering: LingeringStreams,
    /// Each further reference is a request body that the gateway does not read at the moment, for example because its
    /// server is slow.
    paused_bodies: Arc<()>,
    queue: QueueSender<B>,
    /// Notified when a response ends the connection with GOAWAY.
    go_away: Notify,
}

/// Returns when the client has closed the connection, or when it was idle for `idle_timeout`. Once `stop` is ready, the
/// connection closes after its last stream. If another connection replaces `permit`, this one closes at once with
/// GOAWAY.
///
/// A request with `content-length: 0` that does not end its stream in time is invalid. The future of the service is
/// dropped if the client resets the stream or disconnects.
#[expect(
    clippy::too_many_arguments,
    reason = "the settings and parts of a connection are independent"
)]
pub(crate) async fn serve<IO, S, Responding, B>(
    io: Rewind<IO>,
    permit: &Arc<ConnectionPermit>,
    limits: &ServerLimits,
    timeouts: ClientTimeouts,
    tasks: &TaskTracker,
    metrics: Arc<Http2Metrics>,
    stop: impl Future<Output = ()>,
    service: S,
) -> io::Result<()>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    S: Fn(Received<Http2Body>) -> Responding + Clone + Send + 'static,
    Responding: Future<Output = Reply<B>> + Send + 'static,
    B: TrackDelivery + Send + 'static,
    B::Error: Send,
{
    let socket = io.state();
    let queued = QueuedResponses::new();
    let state = Arc::new(ConnectionState {
        flow: FlowControl::new(Arc::clone(&socket)),
        lingering: LingeringStreams::new(metrics),
        paused_bodies: Arc::default(),
        queue: queued.sender(),
        go_away: Notify::new(),
    });
    let handshake = timeout(timeouts.head, builder(limits).handshake::<_, Bytes>(io)).await;
    let mut connection = handshake?.map_err(io::Error::other)?;
    let streams = TaskTracker::new();
    let mut stop = pin!(stop.fuse());
    let mut replaced = pin!(permit.replaced());
    let mut go_away = pin!(state.go_away.notified());
    let mut lifecycle = Lifecycle::new(&timeouts, Instant::now());
    let mut check = pin!(sleep_until(lifecycle.next_check(Instant::now())));
    let reason = loop {
        tokio::select! {
            biased;
            accepted = poll_fn(|cx| queued.polled(connection.poll_accept(cx), &socket, cx)) => {
                let Some((request, respond)) = accepted.transpose().map_err(io::Error::other)? else {
                    return Ok(());
                };
                if let Some(active) = permit.begin() {
                    lifecycle.request(Instant::now());
                    // A token, because `track_future` would move the future of the exchange once more.
                    let (state, held) = (Arc::clone(&state), (active, streams.token()));
                    tasks.spawn(exchange(request, respond, timeouts, state, held, service.clone()));
                }
            }
            () = go_away.as_mut() => break Reason::NO_ERROR,
            () = replaced.as_mut() => break Reason::NO_ERROR,
            () = stop.as_mut() => {
                connection.graceful_shutdown();
                state.lingering.drain();
                lifecycle.stop();
                check.as_mut().reset(lifecycle.next_check(Instant::now()));
            }
            () = check.as_mut() => {
                let is_busy = !streams.is_empty() || socket.is_blocked();
                let usage = match connection.has_streams() {
                    _ if is_busy => Usage::Busy,
                    true => Usage::Stalled,
                    false => Usage::Idle,
                };
                let now = Instant::now();
                match lifecycle.check(usage, now) {
                    Action::Wait => {}
                    Action::Drain => connection.graceful_shutdown(),
                    Action::Close(reason) => break reason,
                }
                check.as_mut().reset(lifecycle.next_check(now));
            }
        }
    };
    connection.abrupt_shutdown(reason);
    tokio::select! {
        // If the connection is replaced, one poll writes the frame if the socket is writable.
        biased;
        closed = close(&mut connection) => closed,
        () = replaced.as_mut() => Ok(()),
    }
}

/// Sends the GOAWAY frame of a connection whose streams `h2` has discarded, and closes the socket.
async fn close<IO>(connection: &mut Connection<IO, Bytes>) -> io::Result<()>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(accepted) = connection.accept().await {
        accepted.map_err(io::Error::other)?;
    }
    Ok(())
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

/// When this function returns, `h2` resets the stream if the client has not sent the end of its request.
async fn exchange<Responding, B>(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    timeouts: ClientTimeouts,
    state: Arc<ConnectionState<B>>,
    (active, _stream): (ActiveRequest, TaskTrackerToken),
    service: impl FnOnce(Received<Http2Body>) -> Responding,
) where
    Responding: Future<Output = Reply<B>>,
    B: TrackDelivery,
{
    let is_head = request.method() == Method::HEAD;
    let (mut request, mut first_read, mut unread) =
        body::receive(request, &timeouts, &state.paused_bodies);
    // An upstream treats a request with `content-length: 0` as complete as soon as it has received the head.
    let received = match request.body_mut().end_if_declared_empty().await {
        Ok(()) => Received::Request(request),
        Err(IncompleteBody::Invalid(violation)) => Received::Invalid {
            violation,
            head: Some(Box::new(request.map(drop))),
        },
        Err(IncompleteBody::Disconnected) => return,
    };
    let mut responding = pin!(service(received));
    let reply = poll_fn(|cx| {
        if let Poll::Ready(reply) = responding.as_mut().poll(cx) {
            return Poll::Ready(Some(reply));
        }
        if let Poll::Ready(Ok(())) = first_read.poll_unpin(cx) {
            let mut interim = Response::new(());
            *interim.status_mut() = StatusCode::CONTINUE;
            if let Err(error) = respond.send_informational(interim) {
                tracing::debug!(%error, "cannot send 100 Continue to HTTP/2 client");
            }
        }
        // If the client resets the stream or the connection fails, the request is abandoned.
        respond.poll_reset(cx).map(|_| None)
    })
    .await;
    let Some(reply) = reply else {
        tracing::debug!(
            "client reset HTTP/2 stream or disconnected before the response, request abandoned"
        );
        return;
    };
    let (parts, body) = match reply {
        Reply::Response(response) => response.into_parts(),
        Reply::Abort(how) => return abort(&mut respond, how, &state.go_away).await,
    };
    // The stream lingers, except after a 2xx response: curl 7.88 then continues its upload and does not read a later
    // reset. Even if the stream is reset immediately, curl sometimes reports error 92 or continues to wait.
    let lingers = !parts.status.is_success();
    let mut body = Box::pin(body);
    let (write, flow) = (timeouts.write, &state.flow);
    let sending = response::send(&mut respond, parts, is_head, body.as_mut(), write, flow);
    let sent = unread.discard_during(pin!(sending)).await;
    match sent {
        Ok(stream) => state.queue.push(body, stream, active),
        Err(error) => {
            tracing::debug!(%error, "cannot send complete HTTP/2 response to client");
            return;
        }
    }
    if lingers {
        state.lingering.linger(unread).await;
    }
}

async fn abort(respond: &mut SendResponse<Bytes>, how: Abort, go_away: &Notify) {
    match how {
        Abort::Reset => respond.send_reset(Reason::INTERNAL_ERROR),
        Abort::RequireHttp1 => respond.send_reset(Reason::HTTP_1_1_REQUIRED),
        Abort::RefuseStream => respond.send_reset(Reason::REFUSED_STREAM),
        Abort::GoAway => {
            go_away.notify_one();
            // The stream is kept until the connection has ended, because `h2` would reset a dropped stream.
            let _ended = poll_fn(|cx| respond.poll_reset(cx)).await;
        }
    }
}

#[cfg(test)]
mod tests;
