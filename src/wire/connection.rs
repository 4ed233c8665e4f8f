//! One connection that speaks HTTP/1: the steps of an exchange, each to be polled until it is done.
//!
//! A client is kept to its deadlines here, since only here is it known what is being waited for: a first
//! head, the rest of a head, a body, the next request, that an answer is taken, or nothing because the
//! service has yet to answer. And it is closed slowly where a hasty close would destroy the answer.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::response::Parts;
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::coop::poll_proceed;
use tokio::time::Instant;

use super::alarm::{Alarm, Stall};
use super::body::{BodyError, Demand, Sender};
use super::coming::{Coming, Part};
use super::cut::Cut;
use super::encode::{self, Asked, Framing};
use super::head::Limits;
use super::inbound::{Inbound, Message};
use super::linger::Linger;
use super::outbound::Outbound;
use super::rewound::Rewound;
use super::sending::{Sending, Sent};
use super::violation::Violation;
use crate::gateway::{Caps, Deadlines};

/// What is read of a body that nobody wants, to save the connection it comes by.
const WORTH_READING: u64 = 64 * 1024;

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
    /// What the client's last bytes were.
    state: State,
}

/// A body that is being received.
#[derive(Debug)]
struct Receiving {
    coming: Coming,
    /// Who gets it.
    sender: Sender,
    /// Whether the client waits to be asked for it.
    asking: Asking,
    /// Bytes of it that were read for nobody.
    unwanted: u64,
}

/// Whether a client is asked for a body that it would not send unasked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asking {
    /// It sends it anyway, or was asked.
    Needless,
    /// It is asked when the body is wanted.
    WhenWanted,
    /// It was answered before it was asked, and sends the body or not.
    TooLate,
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

impl<IO: AsyncRead + AsyncWrite + Cut + Unpin> Connection<IO> {
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

