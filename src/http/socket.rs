//! Options of client sockets, and conversion of small vectored writes to plain writes.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_util::io::{InspectReader, InspectWriter};

use crate::metrics::Totals;

/// Number of unsent bytes above which the kernel accepts no more bytes of a response (`TCP_NOTSENT_LOWAT`). Without this
/// bound, it buffers up to 4 MiB for a slow client and takes further bytes only after a third of them is sent, which can
/// take longer than `write_timeout`. With it, a client on loopback that read 20 KB/s got further bytes every 7 s at most.
///
/// `TCP_USER_TIMEOUT` is not used instead: it can expire although the window of a slow client opens again and again. On
/// Linux 6.18, a timeout of 30 s ended connections of clients that steadily read 5 KB/s.
const MAX_UNSENT: u32 = 128 * 1024;

/// Slices of more bytes than this in total are not copied. The buffer is on the stack.
const MAX_FLATTENED: usize = 2_048;

/// Accepted connections inherit the bound from their listener.
pub(crate) fn limit_unsent(listener: &impl AsFd) -> io::Result<()> {
    SockRef::from(listener).set_tcp_notsent_lowat(MAX_UNSENT)
}

/// Keep-alive after one minute without traffic. Without it, a connection on which the gateway only reads, as in a
/// tunnel, would never notice that its peer has vanished.
pub(crate) fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let after = TcpKeepalive::new().with_time(Duration::from_mins(1));
    SockRef::from(stream).set_tcp_keepalive(&after)
}

/// The socket of a client, with or without TLS.
///
/// A response without `Content-Length` or chunks ends when the connection is closed, and only a TCP FIN shows that it
/// is complete. So until then, a close must send a TCP reset.
pub(crate) trait ClientSocket {
    /// `None` for the streams of tests.
    fn tcp(&self) -> Option<&TcpStream>;

    /// An error is logged.
    fn reset_on_close(&self) {
        if let Some(stream) = self.tcp() {
            log_failure(stream.set_zero_linger());
        }
    }

    /// The default. An error is logged.
    fn fin_on_close(&self) {
        if let Some(stream) = self.tcp() {
            log_failure(SockRef::from(stream).set_linger(None));
        }
    }
}

impl ClientSocket for TcpStream {
    fn tcp(&self) -> Option<&TcpStream> {
        Some(self)
    }
}

// If a truncated response ended with a FIN on TLS, only a client that requires `close_notify` would detect the
// truncation.
impl<IO: ClientSocket> ClientSocket for TlsStream<IO> {
    fn tcp(&self) -> Option<&TcpStream> {
        self.get_ref().0.tcp()
    }
}

impl<Sent, Read> ClientSocket for InspectReader<InspectWriter<TcpStream, Sent>, Read> {
    fn tcp(&self) -> Option<&TcpStream> {
        Some(self.get_ref().get_ref())
    }
}

#[cfg(test)]
impl ClientSocket for tokio::io::DuplexStream {
    fn tcp(&self) -> Option<&TcpStream> {
        None
    }
}

pub(crate) fn counted(
    stream: TcpStream,
    totals: &Arc<Totals>,
) -> impl AsyncRead + AsyncWrite + ClientSocket + Unpin + Send + 'static {
    let (received, sent) = (Arc::clone(totals), Arc::clone(totals));
    let stream = InspectWriter::new(stream, move |bytes| {
        sent.sent.add(bytes.len() as u64);
    });
    InspectReader::new(stream, move |bytes| {
        received.received.add(bytes.len() as u64);
    })
}

fn log_failure(outcome: io::Result<()>) {
    if let Err(error) = outcome {
        tracing::debug!(%error, "cannot set SO_LINGER on client socket, client might not detect a truncated response");
    }
}

/// Converts small vectored writes to plain writes: hyper writes a head and its body as separate slices, and copying the
/// few hundred bytes of an ordinary message is cheaper than `writev`.
#[derive(Debug)]
pub(crate) struct FlattenWrites<IO>(pub IO);

impl<IO: AsyncRead + Unpin> AsyncRead for FlattenWrites<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for FlattenWrites<IO> {
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
        let io = Pin::new(&mut self.0);
        if let [piece] = pieces {
            return io.poll_write(cx, piece);
        }
        if pieces.iter().map(|piece| piece.len()).sum::<usize>() > MAX_FLATTENED {
            return io.poll_write_vectored(cx, pieces);
        }
        // Filling the buffer with zeros would cost more than copying the slices.
        let mut buffer = [MaybeUninit::uninit(); MAX_FLATTENED];
        let mut flat = ReadBuf::uninit(&mut buffer);
        for piece in pieces {
            flat.put_slice(piece);
        }
        io.poll_write(cx, flat.filled())
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
    async fn vectored_writes_of_all_sizes_arrive_complete_and_in_order() {
        for size in [1, MAX_FLATTENED / 2, MAX_FLATTENED, 3 * MAX_FLATTENED] {
            let (near, mut far) = tokio::io::duplex(64 * 1024);
            let mut near = FlattenWrites(near);
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
