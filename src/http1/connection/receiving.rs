//! The body of the request at hand: received for whoever wants it, or out of the way of the next request.

use std::io;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::coop::poll_proceed;

use super::super::body::{BodyError, Demand, Sender};
use super::super::coming::{Coming, Part};
use super::super::socket::ClientSocket;
use super::super::violation::Violation;
use super::{Connection, State};

/// What is read of a body that nobody wants, to save the connection it comes by.
const WORTH_READING: u64 = 64 * 1024;

/// A body that is being received.
#[derive(Debug)]
pub(super) struct Receiving {
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

impl<IO: AsyncRead + AsyncWrite + ClientSocket + Unpin> Connection<IO> {
    /// Receives the body of the request that has arrived, for whoever has the other end of `sender`.
    pub(in crate::http1) fn receive(&mut self, coming: Coming, sender: Sender, expects: bool) {
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

    /// Receives the rest of the request's body, as long as somebody wants it.
    pub(in crate::http1) fn poll_received(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(receiving) = &self.receiving {
            if receiving.sender.is_let_go() {
                self.since = None;
                break;
            }
            if !self.feed(cx)? {
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Receives the rest of the request's body, wanted or not.
    pub(in crate::http1) fn poll_past_request(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_received(cx))?;
        self.poll_out_of_the_way(cx)
    }

    /// Whether another request can follow the one at hand: not if the client was told otherwise, if nobody
    /// knows where it would begin, or if too much would have to be read to get there.
    pub(in crate::http1) fn can_go_on(&self) -> bool {
        if self.is_last || self.state != State::Open {
            return false;
        }
        let Some(receiving) = &self.receiving else {
            return true;
        };
        let is_near = |left| left <= WORTH_READING;
        let is_wanted = !receiving.sender.is_let_go();
        receiving.asking == Asking::Needless
            && (is_wanted || receiving.coming.left().is_none_or(is_near))
    }

    /// The answer begins: a client that was not asked for its body by now is not asked any more.
    pub(super) fn ask_no_more(&mut self) {
        if let Some(receiving) = &mut self.receiving
            && receiving.asking == Asking::WhenWanted
        {
            receiving.asking = Asking::TooLate;
        }
    }

    /// Gives the service what it waits for of the request's body; whether it was given anything.
    pub(super) fn feed(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
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
            }
        }
        // A body in tiny parts is not to keep everybody else waiting.
        let Poll::Ready(turn) = poll_proceed(cx) else {
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
    pub(super) fn poll_out_of_the_way(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
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
}
