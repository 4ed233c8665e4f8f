//! Small vectored writes as plain ones.
//!
//! hyper hands a head and its body over as separate pieces. For the few hundred bytes of an ordinary
//! answer, putting them side by side and sending once is cheaper than a `writev`; larger ones are left in
//! their pieces.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What is copied together at most; it has to fit on the stack.
const SMALL: usize = 2_048;

/// Writes `pieces` to `io`, as one if they are small.
pub(super) fn poll_write_gathered<IO: AsyncWrite>(
    io: Pin<&mut IO>,
    cx: &mut Context<'_>,
    pieces: &[IoSlice<'_>],
) -> Poll<io::Result<usize>> {
    if let [piece] = pieces {
        return io.poll_write(cx, piece);
    }
    if pieces.iter().map(|piece| piece.len()).sum::<usize>() > SMALL {
        return io.poll_write_vectored(cx, pieces);
    }
    // Uninitialised, as to clear it would cost more than to fill it.
    let mut room = [MaybeUninit::uninit(); SMALL];
    let mut whole = ReadBuf::uninit(&mut room);
    for piece in pieces {
        whole.put_slice(piece);
    }
    io.poll_write(cx, whole.filled())
}

/// A connection whose small vectored writes are gathered.
#[derive(Debug)]
pub struct Gathered<IO>(pub IO);

impl<IO: AsyncRead + Unpin> AsyncRead for Gathered<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Gathered<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        poll_write_gathered(Pin::new(&mut self.0), cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn pieces_arrive_whole_and_in_order_whatever_their_size() {
        for size in [1, SMALL / 2, SMALL, 3 * SMALL] {
            let (near, mut far) = tokio::io::duplex(64 * 1024);
            let mut near = Gathered(near);
            let (head, body) = (vec![b'h'; size], vec![b'b'; size]);
            let pieces = [IoSlice::new(&head), IoSlice::new(&body)];
            let mut sent = near.write_vectored(&pieces).await.unwrap();
            while sent < 2 * size {
                sent += near.write(&body[sent - size..]).await.unwrap();
            }
            let mut received = vec![0; 2 * size];
            far.read_exact(&mut received).await.unwrap();
            assert_eq!(received, [head, body].concat(), "{size}");
        }
    }
}
