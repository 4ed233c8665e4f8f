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
    connect_any(alternating(shuffled, is_ipv6_first), TcpStream::connect).await
}

/// If all fail, returns the error of the last attempt.
async fn connect_any<T, F>(
    addresses: Vec<SocketAddr>,
    connect: impl Fn(SocketAddr) -> F,
) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    let mut untried = addresses.into_iter();
    let mut attempts = FuturesUnordered::new();
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "no IP address to connect to");
    loop {
        attempts.extend(untried.next().map(&connect));
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

    use tokio::time::Instant;

    use super::*;

    const SILENT: u16 = 1;
    const REFUSING: u16 = 2;
    const LISTENING: u16 = 3;

    /// Connects to one of these ports of a simulated host. Returns the port and the time that this took.
    async fn connect(ports: &[u16]) -> io::Result<(u16, Duration)> {
        let start = Instant::now();
        let addresses = ports.iter().map(|&port| (Ipv4Addr::LOCALHOST, port).into());
        let port = connect_any(
            addresses.collect(),
            async |address: SocketAddr| match address.port() {
                LISTENING => Ok(LISTENING),
                REFUSING => Err(io::ErrorKind::ConnectionRefused.into()),
                _ => std::future::pending().await,
            },
        )
        .await?;
        Ok((port, start.elapsed()))
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_does_not_respond_delays_the_next_by_250_ms() {
        let connected = connect(&[SILENT, SILENT, LISTENING]).await.unwrap();
        assert_eq!(connected, (LISTENING, 2 * STAGGER));
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_refuses_does_not_delay_the_next() {
        let connected = connect(&[REFUSING, REFUSING, LISTENING]).await.unwrap();
        assert_eq!(connected, (LISTENING, Duration::ZERO));
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_error_is_reported_if_every_address_fails() {
        let error = connect(&[REFUSING; 3]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let error = connect(&[]).await.unwrap_err();
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
