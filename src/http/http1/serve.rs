//! Serves an HTTP/1 connection: reads a request, sends its response, and continues with the next request.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use http::StatusCode;
use http::response::Parts;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use super::body::{Http1Body, TrackDelivery};
use super::connection::Connection;
use super::encoder::{RequestTraits, Sent};
use super::head::Version;
use super::reader::Message;
use super::upgrade::{self, UpgradeSender};
use super::violation::Violation;
use super::write::FlushBatch;
use crate::http::connections::ConnectionPermit;
use crate::http::service::{Received, Reply};
use crate::http::settings::{ClientTimeouts, ServerLimits};
use crate::http::socket::ClientSocket;

/// `early` contains the bytes that were already read from `io`. Once `stop` is ready, the connection closes after the
/// response to the current request and to the pipelined requests that have already arrived. If it is idle, it waits
/// `timeouts.drain` for one more request.
///
/// Once another connection replaces `permit`, no further request starts, and the caller drops this future. The future
/// of the service is dropped if the client disconnects.
#[expect(
    clippy::too_many_arguments,
    reason = "the settings and parts of a connection are independent"
)]
pub(crate) async fn serve<IO, F, B>(
    io: IO,
    early: BytesMut,
    permit: &Arc<ConnectionPermit>,
    limits: &ServerLimits,
    timeouts: ClientTimeouts,
    batch: &FlushBatch,
    stop: impl Future<Output = ()>,
    mut service: impl FnMut(Received<Http1Body>) -> F,
) -> io::Result<()>
where
    IO: AsyncRead + AsyncWrite + ClientSocket + Send + Unpin + 'static,
    F: Future<Output = Reply<B>> + Unpin,
    B: TrackDelivery,
{
    let mut connection = Connection::new(io, early, limits, timeouts);
    let mut stop = pin!(stop);
    let mut due = None;
    let mut drain_due = |cx: &mut Context<'_>| {
        if due.is_none() && stop.as_mut().poll(cx).is_ready() {
            due = Some(Instant::now() + timeouts.drain);
        }
        due
    };
    loop {
        // If `received` were destructured here instead of in `Exchange::start`, the future of an idle connection would
        // reserve memory for a request.
        let received = poll_fn(|cx| connection.poll_request(cx, &mut drain_due)).await?;
        let Some((received, exchange)) = Exchange::start(received, &mut connection) else {
            break;
        };
        let Some(_active) = permit.begin() else {
            return Ok(());
        };
        let mut responding = service(received);
        let (reply, last) = poll_fn(|cx| {
            let reply = ready!(connection.poll_response(cx, Pin::new(&mut responding)))?;
            let is_last = drain_due(cx)
                .is_some_and(|due| !connection.is_pipelined() || Instant::now() >= due);
            Poll::Ready(io::Result::Ok((reply, !exchange.keep_alive || is_last)))
        })
        .await?;
        drop(responding);
        let Reply::Response(response) = reply else {
            connection.reset_on_close();
            return Ok(());
        };
        let (parts, body) = response.into_parts();
        if parts.status.is_informational() {
            // The only valid informational response is 101 to a request with `Upgrade`.
            return match exchange.upgrade {
                Some(sender) if parts.status == StatusCode::SWITCHING_PROTOCOLS => {
                    switch_protocols(connection, &parts, body, exchange.traits, sender).await
                }
                _ => Ok(()),
            };
        }
        let exact = body.size_hint().exact();
        let mut encoder = connection.start_response(&parts, exact, exchange.traits, last);
        drop(parts);
        batch.wait().await;
        {
            let mut body = pin!(body);
            let sent = poll_fn(|cx| connection.poll_send(cx, body.as_mut(), &mut encoder)).await?;
            if sent == Sent::Truncated {
                // After a regular close, the truncated response would look complete.
                if body.is_reset() {
                    connection.reset_on_close();
                }
                return Ok(());
            }
            body.delivered();
        }
        poll_fn(|cx| connection.poll_received(cx)).await?;
        if !connection.is_reusable() {
            break;
        }
    }
    poll_fn(|cx| connection.poll_close(cx)).await
}

/// Sends a 101 response, discards the rest of the request body, and passes the connection to the service as a tunnel.
/// If the rest of the body is too large to discard, the connection closes, because the tunnel would start within it.
async fn switch_protocols<IO>(
    mut connection: Connection<IO>,
    parts: &Parts,
    body: impl TrackDelivery,
    request: RequestTraits,
    sender: UpgradeSender,
) -> io::Result<()>
where
    IO: AsyncRead + AsyncWrite + ClientSocket + Send + Unpin + 'static,
{
    if !connection.is_reusable() {
        return Ok(());
    }
    connection.start_response(parts, None, request, false);
    poll_fn(|cx| connection.poll_flush(cx)).await?;
    pin!(body).delivered();
    poll_fn(|cx| connection.poll_received(cx)).await?;
    poll_fn(|cx| connection.poll_discard(cx)).await?;
    if connection.is_reusable() {
        // On an error, the service has dropped the receiver; the failed send drops the connection and thereby closes
        // it.
        let _dropped = sender.send(Box::new(connection.into_tunnel()));
    }
    Ok(())
}

struct Exchange {
    traits: RequestTraits,
    /// According to the HTTP version and the `Connection` header.
    keep_alive: bool,
    /// Passes the connection to the service after a 101 response. `None` without an `Upgrade` header.
    upgrade: Option<UpgradeSender>,
}

impl Exchange {
    /// Returns `None` if the connection has ended.
    fn start<IO>(
        received: Option<Result<Message, Violation>>,
        connection: &mut Connection<IO>,
    ) -> Option<(Received<Http1Body>, Self)>
    where
        IO: AsyncRead + AsyncWrite + ClientSocket + Unpin,
    {
        let message = match received? {
            Ok(message) => message,
            Err(violation) => return Some(Self::rejected(violation)),
        };
        connection.receive(message.pending);
        let mut request = message.request;
        let exchange = Self {
            traits: message.traits,
            keep_alive: message.keep_alive,
            upgrade: message.upgrade.then(|| upgrade::offer(&mut request)),
        };
        Some((Received::Request(request), exchange))
    }

    fn rejected(violation: Violation) -> (Received<Http1Body>, Self) {
        let exchange = Self {
            traits: RequestTraits {
                is_head: false,
                version: Version::Http11,
                accepts_trailers: false,
            },
            keep_alive: false,
            upgrade: None,
        };
        let head = None;
        (Received::Invalid { violation, head }, exchange)
    }
}

#[cfg(test)]
mod tests;
