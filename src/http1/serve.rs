//! The life of a connection: one exchange after the other.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::response::Parts;
use http::{Method, Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};

use super::body::Body;
use super::connection::{Arrived, Connection};
use super::delivery::ResponseBody;
use super::encode::Asked;
use super::head::Version;
use super::sending::{Sending, Sent};
use super::socket::ClientSocket;
use super::turns::Turns;
use super::upgrade::{self, Handover};
use super::violation::Violation;
use crate::settings::{Caps, Deadlines};

/// Serves HTTP/1 on a connection of which `early` was already read, until either side ends it or `stop` is
/// ready and the current request has its response.
///
/// `service` responds to a request. What is not a request comes with its violation and an empty request in its
/// place. The service's future is dropped if the client disconnects. Connections that share a thread share their
/// `turns`.
pub async fn serve<IO, Answering, B>(
    io: IO,
    early: BytesMut,
    caps: &Caps,
    deadlines: Deadlines,
    turns: &Turns,
    stop: impl Future<Output = ()>,
    mut service: impl FnMut(Request<Body>, Option<Violation>) -> Answering,
) -> io::Result<()>
where
    IO: AsyncRead + AsyncWrite + ClientSocket + Send + Unpin + 'static,
    Answering: Future<Output = Response<B>> + Unpin,
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
        let arrived = poll_fn(|cx| connection.poll_request(cx, &mut stops)).await?;
        let Some((exchange, request)) = Exchange::begin(arrived, &mut connection) else {
            break;
        };
        let mut answering = service(request, exchange.violation);
        let (response, last) = poll_fn(|cx| {
            let response = ready!(connection.poll_answer(cx, Pin::new(&mut answering)))?;
            Poll::Ready(io::Result::Ok((
                response,
                !exchange.keep_alive || stops(cx),
            )))
        })
        .await?;
        drop(answering);
        let (parts, body) = response.into_parts();
        if parts.status.is_informational() {
            // Only one of them is an answer, and only to a request that asks for it.
            if let (StatusCode::SWITCHING_PROTOCOLS, Some(handover)) =
                (parts.status, exchange.handover)
            {
                return switch(connection, &parts, body, &exchange.asked, handover).await;
            }
            return Ok(());
        }
        let exact = body.size_hint().exact();
        let framing = connection.begin(&parts, exact, &exchange.asked, last);
        drop(parts);
        let mut sending = Sending::new(framing);
        turns.wait().await;
        {
            let mut body = pin!(body);
            let sent = poll_fn(|cx| connection.poll_send(cx, body.as_mut(), &mut sending)).await?;
            if sent == Sent::CutShort {
                // What was sent must not look complete, so there is no orderly end.
                return Ok(());
            }
            body.delivered();
        }
        poll_fn(|cx| connection.poll_received(cx)).await?;
        if !connection.can_go_on() {
            break;
        }
    }
    poll_fn(|cx| connection.poll_close(cx)).await
}

/// Responds that the protocol is switched, and hands the connection over where its request ends. A request whose
/// end cannot be reached does not get this response: its body would become part of the tunnel.
async fn switch<IO>(
    mut connection: Connection<IO>,
    parts: &Parts,
    body: impl ResponseBody,
    asked: &Asked,
    handover: Handover,
) -> io::Result<()>
where
    IO: AsyncRead + AsyncWrite + ClientSocket + Send + Unpin + 'static,
{
    if !connection.can_go_on() {
        return Ok(());
    }
    connection.begin(parts, None, asked, false);
    poll_fn(|cx| connection.poll_flush(cx)).await?;
    pin!(body).delivered();
    poll_fn(|cx| connection.poll_past_request(cx)).await?;
    if connection.can_go_on() {
        // If nobody takes it, it is closed.
        let _gone = handover.send(Box::new(connection.into_tunnel()));
    }
    Ok(())
}

/// A request that is being answered.
struct Exchange {
    asked: Asked,
    keep_alive: bool,
    handover: Option<Handover>,
    violation: Option<Violation>,
}

impl Exchange {
    /// The exchange that begins with what `arrived`, if anything did.
    fn begin<IO>(arrived: Arrived, connection: &mut Connection<IO>) -> Option<(Self, Request<Body>)>
    where
        IO: AsyncRead + AsyncWrite + ClientSocket + Unpin,
    {
        let message = match arrived {
            Arrived::Request(message) => message,
            Arrived::Refused(violation) => return Some(Self::refused(violation)),
            Arrived::Nothing => return None,
        };
        let (body, coming) = message.body.into_body();
        if let Some((coming, sender)) = coming {
            connection.receive(coming, sender, message.expects);
        }
        let mut request = message.request.map(|()| body);
        let exchange = Self {
            asked: message.asked,
            keep_alive: message.keep_alive,
            handover: message.upgrade.then(|| upgrade::offer(&mut request)),
            violation: None,
        };
        Some((exchange, request))
    }

    fn refused(violation: Violation) -> (Self, Request<Body>) {
        let exchange = Self {
            asked: Asked {
                method: Method::GET,
                version: Version::Http11,
                trailers: false,
            },
            keep_alive: false,
            handover: None,
            violation: Some(violation),
        };
        (exchange, Request::new(Bytes::new().into()))
    }
}

#[cfg(test)]
mod tests;
