//! Sockets: options and state of client sockets, and small vectored writes.
//!
//! The number of unacknowledged bytes comes from a netlink query, because there is no safe interface to the ioctl
//! `SIOCOUTQ`.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::Pin;
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

/// The value of a cookie that matches every socket (`INET_DIAG_NOCOOKIE`).
const ANY_COOKIE: [u8; 8] = [0xff; 8];

/// Total size of the pieces that [`FlattenWrites`] copies, in bytes. The copy is on the stack.
const MAX_FLATTENED: usize = 2_048;

/// Enables TCP keep-alive after one minute of silence. Without it, a peer that vanished is never detected on a
/// connection that only reads, such as a tunnel.
pub(crate) fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let after = TcpKeepalive::new().with_time(Duration::from_mins(1));
    SockRef::from(stream).set_tcp_keepalive(&after)
}

/// The socket of a client, with or without TLS.
///
/// A response without a length ends with its connection, and only an orderly end shows the client that it is complete.
/// So the socket is set to reset on close while such a response is sent, and set back when the response is complete.
pub(crate) trait ClientSocket {
    /// Makes a close of this socket a reset.
    fn reset_on_close(&self);

    /// Makes a close of this socket orderly again.
    fn end_on_close(&self);

    /// Returns how many sent bytes the client has not acknowledged, if the kernel reports it.
    fn unacknowledged(&self) -> Option<u32>;
}

impl ClientSocket for TcpStream {
    fn reset_on_close(&self) {
        log_failure(self.set_zero_linger());
    }

    fn end_on_close(&self) {
        log_failure(SockRef::from(self).set_linger(None));
    }

    fn unacknowledged(&self) -> Option<u32> {
        unacknowledged(self)
    }
}

fn log_failure(outcome: io::Result<()>) {
    if let Err(error) = outcome {
        tracing::debug!(%error, "socket option not set, connection already closed");
    }
}

impl<IO: ClientSocket> ClientSocket for TlsStream<IO> {
    // A client that requires TLS's `close_notify` detects a truncated response without a reset.
    fn reset_on_close(&self) {
        self.get_ref().0.reset_on_close();
    }

    fn end_on_close(&self) {
        self.get_ref().0.end_on_close();
    }

    fn unacknowledged(&self) -> Option<u32> {
        self.get_ref().0.unacknowledged()
    }
}

#[cfg(test)]
impl ClientSocket for tokio::io::DuplexStream {
    fn reset_on_close(&self) {}

    fn end_on_close(&self) {}

    fn unacknowledged(&self) -> Option<u32> {
        None
    }
}

/// Returns how many sent bytes the peer has not acknowledged, or `None` if the kernel does not report it. A query takes
/// about 15 µs.
fn unacknowledged(stream: &TcpStream) -> Option<u32> {
    let (local, peer) = (stream.local_addr().ok()?, stream.peer_addr().ok()?);
    query(local, peer)
        .inspect_err(|error| tracing::debug!(%error, "kernel does not report the send queue"))
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
    // The kernel has replied by the time the request is sent.
    let (reply, _) = socket.recv_from_full()?;
    let reply = NetlinkMessage::<SockDiagMessage>::deserialize(&reply);
    match reply.map_err(io::Error::other)?.payload {
        NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => {
            Ok(response.header.send_queue)
        }
        NetlinkPayload::Error(error) => Err(error.to_io()),
        _ => Err(io::Error::other("unexpected reply")),
    }
}

/// A connection that turns small vectored writes into plain ones.
///
/// hyper writes a head and its body as separate pieces. For the few hundred bytes of an ordinary message, copying them
/// and one `write` is cheaper than `writev`. Larger writes stay vectored.
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
        // Uninitialised, because clearing it would cost more than filling it.
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
    async fn the_send_queue_shrinks_when_the_peer_reads() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).await.unwrap();
            let peer = TcpStream::connect(listener.local_addr().unwrap());
            let (peer, accepted) = tokio::join!(peer, listener.accept());
            let (mut peer, (stream, _)) = (peer.unwrap(), accepted.unwrap());
            assert_eq!(unacknowledged(&stream), Some(0));
            stream.writable().await.unwrap();
            while stream.try_write(&[0; 8_192]).is_ok() {}
            let full = unacknowledged(&stream).expect("a queue");
            assert!(full > 0);
            peer.read_exact(&mut vec![0; 1 << 20]).await.unwrap();
            let deadline = Instant::now() + Duration::from_secs(10);
            while unacknowledged(&stream).expect("a queue") >= full {
                assert!(Instant::now() < deadline, "the queue does not shrink");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    #[tokio::test]
    async fn pieces_arrive_whole_and_in_order_whatever_their_size() {
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
