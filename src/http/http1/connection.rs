//! State machine of one HTTP/1 connection. Each step of serving a request is a poll function.
//!
//! This module applies the client timeouts, because only the connection knows what it waits for. None of them runs
//! while the service processes a request.

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

use super::body::Demand;
use super::body_wait::BodyWait;
use super::detect::Rewind;
use super::encoder::{Encoder, RequestTraits, Sent};
use super::head::HeadLimits;
use super::linger::Linger;
use super::reader::{Expectation, Message, PendingBody, Reader};
use super::timers::{Timer, WriteTimeout};
use super::violation::Violation;
use super::write::WriteBuffer;
use crate::http::IncompleteBody;
use crate::http::settings::{ClientTimeouts, ServerLimits};
use crate::http::socket::ClientSocket;

/// If more bytes of an unread request body follow, the connection is closed instead of reused.
const MAX_DISCARD: u64 = 64 * 1024;

#[derive(Debug)]
pub(super) struct Connection<IO> {
    io: IO,
    reader: Reader,
    write_buffer: WriteBuffer,
    timeouts: ClientTimeouts,
    timer: Timer,
    write_timeout: WriteTimeout,
    linger: Linger,
    /// The request body that is not completely received.
    pending: Option<PendingBody>,
    body_wait: BodyWait,
    waiting_since: Option<Instant>,
    /// The wait is for the rest of a head, and not for the start of the next request.
    waits_for_head: bool,
    /// Whether a request was received. If so, `idle_timeout` applies to the wait for the next one.
    is_reused: bool,
    state: ReadState,
    is_last: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadState {
    Open,
    /// The position of the next request is unknown, so the connection must be closed.
    Invalid,
    Closed,
}

impl<IO: AsyncRead + AsyncWrite + ClientSocket + Unpin> Connection<IO> {
    pub(super) fn new(
        io: IO,
        early: BytesMut,
        limits: &ServerLimits,
        timeouts: ClientTimeouts,
    ) -> Self {
        let head_limits = HeadLimits {
            bytes: limits.head_bytes,
            lines: limits.header_lines,
        };
        Self {
            io,
            reader: Reader::new(early, head_limits),
            write_buffer: WriteBuffer::default(),
            timeouts,
            timer: Timer::default(),
            write_timeout: WriteTimeout::new(timeouts.write),
            linger: Linger::default(),
            pending: None,
            body_wait: BodyWait::new(&timeouts),
            waiting_since: Some(Instant::now()),
            waits_for_head: false,
            is_reused: false,
            state: ReadState::Open,
            is_last: false,
        }
    }

