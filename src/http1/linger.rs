//! The close that lets the client read the answer first.
//!
//! A socket that is closed with unread bytes in it sends a reset, and the reset may overtake the answer
//! in the client's kernel and destroy it there: a client that was refused while still sending its body
//! would see a broken connection and not the refusal (RFC 9112, section 9.6). So the sending side is
//! closed first, and what the client still sends is read and thrown away, for a bounded time and up to
//! a bounded amount: past those, the client is not listening anyway. A client that listens stops when it
//! sees the answer, with as much on the way as the buffers of two kernels hold, so the amount is more
//! than that.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::alarm::Alarm;

const TIME: Duration = Duration::from_secs(2);

/// Linux lets the buffers of a connection grow to 4 MiB on one side and 6 MiB on the other.
const BYTES: usize = 16 << 20;

/// Bytes thrown away at a time.
const SCRATCH: usize = 16 * 1024;

/// A close under way.
#[derive(Debug)]
pub(super) struct Linger {
    due: Option<Instant>,
    shut: bool,
    left: usize,
}

impl Default for Linger {
    fn default() -> Self {
        Self {
            due: None,
            shut: false,
            left: BYTES,
        }
    }
}

impl Linger {
    /// Closes the sending side, then reads until the client closes too. Where nothing more is
    /// `expected`, only what is there already is read: a close that owes nothing is immediate.
    pub(super) fn poll<IO: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        io: &mut IO,
        alarm: &mut Alarm,
        cx: &mut Context<'_>,
        expected: bool,
    ) -> Poll<io::Result<()>> {
        let due = *self.due.get_or_insert_with(|| Instant::now() + TIME);
        if !self.shut {
            match Pin::new(&mut *io).poll_shutdown(cx) {
                Poll::Ready(outcome) => outcome?,
                Poll::Pending => {
                    ready!(alarm.poll(cx, due));
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
            self.shut = true;
        }
        let mut scratch = [MaybeUninit::uninit(); SCRATCH];
        while self.left > 0 {
            let mut buf = ReadBuf::uninit(&mut scratch);
            match Pin::new(&mut *io).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                    self.left = self.left.saturating_sub(buf.filled().len());
                }
                Poll::Pending if expected => {
                    ready!(alarm.poll(cx, due));
                    break;
                }
                Poll::Ready(_) | Poll::Pending => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncWriteExt as _, duplex};

    use super::*;

    async fn close(io: &mut (impl AsyncRead + AsyncWrite + Unpin), expected: bool) {
        let (mut linger, mut alarm) = (Linger::default(), Alarm::default());
        poll_fn(|cx| linger.poll(io, &mut alarm, cx, expected))
            .await
            .unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_close_that_owes_nothing_is_immediate() {
        let (mut gateway, _client) = duplex(64);
        let start = Instant::now();
        close(&mut gateway, false).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_neither_sends_nor_closes_is_waited_for_so_long_and_no_longer() {
        let (mut gateway, _client) = duplex(64);
        let start = Instant::now();
        close(&mut gateway, true).await;
        assert_eq!(start.elapsed(), TIME);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_client_still_sends_is_read_up_to_a_bound() {
        let (mut gateway, mut client) = duplex(4096);
        let sending = tokio::spawn(async move {
            let mut sent = 0;
            while client.write_all(&[0; 4096]).await.is_ok() {
                sent += 4096;
            }
            sent
        });
        close(&mut gateway, true).await;
        drop(gateway);
        let sent = sending.await.unwrap();
        assert!((BYTES..=BYTES + SCRATCH + 8192).contains(&sent), "{sent}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_the_client_ends_the_close() {
        let (mut gateway, mut client) = duplex(64);
        let start = Instant::now();
        client.write_all(b"the rest of a body").await.unwrap();
        drop(client);
        close(&mut gateway, true).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
