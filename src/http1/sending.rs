//! An answer's body on its way out, in the form that its head announced.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};

use super::encode::{self, Framing};
use super::outbound::Outbound;

/// How far an answer's body is.
#[derive(Debug)]
pub(super) struct Sending {
    framing: Framing,
    over: Option<Sent>,
}

/// How much of an answer's body was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// All of it.
    Whole,
    /// Less, or more than was announced.
    CutShort,
}

impl Sending {
    /// A body whose head is out.
    pub(super) fn new(framing: Framing) -> Self {
        let over = matches!(framing, Framing::None | Framing::Length(0)).then_some(Sent::Whole);
        Self { framing, over }
    }

    /// Whether only the connection's end tells its own.
    pub(super) fn is_to_close(&self) -> bool {
        self.framing == Framing::Close
    }

    /// How it came out, once nothing is to be added.
    pub(super) fn over(&self) -> Option<Sent> {
        self.over
    }

    /// Adds the next part of `body` to what is to be sent, where there must be room for it.
    pub(super) fn poll_add<B: Body<Data = Bytes>>(
        &mut self,
        cx: &mut Context<'_>,
        mut body: Pin<&mut B>,
        outbound: &mut Outbound,
    ) -> Poll<()> {
        match ready!(body.as_mut().poll_frame(cx)) {
            Some(Ok(frame)) => {
                self.add(frame, outbound);
                if self.over.is_none() && body.is_end_stream() {
                    self.end(outbound);
                }
            }
            Some(Err(_told_already)) => self.over = Some(Sent::CutShort),
            None => self.end(outbound),
        }
        Poll::Ready(())
    }

    fn add(&mut self, frame: Frame<Bytes>, outbound: &mut Outbound) {
        let frame = match frame.into_data() {
            Ok(data) if data.is_empty() => return,
            Ok(data) => return self.add_data(data, outbound),
            Err(frame) => frame,
        };
        if let (
            Ok(trailers),
            Framing::Chunked {
                trailers: announced,
            },
        ) = (frame.into_trailers(), &self.framing)
        {
            encode::last_chunk(outbound.end(), announced, Some(&trailers));
            self.over = Some(Sent::Whole);
        }
    }

    fn add_data(&mut self, mut data: Bytes, outbound: &mut Outbound) {
        match &mut self.framing {
            Framing::None => {}
            Framing::Close => outbound.part(data),
            Framing::Chunked { .. } => outbound.chunk(data),
            Framing::Length(left) => {
                let announced = usize::try_from(*left).unwrap_or(usize::MAX);
                if data.len() > announced {
                    data.truncate(announced);
                    self.over = Some(Sent::CutShort);
                } else if data.len() == announced {
                    self.over = Some(Sent::Whole);
                }
                *left -= data.len() as u64;
                outbound.part(data);
            }
        }
    }

    fn end(&mut self, outbound: &mut Outbound) {
        self.over = Some(match &self.framing {
            Framing::Length(1..) => Sent::CutShort,
            Framing::None | Framing::Length(0) | Framing::Close => Sent::Whole,
            Framing::Chunked { trailers } => {
                encode::last_chunk(outbound.end(), trailers, None);
                Sent::Whole
            }
        });
    }
}
