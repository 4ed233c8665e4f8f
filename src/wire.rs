//! HTTP/1, held to the letter of its grammar before hyper reads it.
//!
//! hyper's parser is more generous than a gateway may be (see [`head`]), and once it has parsed, the
//! evidence is gone. So [`Wire`] stands between the socket and hyper and follows the stream of requests
//! itself: it knows where every head begins, passes only heads with a single possible reading, and
//! makes hyper ask for a refusal in place of any other. A parser of our own instead of hyper's was the
//! alternative; following is a tenth of it, and hyper's years of use stay in service.
//!
//! ```text
//! socket → sniff ─ HTTP/1 → Wire ─ good heads, bodies → hyper → service
//!             │               └─── stand-in for a bad head ──────↑ Exchange::violation
//!             └── HTTP/2 → Rewound ───────────────────→ hyper
//! ```
//!
//! The same place keeps the client to its deadlines, since only here is it known what is being waited
//! for: a first head, the rest of a head, a body, the next request, or nothing because the service has
//! yet to answer. And it closes slowly where a hasty close would destroy the answer.
//!
//! The service has two duties: to call [`Exchanges::begin`] for every request, and to let the response's
//! body [`carry`](Exchange::carry) what it got. What follows a request for an upgrade is held back until
//! the service either calls [`Exchange::tunnel`] or has answered otherwise. Up to a head's worth of it is
//! read meanwhile, so a client that hangs up is still noticed; one that has sent something behind its
//! upgrade is noticed when it has been answered, as hyper itself would have it.

mod alarm;
pub mod chunked;
mod cut;
mod exchange;
mod follow;
mod gather;
pub mod head;
mod inbound;
mod linger;
mod octets;
mod rewound;
mod sniff;
mod violation;

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub use self::cut::Cut;
pub use self::exchange::{Carried, Exchange, Exchanges};
pub use self::gather::Gathered;
pub use self::rewound::Rewound;
pub use self::sniff::{Protocol, Unsniffed, sniff};
pub use self::violation::Violation;

use self::alarm::{Alarm, Stall};
use self::exchange::Shared;
use self::gather::poll_write_gathered;
use self::head::Limits;
use self::inbound::{Expired, Inbound, Want};
use self::linger::Linger;
use crate::failpoint::failpoint;
use crate::gateway::{Caps, Deadlines};

/// A client's connection, of which hyper sees only what is HTTP/1.
#[derive(Debug)]
pub struct Wire<IO: Cut> {
    io: IO,
    inbound: Inbound,
    deadlines: Deadlines,
    alarm: Alarm,
    stall: Stall,
    linger: Linger,
    /// Whether the client has closed its side.
    ended: bool,
}

impl<IO: Cut> Wire<IO> {
    /// Takes charge of a connection of which `early` was already read.
    ///
    /// hyper has limits of its own, and its own bare answers when they are passed. For the answer to
    /// be the gateway's they must not be the narrower ones: `max_headers` at least `header_lines`, and
    /// `max_buf_size` more than `head_bytes`.
    pub fn new(io: IO, early: BytesMut, caps: &Caps, deadlines: Deadlines) -> (Self, Exchanges) {
        let limits = Limits {
            bytes: caps.head_bytes,
            lines: caps.header_lines,
        };
        let shared = Arc::new(Shared::default());
        let wire = Self {
            io,
            inbound: Inbound::new(early, limits, Arc::clone(&shared)),
            deadlines,
            alarm: Alarm::default(),
            stall: Stall::new(deadlines.write),
            linger: Linger::default(),
            ended: false,
        };
        (wire, Exchanges::new(shared))
    }

    fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<Expired> {
        let sending = self.stall.is_blocked();
        match self.inbound.due(&self.deadlines, sending) {
            Some(due) => self.alarm.poll(cx, due).map(|()| self.inbound.expire()),
            None => Poll::Pending,
        }
    }
}

impl<IO: AsyncRead + Cut + Unpin> AsyncRead for Wire<IO> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if this.inbound.deliver(buf) || buf.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            let want = this.inbound.want();
            if let Want::Read | Want::Decision { room: true } = want {
                let start = buf.filled().len();
                if Pin::new(&mut this.io).poll_read(cx, buf)?.is_ready() {
                    if buf.filled().len() > start {
                        this.inbound.take_up(buf, start);
                        if buf.filled().len() > start {
                            return Poll::Ready(Ok(()));
                        }
                        continue;
                    }
                    this.ended = true;
                    if !this.inbound.outlives_eof() {
                        return Poll::Ready(Ok(()));
                    }
                }
            }
            match want {
                Want::Read => match ready!(this.poll_expired(cx)) {
                    Expired::AtRest => return Poll::Ready(Ok(())),
                    Expired::Answer => {}
                },
                Want::Decision { .. } if this.inbound.decided(cx.waker()) => {}
                Want::Decision { .. } | Want::Nothing => return Poll::Pending,
                Want::Error(violation) => return Poll::Ready(Err(violation.into())),
            }
        }
    }
}

impl<IO: AsyncRead + AsyncWrite + Cut + Unpin> AsyncWrite for Wire<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let sent = Pin::new(&mut this.io).poll_write(cx, buf);
        this.stall.watch(&mut this.alarm, cx, sent)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        failpoint!("mid-reply", {
            let half = bufs.first().map_or(0, |buf| buf.len() / 2);
            let io = Pin::new(&mut this.io);
            bufs.first().map(|buf| io.poll_write(cx, &buf[..half]))
        });
        let sent = poll_write_gathered(Pin::new(&mut this.io), cx, bufs);
        this.stall.watch(&mut this.alarm, cx, sent)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.io).poll_flush(cx);
        ready!(this.stall.watch(&mut this.alarm, cx, flushed))?;
        // hyper, having tried to read while it waited for the service, does not try again once the
        // response is out. So this is where the wait for the next request begins.
        if let Some(due) = this.inbound.newly_at_rest(&this.deadlines) {
            let _just_begun = this.alarm.poll(cx, due);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // A tunnel's two directions end apart, and after the client's end there is nothing to await.
        if this.ended || this.inbound.is_tunnel() {
            let shut = Pin::new(&mut this.io).poll_shutdown(cx);
            return this.stall.watch(&mut this.alarm, cx, shut);
        }
        let expected = this.inbound.is_amid_message();
        this.linger
            .poll(&mut this.io, &mut this.alarm, cx, expected)
    }
}

impl<IO: Cut> Drop for Wire<IO> {
    fn drop(&mut self) {
        if self.inbound.is_cut() {
            self.io.cut();
        }
    }
}

#[cfg(test)]
mod tests;
