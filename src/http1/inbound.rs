//! What a client sends: taken in, and taken apart.
//!
//! The first bytes of a request are read into room that all connections of a thread share, and copied
//! from there: nearly always they are all of a request, so what is kept of it is no larger than it is, and
//! a connection at rest keeps nothing. (Those of its very first request come from [`sniff`](super::sniff).)
//! Only what follows, the rest of a large head or a body, is read into
//! room of the connection's own, which it has no longer than it gets something to put there.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::Request;
use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::io::poll_read_buf;

use super::body::{Body, Sender};
use super::chunked::Chunked;
use super::coming::{Coming, Part};
use super::encode::Asked;
use super::head::{self, Framing, Limits, Line};
use super::request::request;
use super::violation::Violation;

/// Room for the first bytes of a request.
const FIRST: usize = 16 * 1024;

/// Room for what follows, at least and at most.
const LEAST: usize = 8 * 1024;
const MOST: usize = 64 * 1024;

/// What all connections of a thread share.
struct Scratch {
    room: Box<[u8]>,
    lines: Vec<Line>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        room: vec![0; FIRST].into(),
        lines: Vec::new(),
    });
}

/// The reading side of a connection, without the connection.
#[derive(Debug)]
pub(super) struct Inbound {
    limits: Limits,
    /// Received and not yet used.
    received: BytesMut,
    /// Whether it may hold a head.
    unread: bool,
    /// Room for the next bytes.
    room: usize,
}

/// A request whose head is here.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) request: Request<()>,
    pub(super) body: Arriving,
    pub(super) asked: Asked,
    /// Whether the client waits to be asked for the body.
    pub(super) expects: bool,
    /// Whether the client means to send another request after this one.
    pub(super) keep_alive: bool,
    /// Whether the bytes after this message may belong to another protocol.
    pub(super) upgrade: bool,
}

/// A request's body when its head is here.
#[derive(Debug)]
pub(super) enum Arriving {
    Whole(Bytes),
    Coming(Coming),
}

impl Inbound {
    /// A connection of which `early` was already read.
    pub(super) fn new(early: BytesMut, limits: Limits) -> Self {
        Self {
            limits,
            unread: !early.is_empty(),
            received: early,
            room: LEAST,
        }
    }

