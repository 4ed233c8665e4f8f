//! Socket options and kernel state of TCP connections.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// The value of a cookie that matches every socket (`INET_DIAG_NOCOOKIE`).
const ANY_COOKIE: [u8; 8] = [0xff; 8];

/// Enables TCP keep-alive after one minute of silence. Without it, a peer that vanished is never detected on a
/// connection that only reads, such as a tunnel.
pub(crate) fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let after = TcpKeepalive::new().with_time(Duration::from_mins(1));
    SockRef::from(stream).set_tcp_keepalive(&after)
}

/// Returns how many sent bytes the peer has not acknowledged, or `None` if the kernel does not tell.
///
/// The number is that of the ioctl `SIOCOUTQ`, for which there is no safe interface. A query takes about 15 µs.
pub(crate) fn unacknowledged(stream: &TcpStream) -> Option<u32> {
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use tokio::io::AsyncReadExt as _;
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
}
