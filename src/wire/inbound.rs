//! What hyper is given to read.
//!
//! Bytes are read straight into hyper's buffer and checked there: in the ordinary case, whole heads and
//! parts of bodies, they are already where they belong. What may not be passed on yet, the beginning
//! of a head or whatever follows a request for an upgrade, is moved aside until it is decided; a
//! connection at rest keeps nothing.
//!
//! hyper cannot be told that a head is bad, but it can be given a good one: in place of a refused head
//! it reads [`STAND_IN`], an ordinary request whose number [`Shared`] has as refused, and after it
//! nothing. A broken body ends in an error of the stream, which every state of hyper's body decoder
//! hands on, so the body fails exactly where it broke.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::ReadBuf;
use tokio::time::Instant;

use super::exchange::Shared;
use super::follow::{End, Follower};
use super::head::Limits;
use super::violation::Violation;
use crate::gateway::Deadlines;

/// The request that hyper reads in place of a refused head.
const STAND_IN: &[u8] = b"GET / HTTP/1.1\r\nhost: invalid\r\nconnection: close\r\n\r\n";

/// The reading side of a connection, without the connection.
#[derive(Debug)]
pub(super) struct Inbound {
    follower: Follower,
    shared: Arc<Shared>,
    limits: Limits,
    mode: Mode,
    /// Received and not yet passed on.
    aside: BytesMut,
    /// How many bytes at the start of `aside` may be passed on.
    cleared: usize,
    /// Whether the rest of `aside` was not followed yet.
    unfollowed: bool,
    /// How many heads were passed on.
    passed: u32,
    /// Since when the next bytes are waited for.
    since: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    /// Requests are read.
    Requests,
    /// It is not known yet whether requests or a tunnel's bytes follow.
    Undecided,
    /// Everything is passed on.
    Tunnel,
    /// A head was refused; nothing more is passed on.
    Refused,
    /// A body broke; every read is this error.
    Broken(Violation),
}

/// What to do to get bytes for hyper.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// Read from the client.
    Read,
    /// Wait for the decision on an upgrade. While there is `room`, read, to notice the client's end.
    Decision { room: bool },
    /// Nothing will be passed on.
    Nothing,
    /// Report this.
    Error(Violation),
}

/// What follows from a deadline that has passed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Expired {
    /// The connection is at rest: it can be closed.
    AtRest,
    /// There is an answer, or an error, to be passed on.
    Answer,
}

impl Inbound {
    /// A connection that begins now, of which `early` was already read.
    pub(super) fn new(early: BytesMut, limits: Limits, shared: Arc<Shared>) -> Self {
        Self {
            follower: Follower::new(limits),
            shared,
            limits,
            mode: Mode::Requests,
            unfollowed: !early.is_empty(),
            aside: early,
            cleared: 0,
            passed: 0,
            since: Some(Instant::now()),
        }
    }

    /// Passes on what was set aside and may be passed on; whether there was any.
    pub(super) fn deliver(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        self.decide();
        if self.unfollowed {
            self.follow_aside();
        }
        let now = self.cleared.min(buf.remaining());
        if now == 0 {
            return false;
        }
        buf.put_slice(&self.aside[..now]);
        self.aside.advance(now);
        self.cleared -= now;
        if self.aside.is_empty() {
            self.aside = BytesMut::new();
        }
        true
    }

    /// What there is to do when nothing is left to deliver.
    pub(super) fn want(&self) -> Want {
        match self.mode {
            Mode::Requests | Mode::Tunnel => Want::Read,
            Mode::Undecided => Want::Decision {
                room: self.aside.len() < self.limits.bytes,
            },
            Mode::Refused => Want::Nothing,
            Mode::Broken(violation) => Want::Error(violation),
        }
    }

    /// Takes up the bytes just read, `buf` from `start` on, and leaves there what may be passed on.
    pub(super) fn take_up(&mut self, buf: &mut ReadBuf<'_>, start: usize) {
        match self.mode {
            Mode::Tunnel => {}
            Mode::Requests if self.aside.is_empty() => {
                let stretch = self.follower.follow(&buf.filled()[start..]);
                let good = start + stretch.cleared;
                if let End::Partial | End::Upgrade = stretch.end {
                    self.aside.extend_from_slice(&buf.filled()[good..]);
                }
                buf.set_filled(good);
                if stretch.cleared > 0 {
                    self.since = None;
                } else {
                    self.restart();
                }
                self.conclude(stretch.heads, stretch.end);
            }
            Mode::Requests | Mode::Undecided => {
                let known = self.aside.len();
                if !self.head_begun() {
                    self.restart();
                }
                self.aside.extend_from_slice(&buf.filled()[start..]);
                buf.set_filled(start);
                self.unfollowed = matches!(self.mode, Mode::Requests) && self.may_decide(known);
            }
            Mode::Refused | Mode::Broken(_) => buf.set_filled(start),
        }
    }

    /// Whether hyper would be mistaken to take the end of the client's bytes for an end: there are
    /// bytes set aside that it will be given once an upgrade is decided.
    pub(super) fn outlives_eof(&self) -> bool {
        matches!(self.mode, Mode::Undecided) && !self.aside.is_empty()
    }

