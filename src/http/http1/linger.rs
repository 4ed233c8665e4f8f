//! Lingering close: the gateway keeps a connection open after the last response, so that the client can read the
//! response.
//!
//! Closing a socket with unread bytes sends a TCP reset, and the client's kernel then discards a response that the
//! client has not read yet. A client that is rejected while it sends its body would see a connection error (RFC 9112,
//! section 9.6). So the gateway closes the write side first, and then discards what the client still sends, up to a
//! maximum time and number of bytes.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::timers::Timer;

const TIME: Duration = Duration::from_secs(2);

/// More than the send buffer (4 MiB) and the receive buffer (6 MiB) of a connection on Linux, which can both be full
/// when the client reads the response.
const BYTES: usize = 16 << 20;

const SCRATCH: usize = 16 * 1024;

#[derive(Debug)]
pub(super) struct Linger {
    /// `None` before the first poll.
    due: Option<Instant>,
    shut: bool,
    remaining: usize,
}

impl Default for Linger {
    fn default() -> Self {
        Self {
            due: None,
            shut: false,
            remaining: BYTES,
        }
    }
}

impl Linger {
    /// `expected` tells whether the client can still be sending. If not, only bytes that have already arrived are read,
    /// and the close is immediate.
    pub(super) fn poll<IO: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        io: &mut IO,
        timer: &mut Timer,
        cx: &mut Context<'_>,
        expected: bool,
    ) -> Poll<io::Result<()>> {
        let due = *self.due.get_or_insert_with(|| Instant::now() + TIME);
        if !self.shut {
            match Pin::new(&mut *io).poll_shutdown(cx) {
                Poll::Ready(outcome) => outcome?,
                Poll::Pending => {
                    ready!(timer.poll(cx, due));
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
            self.shut = true;
        }
        let mut scratch = [MaybeUninit::uninit(); SCRATCH];
        while self.remaining > 0 {
            let mut buf = ReadBuf::uninit(&mut scratch);
            match Pin::new(&mut *io).poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                    self.remaining = self.remaining.saturating_sub(buf.filled().len());
                }
                Poll::Pending if expected => {
                    ready!(timer.poll(cx, due));
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
        let (mut linger, mut timer) = (Linger::default(), Timer::default());
        poll_fn(|cx| linger.poll(io, &mut timer, cx, expected))
            .await
            .unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_close_without_expected_bytes_is_immediate() {
        let (mut gateway, _client) = duplex(64);
        let start = Instant::now();
        close(&mut gateway, false).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_neither_sends_nor_closes_is_closed_at_the_time_limit() {
        let (mut gateway, _client) = duplex(64);
        let start = Instant::now();
        close(&mut gateway, true).await;
        assert_eq!(start.elapsed(), TIME);
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_are_discarded_up_to_the_limit() {
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
    async fn the_close_ends_when_the_client_closes() {
        let (mut gateway, mut client) = duplex(64);
        let start = Instant::now();
        client.write_all(b"the rest of a body").await.unwrap();
        drop(client);
        close(&mut gateway, true).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
