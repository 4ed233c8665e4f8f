//! Read side of an HTTP/1 connection: buffers the bytes of the client, and parses request heads and bodies.
//!
//! The first bytes of a request, usually all of it, are read into a buffer that all connections of a thread share, and
//! copied to a buffer of exactly their size. So an idle connection has no buffer, and an active one no unused capacity.
//! The rest of a large head or body is read into a buffer of the connection, which is released when it is empty.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::{Method, Request};
use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::io::poll_read_buf;

use super::body::{Http1Body, RequestBodySender};
use super::decoder::{Decoded, Decoder};
use super::encoder::RequestTraits;
use super::head::{self, Framing, Head, HeadLimits, HeaderLine};
use super::violation::Violation;
use crate::http::IncompleteBody;

const FIRST_READ: usize = 16 * 1024;

/// The size of the reads after the first one adapts to how much the client sends.
const MIN_READ: usize = 8 * 1024;

const MAX_READ: usize = 64 * 1024;

struct Scratch {
    bytes: Box<[u8]>,
    lines: Vec<HeaderLine>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        bytes: vec![0; FIRST_READ].into(),
        lines: Vec::new(),
    });
}

#[derive(Debug)]
pub(super) struct Reader {
    limits: HeadLimits,
    buffer: BytesMut,
    /// Whether the buffer must be parsed before the next read, because it can contain a complete head.
    may_hold_head: bool,
    /// Between [`MIN_READ`] and [`MAX_READ`].
    read_size: usize,
}

#[derive(Debug)]
pub(super) struct Message {
    pub(super) request: Request<Http1Body>,
    /// `None` if the complete body arrived with the head.
    pub(super) pending: Option<PendingBody>,
    pub(super) traits: RequestTraits,
    /// According to the HTTP version and the `Connection` header.
    pub(super) keep_alive: bool,
    /// The bytes after a request with an `Upgrade` header can belong to another protocol.
    pub(super) upgrade: bool,
}

#[derive(Debug)]
pub(super) struct PendingBody {
    pub(super) decoder: Decoder,
    pub(super) sender: RequestBodySender,
    pub(super) expect: Expectation,
    /// Bytes that were discarded after the service dropped the body.
    pub(super) discarded: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expectation {
    /// Not requested, or already sent.
    None,
    /// To be sent when the service reads the body.
    Continue,
    /// The final response was sent first. The client may send the body or not, so the connection cannot be reused.
    Unmet,
}

impl Reader {
    pub(super) fn new(early: BytesMut, limits: HeadLimits) -> Self {
        Self {
            limits,
            may_hold_head: !early.is_empty(),
            buffer: early,
            read_size: MIN_READ,
        }
    }

