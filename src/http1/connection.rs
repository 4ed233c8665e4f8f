//! One connection that speaks HTTP/1: the steps of an exchange, each to be polled until it is done.
//!
//! A client is kept to its deadlines here, since only here is it known what is being waited for: a first
//! head, the rest of a head, a body, the next request, that an answer is taken, or nothing because the
//! service has yet to answer. And it is closed slowly where a hasty close would destroy the answer.

mod receiving;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::response::Parts;
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

use self::receiving::Receiving;
use super::alarm::{Alarm, Stall};
use super::encode::{self, Asked, Framing};
use super::head::Limits;
use super::inbound::{Inbound, Message};
use super::linger::Linger;
use super::outbound::Outbound;
use super::rewound::Rewound;
use super::sending::{Sending, Sent};
use super::socket::ClientSocket;
use super::violation::Violation;
use crate::settings::{Caps, Deadlines};

/// A client's connection.
#[derive(Debug)]
pub(super) struct Connection<IO> {
    io: IO,
    inbound: Inbound,
    outbound: Outbound,
    deadlines: Deadlines,
    alarm: Alarm,
    stall: Stall,
    linger: Linger,
    /// The body that the client is sending.
    receiving: Option<Receiving>,
    /// Since when the client is waited for.
    since: Option<Instant>,
    /// Whether that is for the rest of a head.
    amid_head: bool,
    /// Whether a request was received before.
    used: bool,
    /// What became of the client's side.
    state: State,
    /// Whether the client was told that this is its last answer.
    is_last: bool,
}

/// What became of the client's side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// More may come.
    Open,
    /// What came was no request, not in time or too much: nobody knows where the next one would begin.
    Broken,
    /// The client has closed it.
    Ended,
}

/// What came of waiting for a request.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly always it is the large one"
)]
pub(super) enum Arrived {
    /// A request.
    Request(Message),
    /// Something else.
    Refused(Violation),
    /// Nothing, and there is nothing to wait for.
    Nothing,
}

impl<IO: AsyncRead + AsyncWrite + ClientSocket + Unpin> Connection<IO> {
    /// Takes charge of a connection of which `early` was already read.
    pub(super) fn new(io: IO, early: BytesMut, caps: &Caps, deadlines: Deadlines) -> Self {
        let limits = Limits {
            bytes: caps.head_bytes,
            lines: caps.header_lines,
        };
        Self {
            io,
            inbound: Inbound::new(early, limits),
            outbound: Outbound::default(),
            deadlines,
            alarm: Alarm::default(),
            stall: Stall::new(deadlines.write),
            linger: Linger::default(),
            receiving: None,
            since: Some(Instant::now()),
            amid_head: false,
            used: false,
            state: State::Open,
            is_last: false,
        }
    }