    /// Registers for the decision on an upgrade; whether it fell meanwhile.
    pub(super) fn decided(&mut self, waker: &Waker) -> bool {
        self.shared.wait(waker);
        self.decide();
        !matches!(self.mode, Mode::Undecided)
    }

    /// When the client must have sent something, if it must. A connection that still has something
    /// to send is not at rest, whether or not its requests are finished.
    pub(super) fn due(&mut self, deadlines: &Deadlines, sending: bool) -> Option<Instant> {
        let limit = self.limit(deadlines, sending)?;
        let since = *self.since.get_or_insert_with(Instant::now);
        Some(since + limit)
    }

    /// When the connection must be put to use again, if it just came to rest.
    pub(super) fn newly_at_rest(&mut self, deadlines: &Deadlines) -> Option<Instant> {
        let rests = self.since.is_none() && matches!(self.mode, Mode::Requests);
        (rests && self.follower.at_head()).then(|| self.due(deadlines, false))?
    }

    /// What was due did not come.
    pub(super) fn expire(&mut self) -> Expired {
        if !self.follower.at_head() {
            self.mode = Mode::Broken(Violation::BodyTimeout);
            Expired::Answer
        } else if self.head_begun() {
            self.aside.clear();
            self.refuse(Violation::HeadTimeout);
            Expired::Answer
        } else {
            Expired::AtRest
        }
    }

    /// Whether the client may have sent more than was read.
    pub(super) fn is_amid_message(&self) -> bool {
        !matches!(self.mode, Mode::Requests) || !self.follower.at_head() || !self.aside.is_empty()
    }

    /// Whether the connection must not end as if its last response were complete.
    pub(super) fn is_cut(&self) -> bool {
        self.shared.is_cut()
    }

    /// Whether the connection has become a tunnel.
    pub(super) fn is_tunnel(&self) -> bool {
        matches!(self.mode, Mode::Tunnel)
    }

    fn limit(&self, deadlines: &Deadlines, sending: bool) -> Option<Duration> {
        match self.mode {
            Mode::Requests if !self.follower.at_head() => Some(deadlines.body),
            Mode::Requests if self.head_begun() || self.passed == 0 => Some(deadlines.head),
            Mode::Requests => {
                let rests = !sending && self.shared.all_finished(self.passed);
                rests.then_some(deadlines.idle)
            }
            Mode::Undecided | Mode::Tunnel | Mode::Refused | Mode::Broken(_) => None,
        }
    }

    /// Whether there is more of the next head than an empty line before it, which some clients send
    /// after a body and nothing else.
    fn head_begun(&self) -> bool {
        !b"\r\n".starts_with(&self.aside[..])
    }

    /// A head begins: its time counts from here, except that the first head's counts from the
    /// connection's start.
    fn restart(&mut self) {
        if self.passed > 0 {
            self.since = None;
        }
    }

    fn decide(&mut self) {
        if let Mode::Undecided = self.mode {
            if self.shared.is_tunnel() {
                self.mode = Mode::Tunnel;
                self.cleared = self.aside.len();
            } else if self.shared.all_finished(self.passed) {
                self.mode = Mode::Requests;
                self.unfollowed = !self.aside.is_empty();
            }
        }
    }

    fn follow_aside(&mut self) {
        self.unfollowed = false;
        let stretch = self.follower.follow(&self.aside);
        self.cleared = stretch.cleared;
        if stretch.cleared > 0 {
            self.since = None;
        }
        self.conclude(stretch.heads, stretch.end);
    }

    fn conclude(&mut self, heads: u32, end: End) {
        self.passed = self.passed.wrapping_add(heads);
        match end {
            End::Exhausted | End::Partial => {}
            End::Upgrade => self.mode = Mode::Undecided,
            End::BadHead(violation) => self.refuse(violation),
            End::BadBody(violation) => {
                self.aside.truncate(self.cleared);
                self.mode = Mode::Broken(violation);
            }
        }
    }

    fn refuse(&mut self, violation: Violation) {
        self.aside.truncate(self.cleared);
        self.aside.extend_from_slice(STAND_IN);
        self.cleared = self.aside.len();
        self.passed = self.passed.wrapping_add(1);
        self.shared.refuse(self.passed, violation);
        self.mode = Mode::Refused;
    }

    /// Whether the bytes from `known` on may complete or break the head set aside. Reading it again at
    /// every byte of a client that sends it byte by byte would cost the square of its length.
    fn may_decide(&self, known: usize) -> bool {
        let ends_a_line_badly_or_the_head = |lf: usize| {
            let line = &self.aside[..lf];
            !line.ends_with(b"\r") || line.ends_with(b"\r\n\r")
        };
        let mut new = self.aside.iter().enumerate().skip(known);
        self.aside.len() >= self.limits.bytes
            || known <= 2
            || new.any(|(at, &octet)| octet == b'\n' && ends_a_line_badly_or_the_head(at))
    }
}

#[cfg(test)]
mod tests;
