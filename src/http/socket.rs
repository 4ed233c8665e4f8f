//! Socket helpers: options and state of client sockets, and conversion of small vectored writes to plain writes.
//!
//! The number of unacknowledged bytes is read by a netlink query (`sock_diag`). The ioctl `SIOCOUTQ` would be simpler,
//! but no safe Rust interface to it exists.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_util::io::{InspectReader, InspectWriter};

use crate::metrics::Totals;

/// Value for the socket cookie in a netlink query if the query must match sockets with any cookie
/// (`INET_DIAG_NOCOOKIE`).
const ANY_COOKIE: [u8; 8] = [0xff; 8];

/// Maximum total size of the slices that [`FlattenWrites`] copies into one buffer, in bytes. The buffer is on the
/// stack.
const MAX_FLATTENED: usize = 2_048;

/// Enables TCP keep-alive after one minute without traffic. On some connections the gateway only reads, for example in
/// a tunnel. Without keep-alive, it would never detect that the peer of such a connection has vanished.
pub(crate) fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let after = TcpKeepalive::new().with_time(Duration::from_mins(1));
    SockRef::from(stream).set_tcp_keepalive(&after)
}

/// The socket of a client, with or without TLS.
///
/// A response without `Content-Length` or chunks ends when the connection is closed. Only a TCP FIN shows the client
/// that such a response is complete. So while such a response is being sent, a close must send a TCP reset. After the
/// response is complete, a close must send a FIN.
pub(crate) trait ClientSocket {
    /// `None` for the streams of tests.
    fn tcp(&self) -> Option<&TcpStream>;

    /// Sets the socket to send a TCP reset when it is closed. An error is logged.
    fn reset_on_close(&self) {
        if let Some(stream) = self.tcp() {
            log_failure(stream.set_zero_linger());
        }
    }

    /// Sets the socket to send a FIN when it is closed, which is the default. An error is logged.
    fn fin_on_close(&self) {
        if let Some(stream) = self.tcp() {
            log_failure(SockRef::from(stream).set_linger(None));
        }
    }

    /// Returns the number of sent bytes that the client has not acknowledged, or `None` if the kernel does not report
    /// it.
    fn unacknowledged(&self) -> Option<u32> {
        self.tcp().and_then(unacknowledged)
    }
}

impl ClientSocket for TcpStream {
    fn tcp(&self) -> Option<&TcpStream> {
        Some(self)
    }
}

// The reset is needed on TLS as well. If a truncated response ended with a FIN, only a client that requires
// `close_notify` would detect the truncation.
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

/// Counts the bytes of a client's socket.
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

/// Returns the number of sent bytes that the peer has not acknowledged, or `None` if the kernel does not report it. The
/// query takes about 15 µs.
fn unacknowledged(stream: &TcpStream) -> Option<u32> {
    let (local, peer) = (stream.local_addr().ok()?, stream.peer_addr().ok()?);
    query(local, peer)
        .inspect_err(|error| {
            tracing::debug!(%peer, %error, "cannot read send queue of client socket, write_timeout is inaccurate");
        })
        .ok()
}

fn query(local: SocketAddr, peer: SocketAddr) -> io::Result<u32> {
    let (family, mut socket_id) = match local {
        SocketAddr::V4(_) => (AF_INET, SocketId::new_v4()),
        SocketAddr::V6(_) => (AF_INET6, SocketId::new_v6()),
    };
    socket_id.source_address = local.ip();
    socket_id.source_port = local.port();
    socket_id.destination_address = peer.ip();
    socket_id.destination_port = peer.port();
    socket_id.cookie = ANY_COOKIE;
    let request = SockDiagMessage::InetRequest(InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::empty(),
        states: StateFlags::all(),
        socket_id,
    });
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let mut message = NetlinkMessage::new(header, request.into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);

    let socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.send_to(&bytes, &netlink_sys::SocketAddr::new(0, 0), 0)?;
    // This call does not block, because the kernel queues the reply before `send_to` returns.
    let (reply, _) = socket.recv_from_full()?;
    let reply = NetlinkMessage::<SockDiagMessage>::deserialize(&reply);
    match reply.map_err(io::Error::other)?.payload {
        NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => {
            Ok(response.header.send_queue)
        }
        NetlinkPayload::Error(error) => Err(error.to_io()),
        _ => Err(io::Error::other(
            "the kernel sent an unexpected reply to a sock_diag netlink query",
        )),
    }
}

/// A connection that converts small vectored writes to plain writes.
///
/// hyper writes a head and its body as separate slices. An ordinary message has a few hundred bytes. Copying them into
/// one buffer for `write` is cheaper than `writev`. Larger writes stay vectored.
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
        // The buffer is not initialised, because filling it with zeros would cost more than copying the slices.
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
    use std::time::{Duration, Instant};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn unacknowledged_bytes_decrease_when_the_peer_reads() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).await.unwrap();
            let peer = TcpStream::connect(listener.local_addr().unwrap());
            let (peer, accepted) = tokio::join!(peer, listener.accept());
            let (mut peer, (stream, _)) = (peer.unwrap(), accepted.unwrap());
            assert_eq!(unacknowledged(&stream), Some(0));
            stream.writable().await.unwrap();
            while stream.try_write(&[0; 8_192]).is_ok() {}
            let full = unacknowledged(&stream).expect("the kernel reports the send queue");
            assert!(full > 0);
            peer.read_exact(&mut vec![0; 1 << 20]).await.unwrap();
            let deadline = Instant::now() + Duration::from_secs(10);
            while unacknowledged(&stream).expect("the kernel reports the send queue") >= full {
                assert!(Instant::now() < deadline, "the send queue does not shrink");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

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