    /// Returns `None` if no further request arrives. `drain_due` returns a time once a drain has started: if the client
    /// has sent no part of the request by then, no request is awaited.
    pub(super) fn poll_request(
        &mut self,
        cx: &mut Context<'_>,
        drain_due: &mut impl FnMut(&mut Context<'_>) -> Option<Instant>,
    ) -> Poll<io::Result<Option<Result<Message, Violation>>>> {
        let is_discarded = self.poll_discard(cx)?.is_ready();
        if self.state != ReadState::Open {
            return Poll::Ready(Ok(None));
        }
        if !is_discarded {
            return match drain_due(cx) {
                Some(due) => self.timer.poll(cx, due).map(|()| Ok(None)),
                None => Poll::Pending,
            };
        }
        let received = match self.reader.poll_head(&mut self.io, cx)? {
            Poll::Ready(received) => {
                if received.is_none() {
                    self.state = ReadState::Closed;
                }
                received
            }
            Poll::Pending => ready!(self.poll_head_timeout(cx, drain_due)).map(Err),
        };
        if let Some(Err(_)) = received {
            self.state = ReadState::Invalid;
        }
        self.is_reused = true;
        self.waiting_since = None;
        self.waits_for_head = false;
        Poll::Ready(Ok(received))
    }

    /// Waits until the timeout of the next head expires. The violation is `None` if the client has sent nothing, also
    /// at the time of `drain_due`.
    fn poll_head_timeout(
        &mut self,
        cx: &mut Context<'_>,
        drain_due: &mut impl FnMut(&mut Context<'_>) -> Option<Instant>,
    ) -> Poll<Option<Violation>> {
        let head_started = self.reader.head_started();
        if !head_started
            && let Some(due) = drain_due(cx)
            && self.timer.poll(cx, due).is_ready()
        {
            return Poll::Ready(None);
        }
        // The timeout of the first head starts with the connection, that of a later one with its first byte.
        if self.is_reused && head_started != self.waits_for_head {
            self.waiting_since = None;
        }
        self.waits_for_head = head_started;
        let limit = if head_started || !self.is_reused {
            self.timeouts.head
        } else {
            self.timeouts.idle
        };
        ready!(self.poll_client_timeout(cx, limit));
        Poll::Ready(head_started.then_some(Violation::HeadTimeout))
    }

    pub(super) fn receive(&mut self, pending: Option<PendingBody>) {
        self.body_wait = BodyWait::new(&self.timeouts);
        self.pending = pending;
    }

    pub(super) fn poll_response<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut responding: Pin<&mut impl Future<Output = T>>,
    ) -> Poll<io::Result<T>> {
        loop {
            if let Poll::Ready(response) = responding.as_mut().poll(cx) {
                return Poll::Ready(Ok(response));
            }
            if !self.poll_client(cx)? {
                return Poll::Pending;
            }
        }
    }

    /// `exact` is the length of the body, if known. `last` means that the connection must close after this response.
    pub(super) fn start_response(
        &mut self,
        parts: &Parts,
        exact: Option<u64>,
        request: RequestTraits,
        last: bool,
    ) -> Encoder {
        // `100 Continue` must not follow the final response.
        if let Some(pending) = &mut self.pending
            && pending.expect == Expectation::Continue
        {
            pending.expect = Expectation::Unmet;
        }
        let last = last || !self.is_reusable();
        let (out, now) = (self.write_buffer.tail(), Instant::now());
        let encoder = Encoder::head(out, parts, exact, request, last, now);
        if encoder.is_until_close() {
            self.io.reset_on_close();
        }
        self.is_last = last || encoder.is_until_close();
        encoder
    }

    pub(super) fn poll_send<B: Body<Data = Bytes>>(
        &mut self,
        cx: &mut Context<'_>,
        mut body: Pin<&mut B>,
        encoder: &mut Encoder,
    ) -> Poll<io::Result<Sent>> {
        loop {
            let outcome = encoder.outcome();
            if outcome.is_some() || self.write_buffer.is_full() {
                if self.poll_flush(cx)?.is_pending() {
                    while self.poll_client(cx)? {}
                    return Poll::Pending;
                }
                if let Some(sent) = outcome {
                    if sent == Sent::Complete && encoder.is_until_close() {
                        self.io.fin_on_close();
                    }
                    return Poll::Ready(Ok(sent));
                }
            }
            let frame = encoder.poll_encode(cx, body.as_mut(), &mut self.write_buffer);
            if frame.is_pending() {
                // The encoded bytes are sent now, because the next part of the body can take long.
                let _blocked = self.poll_flush(cx)?;
                if !self.poll_client(cx)? {
                    return Poll::Pending;
                }
            }
        }
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.write_buffer.is_empty() {
            let written = self.write_buffer.poll_write(&mut self.io, cx);
            ready!(self.write_timeout.check(&mut self.timer, cx, written))?;
        }
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.write_timeout.check(&mut self.timer, cx, flushed)
    }

    /// Passes the rest of the request body to the service, until its end or until the service drops it.
    pub(super) fn poll_received(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(pending) = &self.pending {
            if pending.sender.is_dropped() {
                self.waiting_since = None;
                break;
            }
            if !self.feed(cx)? {
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Discards about [`MAX_DISCARD`] bytes at most, of a request body that the service has dropped.
    pub(super) fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(pending) = &mut self.pending {
            if pending.discarded > MAX_DISCARD {
                self.state = ReadState::Invalid;
                self.pending = None;
                break;
            }
            let decoder = &mut pending.decoder;
            match self.reader.poll_body(decoder, &mut self.io, cx)? {
                Poll::Ready(Ok(Some(data))) => pending.discarded += data.len() as u64,
                Poll::Ready(Ok(None)) => self.end_body(Ok(())),
                Poll::Ready(Err(error)) => self.end_body(Err(error)),
                Poll::Pending => {
                    ready!(self.poll_client_timeout(cx, self.timeouts.body));
                    self.end_body(Err(Violation::BodyTimeout.into()));
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// False if the response announced the close, if the position of the next request is unknown, or if too many unread
    /// bytes precede it.
    pub(super) fn is_reusable(&self) -> bool {
        if self.is_last || self.state != ReadState::Open {
            return false;
        }
        let Some(pending) = &self.pending else {
            return true;
        };
        let is_small = |remaining| remaining <= MAX_DISCARD;
        pending.expect == Expectation::None
            && (!pending.sender.is_dropped() || pending.decoder.remaining().is_none_or(is_small))
    }

    pub(super) fn reset_on_close(&self) {
        self.io.reset_on_close();
    }

    pub(super) fn is_pipelined(&self) -> bool {
        self.pending.is_none() && self.reader.head_started()
    }

    /// If the client can still be sending, the connection first stays open for a short time (see [`Linger`]).
    pub(super) fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.state == ReadState::Closed {
            let shut = Pin::new(&mut self.io).poll_shutdown(cx);
            return self.write_timeout.check(&mut self.timer, cx, shut);
        }
        let expected =
            self.state == ReadState::Invalid || self.pending.is_some() || !self.reader.is_empty();
        self.linger
            .poll(&mut self.io, &mut self.timer, cx, expected)
    }

    /// The bytes received after the upgrade request are read first.
    pub(super) fn into_tunnel(self) -> Rewind<IO> {
        Rewind::new(self.io, self.reader.into_buffer(), self.timeouts.tunnel)
    }

    /// Receives the rest of the request body while the connection waits for the service or for a writable socket. Fails
    /// if the client has closed the connection.
    fn poll_client(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let was_fed = if self.pending.is_some() {
            self.feed(cx)?
        } else if self.state == ReadState::Open
            && self.reader.poll_closed(&mut self.io, cx)?.is_ready()
        {
            return Err(io::ErrorKind::ConnectionAborted.into());
        } else {
            false
        };
        // `feed` can have added `100 Continue`.
        if !self.write_buffer.is_empty() || self.write_timeout.is_blocked() {
            let _blocked = self.poll_flush(cx)?;
        }
        Ok(was_fed)
    }

    /// Passes on the next part of the request body if the service waits for one. Returns true if the service received a
    /// part or the end of the body.
    fn feed(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        let Some(pending) = &mut self.pending else {
            return Ok(false);
        };
        let Poll::Ready(Demand::More) = pending.sender.poll_demand(cx) else {
            // This time must not count towards `body_timeout` or `min_rate`.
            self.waiting_since = None;
            return Ok(false);
        };
        if pending.expect == Expectation::Continue {
            pending.expect = Expectation::None;
            if self.reader.is_empty() {
                let out = self.write_buffer.tail();
                out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
            }
        }
        // A body in many small parts must not starve the other tasks of the worker.
        let Poll::Ready(budget) = poll_proceed(cx) else {
            return Ok(false);
        };
        let decoder = &mut pending.decoder;
        let end = match self.reader.poll_body(decoder, &mut self.io, cx)? {
            Poll::Ready(Ok(Some(data))) => {
                let waited = self.waiting_since.map(|since| since.elapsed());
                (self.body_wait).received(waited.unwrap_or_default(), data.len());
                pending.sender.send(data);
                (pending.decoder.remaining() == Some(0)).then_some(Ok(()))
            }
            Poll::Ready(Ok(None)) => Some(Ok(())),
            Poll::Ready(Err(error)) => Some(Err(error)),
            Poll::Pending => {
                let (limit, violation) = self.body_wait.limit();
                if self.poll_client_timeout(cx, limit).is_pending() {
                    return Ok(false);
                }
                Some(Err(violation.into()))
            }
        };
        budget.made_progress();
        self.waiting_since = None;
        if let Some(end) = end {
            self.end_body(end);
        }
        Ok(true)
    }

    fn end_body(&mut self, end: Result<(), IncompleteBody>) {
        match end {
            Ok(()) => {}
            Err(IncompleteBody::Invalid(_)) => self.state = ReadState::Invalid,
            Err(IncompleteBody::Disconnected) => self.state = ReadState::Closed,
        }
        self.waiting_since = None;
        if let Some(pending) = self.pending.take() {
            pending.sender.end(end);
        }
    }

    /// The first call starts the wait.
    fn poll_client_timeout(&mut self, cx: &mut Context<'_>, limit: Duration) -> Poll<()> {
        let since = *self.waiting_since.get_or_insert_with(Instant::now);
        self.timer.poll(cx, since + limit)
    }
}
