//! Read side of a connection: buffers what the client sends, and parses heads and bodies.
//!
//! The first bytes of a request are read into a buffer that all connections of a thread share, and are copied from
//! there. They usually are the whole request, so the copy is no larger than the request and an idle connection holds
//! no buffer. ([`detect`](fn@super::detect) reads the first bytes of a connection.) The rest of a large head or a body
//! is read into a buffer of the connection, which is released when it is empty.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::{Method, Request};
use tokio::io::{AsyncRead, ReadBuf};
use tokio_util::io::poll_read_buf;

use super::body::{Body, BodyError, BodySender};
use super::decoder::{Decoded, Decoder};
use super::encoder::RequestTraits;
use super::head::{self, Framing, Head, HeadLimits, HeaderLine};
use super::violation::Violation;

/// Size of the shared buffer for the first bytes of a request.
const FIRST_READ: usize = 16 * 1024;

/// Bounds of the size of further reads, which adapts to what a client sends.
const MIN_READ: usize = 8 * 1024;
const MAX_READ: usize = 64 * 1024;

/// Buffers that all connections of a thread share.
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

/// Reads and parses what a client sends.
#[derive(Debug)]
pub(super) struct Reader {
    limits: HeadLimits,
    /// Bytes received and not consumed.
    buffer: BytesMut,
    /// Whether the buffer may contain a head that was not parsed yet.
    unparsed: bool,
    /// Capacity for the next read, in bytes.
    read_size: usize,
}

/// A request whose head is complete.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) request: Request<Body>,
    /// The body, unless it arrived with the head.
    pub(super) pending: Option<PendingBody>,
    pub(super) traits: RequestTraits,
    /// Whether the client may send another request on the connection.
    pub(super) keep_alive: bool,
    /// Whether the bytes after this message may belong to another protocol.
    pub(super) upgrade: bool,
}

/// A request body of which at least the end is not received.
#[derive(Debug)]
pub(super) struct PendingBody {
    pub(super) decoder: Decoder,
    pub(super) sender: BodySender,
    pub(super) expect: Expectation,
    /// Bytes that were read after the service dropped the body.
    pub(super) discarded: u64,
}

/// State of `Expect: 100-continue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expectation {
    /// The client sends the body without `100 Continue`, or has received it.
    None,
    /// The client receives `100 Continue` when the service reads the body.
    Continue,
    /// The response came before `100 Continue`. The client may send the body or not.
    Unmet,
}

impl Reader {
    /// Returns the reader of a connection from which `early` was already read.
    pub(super) fn new(early: BytesMut, limits: HeadLimits) -> Self {
        Self {
            limits,
            unparsed: !early.is_empty(),
            buffer: early,
            read_size: MIN_READ,
        }
    }

    /// Reads the next request head. Returns `None` if the client closed its side.
    pub(super) fn poll_head<IO: AsyncRead + Unpin>(
        &mut self,
        io: &mut IO,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Result<Message, Violation>>>> {
        loop {
            if std::mem::take(&mut self.unparsed)
                && let Some(message) = self.message().transpose()
            {
                return Poll::Ready(Ok(Some(message)));
            }
            let known = self.buffer.len();
            if ready!(self.poll_read(io, cx))? == 0 {
                return Poll::Ready(Ok(None));
            }
            self.unparsed = self.may_decide(known);
        }
    }

    /// Reads the next part of a body. Returns `None` at the end of the body.
    pub(super) fn poll_body<IO: AsyncRead + Unpin>(
        &mut self,
        decoder: &mut Decoder,
        io: &mut IO,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<Result<Option<Bytes>, BodyError>>> {
        let part = loop {
            match decoder.decode(&mut self.buffer) {
                Ok(Decoded::Data(data)) => break Ok(Some(data)),
                Ok(Decoded::End) => {
                    // Copied, so that the bytes after a large body do not keep its buffer allocated.
                    self.buffer = BytesMut::from(&self.buffer[..]);
                    break Ok(None);
                }
                Ok(Decoded::Incomplete) => {
                    if ready!(self.poll_fill(io, cx))? == 0 {
                        break Err(BodyError::Closed);
                    }
                }
                Err(violation) => break Err(violation.into()),
            }
        };
        self.consumed();
        Poll::Ready(Ok(part))
    }

    /// Waits until the client closes its side. For this it reads ahead up to the start of the next request: a client
    /// that has pipelined a request waits for more than one response.
    pub(super) fn poll_closed<IO: AsyncRead + Unpin>(
        &mut self,
        io: &mut IO,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.head_started() {
            if ready!(self.poll_read(io, cx))? == 0 {
                return Poll::Ready(Ok(()));
            }
            self.unparsed = true;
        }
        Poll::Pending
    }

    /// Whether the buffer contains more of the next head than the empty line that some clients send after a body.
    pub(super) fn head_started(&self) -> bool {
        !b"\r\n".starts_with(&self.buffer[..])
    }

    /// Whether no received bytes are left to consume.
    pub(super) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Returns the bytes received and not consumed.
    pub(super) fn into_buffer(self) -> BytesMut {
        self.buffer
    }

    /// Parses the request at the start of the buffer. Returns `None` if its head is incomplete.
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

    /// Returns the body that follows `head`, which was consumed, and what is pending of it.
    fn body(&mut self, head: &Head) -> (Body, Option<PendingBody>) {
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
        let (sender, body) = Body::channel(decoder.remaining());
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

    /// Updates the state after bytes were consumed. An empty buffer is released.
    fn consumed(&mut self) {
        self.unparsed = !self.buffer.is_empty();
        if self.buffer.is_empty() {
            self.buffer = BytesMut::new();
        }
    }

    /// Whether the bytes from `known` on may complete or invalidate the buffered head. Parsing it after every byte of
    /// a client that sends single bytes would cost the square of its length.
    fn may_decide(&self, known: usize) -> bool {
        let ends_a_line_badly_or_the_head = |lf: usize| {
            let line = &self.buffer[..lf];
            !line.ends_with(b"\r") || line.ends_with(b"\r\n\r")
        };
        let mut new = self.buffer.iter().enumerate().skip(known);
        self.buffer.len() >= self.limits.bytes
            || known <= 2
            || new.any(|(at, &octet)| octet == b'\n' && ends_a_line_badly_or_the_head(at))
    }

    /// Reads bytes of a head. Returns their number.
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

    /// Reads the first bytes of a request through the shared buffer. Returns their number.
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

    /// Reads further bytes into the connection's buffer. Returns their number.
    fn poll_fill<IO: AsyncRead + Unpin>(
        &mut self,
        io: &mut IO,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        self.buffer.reserve(self.read_size);
        let capacity = self.buffer.capacity() - self.buffer.len();
        let Poll::Ready(count) = poll_read_buf(Pin::new(io), cx, &mut self.buffer)? else {
            // No buffer is held while the gateway waits for the client.
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
