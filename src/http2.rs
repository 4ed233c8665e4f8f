//! HTTP/2 to clients, over the `h2` crate.
//!
//! hyper's server was the alternative, and was in use. It reports a stream that its client resets with `NO_ERROR`
//! as a complete body, sends no `100 Continue`, sends the body of a response to `HEAD`, and does not show how
//! much of a response a client has taken. `h2` has all of this in its interface.
//!
//! ```text
//! connection task ─ accept ─→ stream task: Request<Body> → service → Response<B> → response::send
//! ```
//!
//! Each request runs in its own task, which the worker tracks: a drain waits for it even if its connection ends.
//! Every state of a stream has a deadline: `body` while the request body is awaited, `write` while the client
//! takes nothing of the response. A stream that misses one is reset, and the other streams of its connection
//! go on. The gateway sends no keep-alive pings: a connection without streams is closed after `idle`, and TCP
//! keep-alive finds a client that has vanished.

mod body;
mod response;

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream};
use http::{Method, Request, Response, StatusCode};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;

use crate::gateway::{Caps, Deadlines};

pub use self::body::{Body, BodyError};

/// Bytes that a client may send ahead of the gateway reading them, per stream and per connection.
const RECEIVE_WINDOW: u32 = 1 << 20;

/// Bytes of a response that are queued for the socket, per stream.
const SEND_BUFFER: usize = 64 * 1024;

/// Why a connection ended early.
#[derive(Debug, Error)]
pub enum ServeError {
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
/// `service` responds to a request. Its future is dropped if the client resets the stream or disconnects.
pub async fn serve<IO, S, Responding, B>(
    io: IO,
    caps: &Caps,
    deadlines: Deadlines,
    tasks: &TaskTracker,
    stop: impl Future<Output = ()>,
    service: S,
) -> Result<(), ServeError>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    S: Fn(Request<Body>) -> Responding + Clone + Send + 'static,
    Responding: Future<Output = Response<B>> + Send,
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Send,
{
    let handshake = builder(caps).handshake::<_, Bytes>(io);
    let handshake = timeout(deadlines.head, handshake).await;
    let mut connection = handshake.map_err(|_| ServeError::PrefaceTimeout)??;
    let mut stop = pin!(stop);
    let mut is_stopping = false;
    let mut was_used = false;
    let mut idle = pin!(sleep(deadlines.idle));
    loop {
        tokio::select! {
            biased;
            accepted = connection.accept() => {
                let Some(accepted) = accepted else {
                    return Ok(());
                };
                let (request, respond) = accepted?;
                was_used = true;
                let service = service.clone();
                tasks.spawn(async move { exchange(request, respond, deadlines, service).await });
            }
            () = stop.as_mut(), if !is_stopping => {
                connection.graceful_shutdown();
                is_stopping = true;
                idle.as_mut().reset(Instant::now() + deadlines.head);
            }
            () = idle.as_mut() => {
                let is_idle = !std::mem::take(&mut was_used) && !connection.has_streams();
                match (is_idle, is_stopping) {
                    (false, _) => {}
                    (true, false) => {
                        connection.graceful_shutdown();
                        is_stopping = true;
                    }
                    // A graceful shutdown ends when the client acknowledges it, and this client does not.
                    (true, true) => connection.abrupt_shutdown(Reason::NO_ERROR),
                }
                let wait = if is_stopping { deadlines.head } else { deadlines.idle };
                idle.as_mut().reset(Instant::now() + wait);
            }
        }
    }
}

fn builder(caps: &Caps) -> Builder {
    let mut builder = Builder::new();
    builder
        .initial_window_size(RECEIVE_WINDOW)
        .initial_connection_window_size(RECEIVE_WINDOW)
        .max_concurrent_streams(caps.h2_streams)
        .max_pending_accept_reset_streams(caps.h2_resets)
        .max_local_error_reset_streams(Some(caps.h2_resets))
        .max_header_list_size(u32::try_from(caps.head_bytes).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BUFFER);
    builder
}

/// Serves one stream.
async fn exchange<Responding, B>(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    deadlines: Deadlines,
    service: impl FnOnce(Request<Body>) -> Responding,
) where
    Responding: Future<Output = Response<B>>,
    B: http_body::Body<Data = Bytes>,
{
    let is_head = request.method() == Method::HEAD;
    let (mut request, mut wanted) = body::receive(request, deadlines.body);
    // Upstream would take a request with `content-length: 0` for complete as soon as it has the head.
    if let Err(error) = request.body_mut().end_if_declared_empty().await {
        tracing::debug!(%error, "stream reset before the request was complete");
        respond.send_reset(Reason::CANCEL);
        return;
    }
    let mut responding = pin!(service(request));
    let response = poll_fn(|cx| {
        if let Poll::Ready(response) = responding.as_mut().poll(cx) {
            return Poll::Ready(Some(response));
        }
        if wanted.poll_wanted(cx).is_ready() {
            let interim = interim(StatusCode::CONTINUE);
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
    if let Err(error) = response::send(&mut respond, response, is_head, deadlines.write).await {
        tracing::debug!(%error, "response was not sent to its end");
    }
}

fn interim(status: StatusCode) -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = status;
    response
}