    pub(super) fn poll_head<IO: AsyncRead + Unpin>(
        &mut self,
        io: &mut IO,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Result<Message, Violation>>>> {
        loop {
            if std::mem::take(&mut self.may_hold_head)
                && let Some(message) = self.message().transpose()
            {
                return Poll::Ready(Ok(Some(message)));
            }
            let known = self.buffer.len();
            if ready!(self.poll_read(io, cx))? == 0 {
                return Poll::Ready(Ok(None));
            }
            self.may_hold_head = self.may_complete_head(known);
        }
    }

    pub(super) fn poll_body<IO: AsyncRead + Unpin>(
        &mut self,
        decoder: &mut Decoder,
        io: &mut IO,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Result<Option<Bytes>, IncompleteBody>>> {
        let part = loop {
            match decoder.decode(&mut self.buffer) {
                Ok(Decoded::Data(data)) => break Ok(Some(data)),
                Ok(Decoded::End) => {
                    // Otherwise the remaining bytes would keep the memory of a large body allocated.
                    self.buffer = BytesMut::from(&self.buffer[..]);
                    break Ok(None);
                }
                Ok(Decoded::Incomplete) => {
                    if ready!(self.poll_fill(io, cx))? == 0 {
                        break Err(IncompleteBody::Disconnected);
                    }
                }
                Err(violation) => break Err(violation.into()),
            }
        };
        self.consumed();
        Poll::Ready(Ok(part))
    }

    /// Waits until the client closes its side, and reads ahead to detect this. If the client has sent the next request
    /// early, it waits forever, because that client still expects responses.
    pub(super) fn poll_closed<IO: AsyncRead + Unpin>(
        &mut self,
        io: &mut IO,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.head_started() {
            if ready!(self.poll_read(io, cx))? == 0 {
                return Poll::Ready(Ok(()));
            }
            self.may_hold_head = true;
        }
        Poll::Pending
    }

    /// An empty line alone does not count, because some clients send one after a body.
    pub(super) fn head_started(&self) -> bool {
        !b"\r\n".starts_with(&self.buffer[..])
    }

    pub(super) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    pub(super) fn into_buffer(self) -> BytesMut {
        self.buffer
    }

    /// Returns `None` if the head is incomplete.
    fn message(&mut self) -> Result<Option<Message>, Violation> {
        SCRATCH.with_borrow_mut(|scratch| {
            let lines = &mut scratch.lines;
            let Some(head) = head::parse(&self.buffer, self.limits, lines)? else {
                return Ok(None);
            };
            let bytes = self.buffer.split_to(head.len).freeze();
            let request = head.request(&bytes, lines)?;
            let (body, pending) = self.body(&head);
            self.consumed();
            Ok(Some(Message {
                traits: RequestTraits {
                    is_head: request.method() == Method::HEAD,
                    version: head.version,
                    accepts_trailers: head.accepts_trailers,
                },
                request: request.map(|()| body),
                pending,
                keep_alive: head.keep_alive,
                upgrade: head.upgrade,
            }))
        })
    }

    /// The second value is `Some` if the body is not completely in the buffer. The head must already be removed.
    fn body(&mut self, head: &Head) -> (Http1Body, Option<PendingBody>) {
        let decoder = match head.framing {
            Framing::None => return (Bytes::new().into(), None),
            Framing::Length(length) => match usize::try_from(length) {
                Ok(length) if length <= self.buffer.len() => {
                    return (self.buffer.split_to(length).freeze().into(), None);
                }
                _ => Decoder::Length(length),
            },
            Framing::Chunked => Decoder::chunked(self.limits.bytes),
        };
        let (sender, body) = Http1Body::channel(decoder.remaining());
        let pending = PendingBody {
            decoder,
            sender,
            expect: if head.expects_continue {
                Expectation::Continue
            } else {
                Expectation::None
            },
            discarded: 0,
        };
        (body, Some(pending))
    }

    fn consumed(&mut self) {
        self.may_hold_head = !self.buffer.is_empty();
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
        }
    }

    /// Whether the bytes from `known` on can complete or invalidate the buffered head. Otherwise a client that sends
    /// single bytes would cause one parse of the entire head per byte.
    fn may_complete_head(&self, known: usize) -> bool {
        let ends_head_or_is_invalid = |lf: usize| {
            let line = &self.buffer[..lf];
            !line.ends_with(b"\r") || line.ends_with(b"\r\n\r")
        };
        let mut new = self.buffer.iter().enumerate().skip(known);
        self.buffer.len() >= self.limits.bytes
            || known <= 2
            || new.any(|(at, &octet)| octet == b'\n' && ends_head_or_is_invalid(at))
    }

    fn poll_read<IO: AsyncRead + Unpin>(
        &mut self,
        io: &mut IO,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.buffer.is_empty() {
            self.poll_first(io, cx)
        } else {
            self.read_size = MIN_READ;
            self.poll_fill(io, cx)
        }
    }

    /// Reads into the shared buffer, and copies the bytes to the buffer of this connection.
    fn poll_first<IO: AsyncRead + Unpin>(
        &mut self,
        io: &mut IO,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        SCRATCH.with_borrow_mut(|scratch| {
            let mut read = ReadBuf::new(&mut scratch.bytes);
            ready!(Pin::new(io).poll_read(cx, &mut read))?;
            self.buffer = BytesMut::from(read.filled());
            Poll::Ready(Ok(self.buffer.len()))
        })
    }

    fn poll_fill<IO: AsyncRead + Unpin>(
        &mut self,
        io: &mut IO,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.buffer.reserve(self.read_size);
        let capacity = self.buffer.capacity() - self.buffer.len();
        let Poll::Ready(count) = poll_read_buf(Pin::new(io), cx, &mut self.buffer)? else {
            // An idle connection has no buffer.
            if self.buffer.is_empty() {
                self.buffer = BytesMut::new();
            }
            return Poll::Pending;
        };
        if count == capacity {
            self.read_size = (2 * self.read_size).min(MAX_READ);
        } else if count < self.read_size / 2 {
            self.read_size = (self.read_size / 2).max(MIN_READ);
        }
        Poll::Ready(Ok(count))
    }
}

#[cfg(test)]
mod tests;
