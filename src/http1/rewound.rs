//! A connection of which the first bytes are read again, for HTTP/2 and for upgraded connections.
//!
//! Reads pass unchanged. Writes are subject to the write timeout, as on HTTP/1.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::alarm::{Alarm, Stall};
use super::socket::ClientSocket;

/// A connection of which the first bytes were read and are read again.
#[derive(Debug)]
pub struct Rewound<IO> {
    io: IO,
    early: BytesMut,
    alarm: Alarm,
    stall: Stall,
    state: Arc<SocketState>,
}

/// State of a socket that another type owns.
#[derive(Debug, Default)]
pub struct SocketState {
    is_blocked: AtomicBool,
    is_ended: AtomicBool,
}

impl SocketState {
    /// Whether the socket accepts no bytes.
    pub fn is_blocked(&self) -> bool {
        self.is_blocked.load(Ordering::Relaxed)
    }

    /// Whether the client has closed its side.
    pub fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Relaxed)
    }
}

impl<IO> Rewound<IO> {
    /// A connection of which `early` was already read, with this write timeout.
    pub fn new(io: IO, early: BytesMut, write: Duration) -> Self {
        Self {
            io,
            early,
            alarm: Alarm::default(),
            stall: Stall::new(write),
            state: Arc::default(),
        }
    }

    /// Returns the state of the socket, to be read while another type owns the connection.
    pub fn state(&self) -> Arc<SocketState> {
        Arc::clone(&self.state)
    }
}

impl<IO: ClientSocket> Rewound<IO> {
    fn watch<T>(&mut self, cx: &mut Context<'_>, sent: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let sent = self.stall.watch(&mut self.alarm, cx, &self.io, sent);
        let is_blocked = self.stall.is_blocked();
        self.state.is_blocked.store(is_blocked, Ordering::Relaxed);
        sent
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Rewound<IO> {
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
                self.state.is_ended.store(true, Ordering::Relaxed);
            }
            return read;
        }
        let now = self.early.len().min(buf.remaining());
        buf.put_slice(&self.early[..now]);
        self.early.advance(now);
        if self.early.is_empty() {
            self.early = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + ClientSocket + Unpin> AsyncWrite for Rewound<IO> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let sent = Pin::new(&mut this.io).poll_write(cx, buf);
        this.watch(cx, sent)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let sent = Pin::new(&mut this.io).poll_write_vectored(cx, bufs);
        this.watch(cx, sent)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.io).poll_flush(cx);
        this.watch(cx, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let shut = Pin::new(&mut this.io).poll_shutdown(cx);
        this.watch(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn what_was_read_early_is_read_again_before_the_rest() {
        let (gateway, mut client) = duplex(64);
        client.write_all(b" world").await.unwrap();
        drop(client);
        let mut rewound = Rewound::new(gateway, b"hello"[..].into(), Duration::from_secs(1));
        let mut all = Vec::new();
        rewound.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"hello world");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_given_up() {
        let (gateway, _client) = duplex(4);
        let mut rewound = Rewound::new(gateway, BytesMut::new(), Duration::from_secs(1));
        let outcome = rewound.write_all(b"more than fits").await;
        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