    /// Receives the body of the request that has arrived, for whoever has the other end of `sender`.
    pub(super) fn receive(&mut self, coming: Coming, sender: Sender, expects: bool) {
        self.receiving = Some(Receiving {
            coming,
            sender,
            asking: if expects {
                Asking::WhenWanted
            } else {
                Asking::Needless
            },
            unwanted: 0,
        });
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
        if let Some(receiving) = &mut self.receiving
            && receiving.asking == Asking::WhenWanted
        {
            receiving.asking = Asking::TooLate;
        }
        let last = last || !self.can_go_on();
        let (out, now) = (self.outbound.end(), Instant::now());
        let framing = encode::head(out, parts, exact, asked, last, now);
        if framing == Framing::Close {
            self.io.cut();
        }
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
                        self.io.mend();
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
            ready!(self.stall.watch(&mut self.alarm, cx, sent))?;
        }
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.stall.watch(&mut self.alarm, cx, flushed)
    }

    /// Receives the rest of the request's body, as long as somebody wants it.
    pub(super) fn poll_received(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(receiving) = &self.receiving {
            if receiving.sender.is_let_go() {
                break;
            }
            if !self.feed(cx)? {
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Receives the rest of the request's body, wanted or not.
    pub(super) fn poll_past_request(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_received(cx))?;
        self.poll_out_of_the_way(cx)
    }

    /// Whether another request can follow the one at hand: not if nobody knows where it would begin, or
    /// if too much would have to be read to get there.
    pub(super) fn can_go_on(&self) -> bool {
        let Some(receiving) = &self.receiving else {
            return self.state == State::Open;
        };
        let is_near = |left| left <= WORTH_READING;
        let is_wanted = !receiving.sender.is_let_go();
        receiving.asking == Asking::Needless
            && (is_wanted || receiving.coming.left().is_none_or(is_near))
    }

    /// Closes the connection when the client has had the time to read its answer.
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // After the client's end there is nothing to await.
        if self.state == State::Ended {
            let shut = Pin::new(&mut self.io).poll_shutdown(cx);
            return self.stall.watch(&mut self.alarm, cx, shut);
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
        if !self.outbound.is_empty() {
            let _blocked = self.poll_flush(cx)?;
        }
        if self.receiving.is_some() {
            return self.feed(cx);
        }
        if self.state == State::Open && self.inbound.poll_hang_up(&mut self.io, cx)?.is_ready() {
            return Err(io::Error::new(
                io::ErrorKind::ConnectionAborted,
                "the client hung up before it was answered",
            ));
        }
        Ok(false)
    }

    /// Gives the service what it waits for of the request's body; whether it was given anything.
    fn feed(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let Some(receiving) = &mut self.receiving else {
            return Ok(false);
        };
        let Poll::Ready(Demand::More) = receiving.sender.poll_demand(cx) else {
            // It is not waited for, so its time stands still.
            self.since = None;
            return Ok(false);
        };
        if receiving.asking == Asking::WhenWanted {
            receiving.asking = Asking::Needless;
            if !self.inbound.has_more() {
                let out = self.outbound.end();
                out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
                let _blocked = self.poll_flush(cx)?;
            }
        }
        // A body in tiny parts is not to keep everybody else waiting.
        let Poll::Ready(turn) = poll_proceed(cx) else {
            return Ok(false);
        };
        let Some(receiving) = &mut self.receiving else {
            return Ok(false);
        };
        let part = self
            .inbound
            .poll_part(&mut receiving.coming, &mut self.io, cx)?;
        let end = match part {
            Poll::Ready(Some(Ok(Part::Data(data)))) => {
                receiving.sender.give(data);
                (receiving.coming.left() == Some(0)).then_some(Ok(()))
            }
            Poll::Ready(Some(Ok(Part::End))) => Some(Ok(())),
            Poll::Ready(Some(Err(violation))) => Some(Err(BodyError::Violation(violation))),
            Poll::Ready(None) => Some(Err(BodyError::Closed)),
            Poll::Pending => {
                if self.poll_waited(cx, self.deadlines.body).is_pending() {
                    return Ok(false);
                }
                Some(Err(Violation::BodyTimeout.into()))
            }
        };
        turn.made_progress();
        self.since = None;
        if let Some(end) = end {
            self.received(end);
        }
        Ok(true)
    }

    /// The request's body has come to its end.
    fn received(&mut self, end: Result<(), BodyError>) {
        match end {
            Ok(()) => {}
            Err(BodyError::Violation(_)) => self.state = State::Broken,
            Err(BodyError::Closed) => self.state = State::Ended,
        }
        self.since = None;
        if let Some(receiving) = self.receiving.take() {
            receiving.sender.end(end);
        }
    }

    /// Reads what is left of a body that nobody wanted, all of it within the time of one part.
    fn poll_out_of_the_way(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(receiving) = &mut self.receiving {
            if receiving.unwanted > WORTH_READING {
                self.state = State::Broken;
                self.receiving = None;
                break;
            }
            let part = self
                .inbound
                .poll_part(&mut receiving.coming, &mut self.io, cx)?;
            match part {
                Poll::Ready(Some(Ok(Part::Data(data)))) => {
                    receiving.unwanted += data.len() as u64;
                }
                Poll::Ready(Some(Ok(Part::End))) => self.received(Ok(())),
                Poll::Ready(Some(Err(violation))) => self.received(Err(violation.into())),
                Poll::Ready(None) => self.received(Err(BodyError::Closed)),
                Poll::Pending => {
                    ready!(self.poll_waited(cx, self.deadlines.body));
                    self.received(Err(Violation::BodyTimeout.into()));
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Ready once the client has been waited for so long.
    fn poll_waited(&mut self, cx: &mut Context<'_>, limit: Duration) -> Poll<()> {
        let since = *self.since.get_or_insert_with(Instant::now);
        self.alarm.poll(cx, since + limit)
    }
}
