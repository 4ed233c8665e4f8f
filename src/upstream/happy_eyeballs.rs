//! Opens a TCP connection to one of several addresses and tries them in parallel (RFC 8305, Happy Eyeballs).
//!
//! Attempts start 250 ms apart, or immediately after a failed one, so an address that does not respond does not cost
//! the complete `connect_timeout`. Families alternate, and the family of the resolver's first address is first (section
//! 4). Within a family the order is random, so that connections spread over all addresses of a name.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::net::TcpStream;

/// "Connection Attempt Delay" (RFC 8305, section 5).
const STAGGER: Duration = Duration::from_millis(250);

/// In the order of the resolver.
pub(super) async fn dial(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut shuffled = addresses.to_vec();
    fastrand::shuffle(&mut shuffled);
    let is_ipv6_first = addresses.first().is_some_and(SocketAddr::is_ipv6);
    connect_any(alternating(shuffled, is_ipv6_first)).await
}

/// If all fail, returns the error of the last attempt.
async fn connect_any(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut untried = addresses.into_iter();
    let mut attempts = FuturesUnordered::new();
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "no IP address to connect to");
    loop {
        attempts.extend(untried.next().map(TcpStream::connect));
        let finished = if untried.len() == 0 {
            attempts.next().await
        } else {
            match tokio::time::timeout(STAGGER, attempts.next()).await {
                Ok(finished) => finished,
                Err(_elapsed) => continue,
            }
        };
        match finished {
            Some(Ok(stream)) => return Ok(stream),
            Some(Err(error)) => failure = error,
            None => return Err(failure),
        }
    }
}

fn alternating(addresses: Vec<SocketAddr>, is_ipv6_first: bool) -> Vec<SocketAddr> {
    let count = addresses.len();
    let (preferred, other): (Vec<_>, Vec<_>) = addresses
        .into_iter()
        .partition(|address| address.is_ipv6() == is_ipv6_first);
    let (mut preferred, mut other) = (preferred.into_iter(), other.into_iter());
    let mut ordered = Vec::with_capacity(count);
    while ordered.len() < count {
        ordered.extend(preferred.next());
        ordered.extend(other.next());
    }
    ordered
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::time::Instant;

    use socket2::{Domain, Socket, Type};

    use super::*;

    /// A socket that neither accepts nor refuses connections, because its accept queue is full.
    struct UnresponsiveSocket {
        socket: Socket,
        _queue: Vec<std::net::TcpStream>,
    }

    impl UnresponsiveSocket {
        fn new() -> Self {
            let socket = bound();
            socket.listen(0).unwrap();
            let address = address(&socket);
            let connect =
                || std::net::TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok();
            let queue = std::iter::from_fn(connect).take(100).collect();
            assert!(connect().is_none(), "the queue is not full");
            Self {
                socket,
                _queue: queue,
            }
        }
    }

    fn bound() -> Socket {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        socket.bind(&any.into()).unwrap();
        socket
    }

    fn address(socket: &Socket) -> SocketAddr {
        socket.local_addr().unwrap().as_socket().unwrap()
    }

    #[tokio::test]
    async fn an_address_that_does_not_respond_delays_the_next_by_250_ms() {
        let (one, other) = (UnresponsiveSocket::new(), UnresponsiveSocket::new());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let server = listener.local_addr().unwrap();
        let addresses = vec![address(&one.socket), address(&other.socket), server];
        let start = Instant::now();
        let connecting = tokio::time::timeout(Duration::from_secs(5), connect_any(addresses));
        let stream = connecting.await.expect("within connect_timeout").unwrap();
        assert_eq!(stream.peer_addr().unwrap(), server);
        let took = start.elapsed();
        assert!(took >= 2 * STAGGER, "{took:?}");
        assert!(took < Duration::from_secs(2), "{took:?}");
    }

    #[tokio::test]
    async fn an_address_that_refuses_does_not_delay_the_next() {
        let refusing = bound();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let server = listener.local_addr().unwrap();
        let start = Instant::now();
        let stream = connect_any(vec![address(&refusing), address(&refusing), server]).await;
        assert_eq!(stream.unwrap().peer_addr().unwrap(), server);
        assert!(start.elapsed() < STAGGER, "{:?}", start.elapsed());
    }

    #[tokio::test]
    async fn the_last_error_is_reported_if_every_address_fails() {
        let refusing = bound();
        let error = connect_any(vec![address(&refusing); 3]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let error = connect_any(Vec::new()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn connections_spread_over_all_addresses() {
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let listeners = [listen(), listen()];
        let addresses = listeners.each_ref().map(|it| it.local_addr().unwrap());
        let mut used = std::collections::HashSet::new();
        for _ in 0..100 {
            used.insert(dial(&addresses).await.unwrap().peer_addr().unwrap());
        }
        assert_eq!(used.len(), 2);
    }

    #[test]
    fn address_families_alternate() {
        let parse = |list: &[&str]| -> Vec<SocketAddr> {
            list.iter().map(|text| text.parse().unwrap()).collect()
        };
        let resolved = parse(&["[::1]:1", "[::2]:1", "[::3]:1", "1.1.1.1:1", "2.2.2.2:1"]);
        let ordered = parse(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "2.2.2.2:1", "[::3]:1"]);
        assert_eq!(alternating(resolved, true), ordered);
        let resolved = parse(&["1.1.1.1:1", "2.2.2.2:1", "[::1]:1"]);
        let ordered = parse(&["1.1.1.1:1", "[::1]:1", "2.2.2.2:1"]);
        assert_eq!(alternating(resolved, false), ordered);
        assert_eq!(alternating(Vec::new(), true), []);
    }
}
