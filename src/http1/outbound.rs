//! What is to be sent, and sending it.
//!
//! A head and the few hundred bytes of an ordinary answer are put side by side and sent as one: that is
//! cheaper than a `writev`. A large part of a body stays where it is, behind what was gathered before it,
//! and nothing more is taken until both are out.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use tokio::io::AsyncWrite;

use super::encode;
use crate::failpoint::failpoint;

/// The largest part of a body that is copied.
const SMALL: usize = 2_048;

/// What is gathered before it is sent.
const ENOUGH: usize = 16 * 1024;

/// What is kept of the room for the next answer: enough for an ordinary one, little for a connection at
/// rest.
const KEPT: usize = 4_096;

/// What is to be sent.
#[derive(Debug, Default)]
pub(super) struct Outbound {
    gathered: Vec<u8>,
    /// How many of the gathered bytes are out.
    sent: usize,
    /// A large part that follows them.
    large: Bytes,
    /// What follows that.
    after: Vec<u8>,
}

impl Outbound {
    /// Where what comes next is put.
    pub(super) fn end(&mut self) -> &mut Vec<u8> {
        if self.large.is_empty() {
            &mut self.gathered
        } else {
            &mut self.after
        }
    }

    /// Adds a part of a body. There must be [room](Self::is_full) for it.
    pub(super) fn part(&mut self, part: Bytes) {
        debug_assert!(self.large.is_empty(), "a part would be lost");
        if part.len() <= SMALL {
            self.gathered.extend_from_slice(&part);
        } else {
            self.large = part;
        }
    }

    /// Adds a part of a body as a chunk. There must be [room](Self::is_full) for it.
    pub(super) fn chunk(&mut self, part: Bytes) {
        encode::chunk_size(&mut self.gathered, part.len());
        self.part(part);
        self.end().extend_from_slice(b"\r\n");
    }

    /// Whether some of this has to be out before more of a body is added.
    pub(super) fn is_full(&self) -> bool {
        !self.large.is_empty() || self.gathered.len() >= ENOUGH
    }

    /// Whether everything is out.
    pub(super) fn is_empty(&self) -> bool {
        self.gathered.is_empty() && self.large.is_empty()
    }

    /// Sends some of it, unless there is nothing.
    pub(super) fn poll_send<IO: AsyncWrite + Unpin>(
        &mut self,
        io: &mut IO,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let gathered = &self.gathered[self.sent..];
        failpoint!("mid-reply", {
            Pin::new(&mut *io).poll_write(cx, &gathered[..gathered.len() / 2])
        });
        let io = Pin::new(io);
        let sent = if self.large.is_empty() {
            ready!(io.poll_write(cx, gathered))?
        } else {
            let pieces = [gathered, &self.large, &self.after].map(IoSlice::new);
            ready!(io.poll_write_vectored(cx, &pieces))?
        };
        if sent == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.advance(sent);
        Poll::Ready(Ok(()))
    }

    /// Lets go of the first so many bytes.
    fn advance(&mut self, count: usize) {
        let gathered = count.min(self.gathered.len() - self.sent);
        self.sent += gathered;
        if self.sent < self.gathered.len() {
            return;
        }
        self.sent = 0;
        self.gathered.clear();
        self.gathered.shrink_to(KEPT);
        if self.large.is_empty() {
            return;
        }
        let large = (count - gathered).min(self.large.len());
        self.large.advance(large);
        if self.large.is_empty() {
            self.large = Bytes::new();
            self.gathered = std::mem::take(&mut self.after);
            self.advance(count - gathered - large);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt as _, duplex};

    use super::*;

    /// What arrives of what `fill` puts in, over a connection that holds so many bytes at a time.
    fn arrives(narrow: usize, fill: impl FnOnce(&mut Outbound)) -> Vec<u8> {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            let (mut near, mut far) = duplex(narrow);
            let mut outbound = Outbound::default();
            fill(&mut outbound);
            let receiving = tokio::spawn(async move {
                let mut all = Vec::new();
                far.read_to_end(&mut all).await.unwrap();
                all
            });
            while !outbound.is_empty() {
                poll_fn(|cx| outbound.poll_send(&mut near, cx))
                    .await
                    .unwrap();
            }
            drop(near);
            receiving.await.unwrap()
        })
    }

    proptest! {
        #[test]
        fn everything_arrives_once_and_in_order(
            narrow in 1usize..3 * SMALL,
            head in prop::collection::vec(any::<u8>(), 0..2 * SMALL),
            part in prop::collection::vec(any::<u8>(), 0..3 * SMALL),
            end in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let arrived = arrives(narrow, |outbound| {
                outbound.end().extend_from_slice(&head);
                outbound.part(part.clone().into());
                outbound.end().extend_from_slice(&end);
            });
            prop_assert_eq!(arrived, [head, part, end].concat());
        }
    }

    #[test]
    fn a_chunk_is_framed_whatever_its_size() {
        for size in [1, 15, 16, SMALL, SMALL + 1, 70_000] {
            let part = vec![b'x'; size];
            let arrived = arrives(1_000, |outbound| outbound.chunk(part.clone().into()));
            let framed = [format!("{size:x}\r\n").as_bytes(), &part, b"\r\n"].concat();
            assert!(arrived == framed, "{size}");
        }
    }

    #[test]
    fn a_large_part_has_to_be_out_before_the_next() {
        let mut outbound = Outbound::default();
        outbound.part(vec![b'x'; SMALL].into());
        assert!(!outbound.is_full());
        outbound.part(vec![b'x'; SMALL + 1].into());
        assert!(outbound.is_full());
    }
}