    /// Waits for a request; once `stops` says so, only for the rest of one that has begun.
    pub(super) fn poll_request(
        &mut self,
        cx: &mut Context<'_>,
        stops: &mut impl FnMut(&mut Context<'_>) -> bool,
    ) -> Poll<io::Result<Arrived>> {
        let is_behind = self.poll_out_of_the_way(cx)?.is_ready();
        if self.state != State::Open || (!is_behind && stops(cx)) {
            return Poll::Ready(Ok(Arrived::Nothing));
        }
        if !is_behind {
            return Poll::Pending;
        }
        let arrived = match self.inbound.poll_head(&mut self.io, cx)? {
            Poll::Ready(Some(Ok(message))) => Arrived::Request(message),
            Poll::Ready(Some(Err(violation))) => Arrived::Refused(violation),
            Poll::Ready(None) => {
                self.state = State::Ended;
                Arrived::Nothing
            }
            Poll::Pending => ready!(self.poll_late(cx, stops)),
        };
        if let Arrived::Refused(_) = arrived {
            self.state = State::Broken;
        }
        self.used = true;
        self.since = None;
        self.amid_head = false;
        Poll::Ready(Ok(arrived))
    }

    /// What follows when the request that is waited for does not come in time, or is not waited for.
    fn poll_late(
        &mut self,
        cx: &mut Context<'_>,
        stops: &mut impl FnMut(&mut Context<'_>) -> bool,
    ) -> Poll<Arrived> {
        let amid_head = self.inbound.head_begun();
        if !amid_head && stops(cx) {
            return Poll::Ready(Arrived::Nothing);
        }
        // The first head has its time from where this began, any other from its first byte.
        if self.used && amid_head != self.amid_head {
            self.since = None;
        }
        self.amid_head = amid_head;
        let limit = if amid_head || !self.used {
            self.deadlines.head
        } else {
            self.deadlines.idle
        };
        ready!(self.poll_waited(cx, limit));
        Poll::Ready(if amid_head {
            Arrived::Refused(Violation::HeadTimeout)
        } else {
            Arrived::Nothing
        })
    }

    /// Waits for the answer, and meanwhile for what the service waits for.
    pub(super) fn poll_answer<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut answering: Pin<&mut impl Future<Output = T>>,
    ) -> Poll<io::Result<T>> {
        loop {
            if let Poll::Ready(answer) = answering.as_mut().poll(cx) {
                return Poll::Ready(Ok(answer));
            }
            if !self.look_after_client(cx)? {
                return Poll::Pending;
            }
        }
    }

    /// Puts down the head of an answer. `last` if no request is to be taken after this one.
    pub(super) fn begin(
        &mut self,
        parts: &Parts,
        exact: Option<u64>,
        asked: &Asked,
        last: bool,
    ) -> Framing {
        self.ask_no_more();
        let last = last || !self.can_go_on();
        let (out, now) = (self.outbound.end(), Instant::now());
        let framing = encode::head(out, parts, exact, asked, last, now);
        if framing == Framing::Close {
            self.io.reset_on_close();
        }
        self.is_last = last || framing == Framing::Close;
        framing
    }

    /// Sends an answer's body, and meanwhile goes on receiving its request's.
    pub(super) fn poll_send<B: Body<Data = Bytes>>(
        &mut self,
        cx: &mut Context<'_>,
        mut body: Pin<&mut B>,
        sending: &mut Sending,
    ) -> Poll<io::Result<Sent>> {
        loop {
            let over = sending.over();
            if over.is_some() || self.outbound.is_full() {
                if self.poll_flush(cx)?.is_pending() {
                    while self.look_after_client(cx)? {}
                    return Poll::Pending;
                }
                if let Some(sent) = over {
                    if sent == Sent::Whole && sending.is_to_close() {
                        self.io.end_on_close();
                    }
                    return Poll::Ready(Ok(sent));
                }
            }
            let added = sending.poll_add(cx, body.as_mut(), &mut self.outbound);
            if added.is_pending() {
                // What there is goes out while the rest is waited for.
                let _blocked = self.poll_flush(cx)?;
                if !self.look_after_client(cx)? {
                    return Poll::Pending;
                }
            }
        }
    }

    /// Sends everything that was put down.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.outbound.is_empty() {
            let sent = self.outbound.poll_send(&mut self.io, cx);
            ready!(self.stall.watch(&mut self.alarm, cx, &self.io, sent))?;
        }
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.stall.watch(&mut self.alarm, cx, &self.io, flushed)
    }

    /// Closes the connection when the client has had the time to read its answer.
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // After the client's end there is nothing to await.
        if self.state == State::Ended {
            let shut = Pin::new(&mut self.io).poll_shutdown(cx);
            return self.stall.watch(&mut self.alarm, cx, &self.io, shut);
        }
        let expected =
            self.state == State::Broken || self.receiving.is_some() || self.inbound.has_more();
        self.linger
            .poll(&mut self.io, &mut self.alarm, cx, expected)
    }

    /// The connection, with what was received behind the last request.
    pub(super) fn into_tunnel(self) -> Rewound<IO> {
        Rewound::new(self.io, self.inbound.into_received(), self.deadlines.write)
    }

    /// Goes on receiving while something else is waited for; whether the service was given something.
    fn look_after_client(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let has_given = if self.receiving.is_some() {
            self.feed(cx)?
        } else if self.state == State::Open
            && self.inbound.poll_hang_up(&mut self.io, cx)?.is_ready()
        {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the client hung up before it was answered",
            ));
        } else {
            false
        };
        // It may have been asked for its body.
        if !self.outbound.is_empty() || self.stall.is_blocked() {
            let _blocked = self.poll_flush(cx)?;
        }
        Ok(has_given)
    }

    /// Ready once the client has been waited for so long.
    fn poll_waited(&mut self, cx: &mut Context<'_>, limit: Duration) -> Poll<()> {
        let since = *self.since.get_or_insert_with(Instant::now);
        self.alarm.poll(cx, since + limit)
    }
}
