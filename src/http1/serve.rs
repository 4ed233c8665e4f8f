//! Serves the exchanges of a connection one after the other.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::response::Parts;
use http::{Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};

use super::body::{Body, ResponseBody};
use super::connection::Connection;
use super::encoder::{RequestTraits, Sent};
use super::head::Version;
use super::reader::Message;
use super::upgrade::{self, UpgradeSender};
use super::violation::Violation;
use super::write::FlushBatch;
use crate::net::ClientSocket;
use crate::settings::{Caps, Deadlines};

/// Serves HTTP/1 on a connection from which `early` was already read. Returns when either side ends the connection, or
/// when `stop` is ready and the current request has its response.
///
/// `service` responds to a request. A message that fails to parse is passed as an empty request with its violation. The
/// service's future is dropped if the client disconnects. The connections of a thread share their `batch`.
pub(crate) async fn serve<IO, F, B>(
    io: IO,
    early: BytesMut,
    caps: &Caps,
    deadlines: Deadlines,
    batch: &FlushBatch,
    stop: impl Future<Output = ()>,
    mut service: impl FnMut(Request<Body>, Option<Violation>) -> F,
) -> io::Result<()>
where
    IO: AsyncRead + AsyncWrite + ClientSocket + Send + Unpin + 'static,
    F: Future<Output = Response<B>> + Unpin,
    B: ResponseBody,
{
    let mut connection = Connection::new(io, early, caps, deadlines);
    let mut stop = pin!(stop);
    let mut stopping = false;
    let mut stops = |cx: &mut Context<'_>| {
        stopping = stopping || stop.as_mut().poll(cx).is_ready();
        stopping
    };
    loop {
        // Moved as a whole, so that an idle connection does not reserve memory for a request.
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
            // 101 is the only informational status that ends an exchange, and only if the request asks for an upgrade.
            if let (StatusCode::SWITCHING_PROTOCOLS, Some(sender)) =
                (parts.status, exchange.upgrade)
            {
                return switch(connection, &parts, body, exchange.traits, sender).await;
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
                // Without an orderly close, so that the response does not look complete.
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

/// Sends a response with status 101, and hands over the connection at the end of the request. If the end of the request
/// cannot be reached, the response is not sent: the request body would become part of the tunnel.
async fn switch<IO>(
    mut connection: Connection<IO>,
    parts: &Parts,
    body: impl ResponseBody,
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
        // If the receiver was dropped, the connection is closed.
        let _dropped = sender.send(Box::new(connection.into_tunnel()));
    }
    Ok(())
}

/// A request in flight.
struct Exchange {
    traits: RequestTraits,
    keep_alive: bool,
    upgrade: Option<UpgradeSender>,
    violation: Option<Violation>,
}

impl Exchange {
    /// Starts the exchange of a received message, whose body `connection` receives.
    fn start<IO>(
        received: Option<Result<Message, Violation>>,
        connection: &mut Connection<IO>,
    ) -> Option<(Request<Body>, Self)>
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
    fn rejected(violation: Violation) -> (Request<Body>, Self) {
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
