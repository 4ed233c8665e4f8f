//! Serves a connection: one request and its response after the other.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::response::Parts;
use http::{Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};

use super::body::{Http1Body, TrackDelivery};
use super::connection::Connection;
use super::encoder::{RequestTraits, Sent};
use super::head::Version;
use super::reader::Message;
use super::upgrade::{self, UpgradeSender};
use super::violation::Violation;
use super::write::FlushBatch;
use crate::net::ClientSocket;
use crate::server_settings::{ClientTimeouts, ServerLimits};

/// Serves HTTP/1 on a connection from which `early` was already read. Returns when the connection is closed. If `stop`
/// is ready, the connection closes after the response to the current request.
///
/// `service` responds to a request. A message that fails to parse is passed as an empty request with its violation. The
/// service's future is dropped if the client disconnects. The connections of a worker share their `batch`.
pub(crate) async fn serve<IO, F, B>(
    io: IO,
    early: BytesMut,
    limits: &ServerLimits,
    timeouts: ClientTimeouts,
    batch: &FlushBatch,
    stop: impl Future<Output = ()>,
    mut service: impl FnMut(Request<Http1Body>, Option<Violation>) -> F,
) -> io::Result<()>
where
    IO: AsyncRead + AsyncWrite + ClientSocket + Send + Unpin + 'static,
    F: Future<Output = Response<B>> + Unpin,
    B: TrackDelivery,
{
    let mut connection = Connection::new(io, early, limits, timeouts);
    let mut stop = pin!(stop);
    let mut stopping = false;
    let mut stops = |cx: &mut Context<'_>| {
        stopping = stopping || stop.as_mut().poll(cx).is_ready();
        stopping
    };
    loop {
        // `received` is not destructured here, so that the future of an idle connection does not reserve memory for a
        // request.
        let received = poll_fn(|cx| connection.poll_request(cx, &mut stops)).await?;
        let Some((request, exchange)) = Exchange::start(received, &mut connection) else {
            break;
        };
        let mut responding = service(request, exchange.violation);
        let (response, last) = poll_fn(|cx| {
            let response = ready!(connection.poll_response(cx, Pin::new(&mut responding)))?;
            Poll::Ready(io::Result::Ok((
                response,
                !exchange.keep_alive || stops(cx),
            )))
        })
        .await?;
        drop(responding);
        let (parts, body) = response.into_parts();
        if parts.status.is_informational() {
            // The only valid informational response is 101 to a request that asks for an upgrade. Any other closes the
            // connection.
            if let (StatusCode::SWITCHING_PROTOCOLS, Some(sender)) =
                (parts.status, exchange.upgrade)
            {
                return switch_protocols(connection, &parts, body, exchange.traits, sender).await;
            }
            return Ok(());
        }
        let exact = body.size_hint().exact();
        let mut encoder = connection.start_response(&parts, exact, exchange.traits, last);
        drop(parts);
        batch.wait().await;
        {
            let mut body = pin!(body);
            let sent = poll_fn(|cx| connection.poll_send(cx, body.as_mut(), &mut encoder)).await?;
            if sent == Sent::Truncated {
                // The connection is dropped without a regular close, so that the response does not look complete.
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

/// Sends a response with status 101, discards the rest of the request, and passes the connection to the service as a
/// tunnel. If the end of the request cannot be reached, no response is sent, because the tunnel would start within the
/// request body.
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
        // If the service has dropped the receiver, the connection is closed.
        let _dropped = sender.send(Box::new(connection.into_tunnel()));
    }
    Ok(())
}

/// State of a request in flight.
struct Exchange {
    traits: RequestTraits,
    /// Whether the client may send another request on the connection.
    keep_alive: bool,
    /// `Some` if the request asks for an upgrade.
    upgrade: Option<UpgradeSender>,
    /// Why the message failed to parse, if it did.
    violation: Option<Violation>,
}

impl Exchange {
    /// Starts the exchange of a received message. `connection` receives the rest of its body.
    fn start<IO>(
        received: Option<Result<Message, Violation>>,
        connection: &mut Connection<IO>,
    ) -> Option<(Request<Http1Body>, Self)>
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
            violation: None,
        };
        Some((request, exchange))
    }

    /// Returns the exchange of a message that fails to parse.
    fn rejected(violation: Violation) -> (Request<Http1Body>, Self) {
        let exchange = Self {
            traits: RequestTraits {
                is_head: false,
                version: Version::Http11,
                accepts_trailers: false,
            },
            keep_alive: false,
            upgrade: None,
            violation: Some(violation),
        };
        (Request::new(Bytes::new().into()), exchange)
    }
}

#[cfg(test)]
mod tests;
