//! Detects whether a client uses HTTP/1 or HTTP/2. `Rewind` makes the bytes that detection has read readable again.
//!
//! No valid HTTP/1 request starts with the bytes of the HTTP/2 preface. Detection ends at the first byte that differs
//! from the preface, so it never delays an HTTP/1 request.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::time::timeout;

use super::linger::Linger;
use super::timers::{Timer, WriteTimeout};

/// Connection preface of HTTP/2 (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Enough to read an ordinary request in one system call.
const CAPACITY: usize = 1_024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Also an unknown protocol, which the HTTP/1 parser rejects.
    Http1,
    Http2,
}

/// The bytes read belong to the first request.
pub(crate) async fn detect<IO>(io: &mut IO, within: Duration) -> io::Result<(Protocol, BytesMut)>
where
    IO: AsyncRead + Unpin,
{
    let mut early = BytesMut::with_capacity(CAPACITY);
    let detected = async {
        loop {
            if io.read_buf(&mut early).await? == 0 {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            if early.starts_with(PREFACE) {
                return Ok(Protocol::Http2);
            }
            if !PREFACE.starts_with(&early) {
                return Ok(Protocol::Http1);
            }
        }
    };
    let protocol = timeout(within, detected).await??;
    Ok((protocol, early))
}

/// The connection of HTTP/2 or of a tunnel. Writes fail if the write timeout expires, as on HTTP/1.
#[derive(Debug)]
pub(crate) struct Rewind<IO> {
    io: IO,
    early: BytesMut,
    timer: Timer,
    write_timeout: WriteTimeout,
    /// `None` for a tunnel, which can still be read after its write side is closed.
    linger: Option<Linger>,
    state: Arc<SocketState>,
}

/// Readable while `h2` owns the socket.
#[derive(Debug, Default)]
pub(crate) struct SocketState {
    blocked: AtomicBool,
    ended: AtomicBool,
    closing: AtomicBool,
}

impl SocketState {
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed)
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }
}

impl<IO> Rewind<IO> {
    /// Reads return the bytes of `early` first.
    pub(crate) fn new(io: IO, early: BytesMut, write_timeout: Duration) -> Self {
        Self {
            io,
            early,
            timer: Timer::default(),
            write_timeout: WriteTimeout::new(write_timeout),
            linger: None,
            state: Arc::default(),
        }
    }

    /// Makes `poll_shutdown` a lingering close (see [`Linger`]).
    pub(crate) fn with_lingering_close(mut self) -> Self {
        self.linger = Some(Linger::default());
        self
    }

    pub(crate) fn state(&self) -> Arc<SocketState> {
        Arc::clone(&self.state)
    }

    /// Passes on the result of a write, or fails if the write timeout has expired while the socket is blocked.
    fn check<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let written = self.write_timeout.check(&mut self.timer, cx, written);
        let is_blocked = self.write_timeout.is_blocked();
        self.state.blocked.store(is_blocked, Ordering::Relaxed);
        written
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Rewind<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.early.is_empty() {
            let (before, capacity) = (buf.filled().len(), buf.remaining());
            let read = Pin::new(&mut self.io).poll_read(cx, buf);
            if let Poll::Ready(Ok(())) = read
                && capacity > 0
                && buf.filled().len() == before
            {
                self.state.ended.store(true, Ordering::Relaxed);
            }
            return read;
        }
        let count = self.early.len().min(buf.remaining());
        buf.put_slice(&self.early[..count]);
        self.early.advance(count);
        if self.early.is_empty() {
            self.early = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Rewind<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write(cx, buf);
        this.check(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write_vectored(cx, bufs);
        this.check(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.io).poll_flush(cx);
        this.check(cx, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.state.closing.store(true, Ordering::Relaxed);
        if let Some(linger) = &mut this.linger {
            return linger.poll(&mut this.io, &mut this.timer, cx, true);
        }
        let shut = Pin::new(&mut this.io).poll_shutdown(cx);
        this.check(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt as _, duplex};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    async fn detected(sent: &[u8]) -> io::Result<(Protocol, BytesMut)> {
        let (mut gateway, mut client) = duplex(64);
        client.write_all(sent).await.unwrap();
        detect(&mut gateway, SECOND).await
    }

    #[tokio::test(start_paused = true)]
    async fn the_http_2_preface_is_detected() {
        let sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0";
        let (protocol, early) = detected(sent).await.unwrap();
        assert_eq!(protocol, Protocol::Http2);
        assert_eq!(&early[..], sent);
    }

    #[tokio::test(start_paused = true)]
    async fn a_byte_that_differs_from_the_preface_is_detected_as_http_1() {
        for sent in ["G", "PU", "PRI * HTTP/1.1\r\n", "PRI * HTTP/2.0\r\n\r\nSX"] {
            let (protocol, early) = detected(sent.as_bytes()).await.unwrap();
            assert_eq!(protocol, Protocol::Http1);
            assert_eq!(&early[..], sent.as_bytes());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stops_within_the_preface_times_out() {
        for sent in [&b"PRI *"[..], b""] {
            let error = detected(sent).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
    }

    #[tokio::test]
    async fn a_client_that_closes_is_reported_as_closed() {
        let (mut gateway, client) = duplex(64);
        drop(client);
        let error = detect(&mut gateway, SECOND).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn early_bytes_are_read_again_before_the_rest() {
        let (gateway, mut client) = duplex(64);
        client.write_all(b" world").await.unwrap();
        drop(client);
        let mut rewind = Rewind::new(gateway, b"hello"[..].into(), Duration::from_secs(1));
        let mut all = Vec::new();
        rewind.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"hello world");
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_to_a_client_that_reads_nothing_times_out() {
        let (gateway, _client) = duplex(4);
        let mut rewind = Rewind::new(gateway, BytesMut::new(), Duration::from_secs(1));
        let outcome = rewind.write_all(b"more than fits").await;
        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