    /// The next request, or why what came is none; `None` at the end of the client's bytes.
    pub(super) fn poll_head<IO: AsyncRead + Unpin>(
        &mut self,
        io: &mut IO,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Result<Message, Violation>>>> {
        loop {
            if std::mem::take(&mut self.unread)
                && let Some(message) = self.message().transpose()
            {
                return Poll::Ready(Ok(Some(message)));
            }
            let known = self.received.len();
            if ready!(self.poll_read(io, cx))? == 0 {
                return Poll::Ready(Ok(None));
            }
            self.unread = self.may_decide(known);
        }
    }

    /// The next part of a body; `None` at the end of the client's bytes.
    pub(super) fn poll_part<IO: AsyncRead + Unpin>(
        &mut self,
        coming: &mut Coming,
        io: &mut IO,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Result<Part, Violation>>>> {
        loop {
            if let Some(part) = coming.take(&mut self.received).transpose() {
                if let Ok(Part::End) = part {
                    // What is left is not to hold on to the room of a large body.
                    self.received = BytesMut::from(&self.received[..]);
                }
                self.settle();
                return Poll::Ready(Ok(Some(part)));
            }
            if ready!(self.poll_fill(io, cx))? == 0 {
                return Poll::Ready(Ok(None));
            }
        }
    }

    /// Ready when the client has closed its side. Reads ahead for that, but no further than the beginning
    /// of the next request: one that has sent more is waiting for more than one answer.
    pub(super) fn poll_hang_up<IO: AsyncRead + Unpin>(
        &mut self,
        io: &mut IO,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.head_begun() {
            if ready!(self.poll_read(io, cx))? == 0 {
                return Poll::Ready(Ok(()));
            }
            self.unread = true;
        }
        Poll::Pending
    }

    /// Whether there is more of the next head than an empty line before it, which some clients send
    /// after a body and nothing else.
    pub(super) fn head_begun(&self) -> bool {
        !b"\r\n".starts_with(&self.received[..])
    }

    /// Whether something was received that nobody has used.
    pub(super) fn has_more(&self) -> bool {
        !self.received.is_empty()
    }

    /// What was received and not used.
    pub(super) fn into_received(self) -> BytesMut {
        self.received
    }

    /// The request that begins what was received, if its head is all there.
    fn message(&mut self) -> Result<Option<Message>, Violation> {
        SCRATCH.with_borrow_mut(|scratch| {
            let lines = &mut scratch.lines;
            let Some(head) = head::read(&self.received, self.limits, lines)? else {
                return Ok(None);
            };
            let bytes = self.received.split_to(head.len).freeze();
            let request = request(&bytes, &head, lines)?;
            let body = self.arriving(head.framing);
            self.settle();
            Ok(Some(Message {
                asked: Asked {
                    method: request.method().clone(),
                    version: head.version,
                    trailers: head.trailers,
                },
                request,
                body,
                expects: head.expects,
                keep_alive: head.keep_alive,
                upgrade: head.upgrade,
            }))
        })
    }

    /// Something was used up: what is left was not looked at, and if nothing is, it needs no room.
    fn settle(&mut self) {
        self.unread = !self.received.is_empty();
        if self.received.is_empty() {
            self.received = BytesMut::new();
        }
    }

    fn arriving(&mut self, framing: Framing) -> Arriving {
        match framing {
            Framing::None => Arriving::Whole(Bytes::new()),
            Framing::Length(length) => match usize::try_from(length) {
                Ok(length) if length <= self.received.len() => {
                    Arriving::Whole(self.received.split_to(length).freeze())
                }
                _ => Arriving::Coming(Coming::Length(length)),
            },
            Framing::Chunked => Arriving::Coming(Coming::Chunked(Chunked::new(self.limits.bytes))),
        }
    }

    /// Whether the bytes from `known` on may complete or break the head that is here. Reading it again at
    /// every byte of a client that sends it byte by byte would cost the square of its length.
    fn may_decide(&self, known: usize) -> bool {
        let ends_a_line_badly_or_the_head = |lf: usize| {
            let line = &self.received[..lf];
            !line.ends_with(b"\r") || line.ends_with(b"\r\n\r")
        };
        let mut new = self.received.iter().enumerate().skip(known);
        self.received.len() >= self.limits.bytes
            || known <= 2
            || new.any(|(at, &octet)| octet == b'\n' && ends_a_line_badly_or_the_head(at))
    }

    fn poll_read<IO: AsyncRead + Unpin>(
        &mut self,
        io: &mut IO,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.received.is_empty() {
            self.poll_first(io, cx)
        } else {
            self.room = LEAST;
            self.poll_fill(io, cx)
        }
    }

    /// Reads the first bytes of a request; how many.
    fn poll_first<IO: AsyncRead + Unpin>(
        &mut self,
        io: &mut IO,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut buf = ReadBuf::new(&mut scratch.room);
            ready!(Pin::new(io).poll_read(cx, &mut buf))?;
            self.received = BytesMut::from(buf.filled());
            Poll::Ready(Ok(self.received.len()))
        })
    }

    /// Reads what follows; how many bytes.
    fn poll_fill<IO: AsyncRead + Unpin>(
        &mut self,
        io: &mut IO,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.received.reserve(self.room);
        let room = self.received.capacity() - self.received.len();
        let Poll::Ready(count) = poll_read_buf(Pin::new(io), cx, &mut self.received)? else {
            // A client that makes us wait is given no room to wait in.
            if self.received.is_empty() {
                self.received = BytesMut::new();
            }
            return Poll::Pending;
        };
        // As much room as a client fills, within bounds.
        if count == room {
            self.room = (2 * self.room).min(MOST);
        } else if count < self.room / 2 {
            self.room = (self.room / 2).max(LEAST);
        }
        Poll::Ready(Ok(count))
    }
}

impl Arriving {
    /// The body as the service gets it; if it is still coming, with what comes and the end that gives it.
    pub(super) fn into_body(self) -> (Body, Option<(Coming, Sender)>) {
        match self {
            Self::Whole(bytes) => (bytes.into(), None),
            Self::Coming(coming) => {
                let (sender, body) = Body::coming(coming.left());
                (body, Some((coming, sender)))
            }
        }
    }
}

#[cfg(test)]
mod tests;
