//! Tunnel between client and server after a 101 response, for example for the WebSocket protocol.
//!
//! A tunnel occupies a client connection, which counts against `max_connections`, and a server connection. Two bounds
//! keep a client from occupying all: `tunnel_timeout` closes a tunnel that transfers no byte in either direction, also
//! if one side has closed, and `max_tunnels_per_client` bounds the tunnels of a client over all workers. A request
//! reserves a [`TunnelSlot`] before it is sent, so that a rejected request causes no work upstream.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use http::header::UPGRADE;
use http::{HeaderMap, HeaderValue, StatusCode};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::time::{Instant, sleep_until};
use tokio_util::io::{InspectReader, InspectWriter};

use super::pool::Lease;
use super::settings::TunnelSettings;
use super::target::AttemptGuard;
use crate::http::http1::upgrade::Upgrade;
use crate::metrics::{Count, Gauge, InFlight};
use crate::request::client::ClientId;
use crate::request::context::ClientConnection;
use crate::request::headers::tokens;
use crate::respond::{Problem, RETRY_SOON};

#[derive(Debug)]
pub(crate) struct Tunnels {
    settings: TunnelSettings,
    /// A client without tunnels has no entry.
    clients: DashMap<ClientId, usize>,
    /// Includes pending upgrades.
    pub(crate) open: Gauge,
    pub(crate) rejected: Count,
    pub(crate) timed_out: Count,
}

#[derive(Debug)]
#[must_use = "a dropped slot is released"]
pub(super) struct TunnelSlot {
    tunnels: Arc<Tunnels>,
    client: ClientId,
}

#[derive(Debug)]
pub(super) struct RequestedTunnel {
    /// Value of the client's `Upgrade` header.
    pub(super) protocols: HeaderValue,
    pub(super) client: Upgrade,
    pub(super) slot: TunnelSlot,
}

impl RequestedTunnel {
    pub(super) fn is_for(&self, headers: &HeaderMap) -> bool {
        let requested = self.protocols.to_str().unwrap_or_default();
        let is_requested = |protocol: &str| {
            let mut requested = requested.split(',').map(str::trim);
            requested.any(|requested| requested.eq_ignore_ascii_case(protocol))
        };
        headers.contains_key(UPGRADE) && tokens(headers, &UPGRADE).all(is_requested)
    }
}

impl Tunnels {
    pub(crate) fn new(settings: TunnelSettings) -> Self {
        Self {
            settings,
            clients: DashMap::new(),
            open: Gauge::default(),
            rejected: Count::default(),
            timed_out: Count::default(),
        }
    }

    pub(super) fn reserve(self: &Arc<Self>, client: ClientId) -> Result<TunnelSlot, Problem> {
        let mut count = self.clients.entry(client).or_insert(0);
        if *count >= self.settings.per_client {
            self.rejected.inc();
            return Err(too_many(self.settings.per_client));
        }
        *count += 1;
        self.open.add(1);
        Ok(TunnelSlot {
            tunnels: Arc::clone(self),
            client,
        })
    }
}

impl Drop for TunnelSlot {
    fn drop(&mut self) {
        let tunnels = &self.tunnels;
        tunnels.clients.remove_if_mut(&self.client, |_, count| {
            *count -= 1;
            *count == 0
        });
        tunnels.open.add(-1);
    }
}

/// As for a rate limit, because the client has caused the rejection and a retry succeeds after one of its tunnels has
/// closed.
fn too_many(bound: usize) -> Problem {
    Problem::new(
        StatusCode::TOO_MANY_REQUESTS,
        "rate-limited",
        "Too many requests",
        format!(
            "This client has {bound} upgraded connections, which is the maximum. The request was not forwarded. Close \
             an upgraded connection, and retry the request after the time in Retry-After."
        ),
    )
    .retry_after(RETRY_SOON)
}

pub(super) fn open(
    connection: &ClientConnection,
    tunnel: RequestedTunnel,
    upstream: OnUpgrade,
    (lease, in_flight, guard): (Lease, InFlight, AttemptGuard),
) {
    let active = connection.permit.begin();
    let RequestedTunnel { client, slot, .. } = tunnel;
    // In the connection's task set, so that a drain waits for the end of the tunnel, but no longer than the grace
    // period.
    connection.tasks.spawn(async move {
        let _held = (active, in_flight, guard);
        let (client, upstream) = match tokio::join!(client, upstream) {
            (Ok(client), Ok(upstream)) => (client, upstream),
            (Err(error), _) => {
                tracing::debug!(%error, "cannot upgrade connection to client after 101 response");
                return;
            }
            (_, Err(error)) => {
                tracing::debug!(%error, "cannot upgrade connection to upstream server after 101 response");
                return;
            }
        };
        // The upgraded connection no longer belongs to the pool.
        drop(lease);
        let timeout = slot.tunnels.settings.idle;
        match copy(client, TokioIo::new(upstream), timeout).await {
            Some(Ok((sent, received))) => {
                tracing::debug!(sent, received, "upgraded connection (101) closed");
            }
            Some(Err(error)) if error.kind() != io::ErrorKind::TimedOut => {
                tracing::debug!(%error, "upgraded connection (101) failed");
            }
            // The client or both sides.
            Some(Err(_)) | None => {
                slot.tunnels.timed_out.inc();
                tracing::debug!("upgraded connection (101) idle (tunnel_timeout), closing both sides");
            }
        }
    });
}

/// Returns the numbers of bytes, or `None` if neither side transfers one within `timeout`. Closes both sides.
async fn copy<C, U>(client: C, upstream: U, timeout: Duration) -> Option<io::Result<(u64, u64)>>
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let last_active = Mutex::new(Instant::now());
    let mut client = tracked(client, &last_active);
    let mut upstream = tracked(upstream, &last_active);
    // Not reset at each byte: when the timer fires, it is set to the time at which the tunnel can become idle.
    let idle = async {
        loop {
            let due = *last_active.lock() + timeout;
            if due <= Instant::now() {
                return;
            }
            sleep_until(due).await;
        }
    };
    tokio::select! {
        biased;
        copied = copy_bidirectional(&mut client, &mut upstream) => Some(copied),
        () = idle => None,
    }
}

fn tracked<IO>(io: IO, last_active: &Mutex<Instant>) -> impl AsyncRead + AsyncWrite + Unpin
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let record = |bytes: &[u8]| {
        // The end of the stream is a read of zero bytes.
        if !bytes.is_empty() {
            *last_active.lock() = Instant::now();
        }
    };
    InspectWriter::new(InspectReader::new(io, record), record)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::time::{advance, sleep};

    use super::*;

    const TIMEOUT: Duration = Duration::from_mins(10);

    type Copying = tokio::task::JoinHandle<Option<io::Result<(u64, u64)>>>;

    /// Starts a tunnel. Returns the client's end, the server's end and the task that copies.
    fn tunnel() -> (DuplexStream, DuplexStream, Copying) {
        let (client, gateway_client) = duplex(64);
        let (gateway_upstream, server) = duplex(64);
        let copying = tokio::spawn(copy(gateway_client, gateway_upstream, TIMEOUT));
        (client, server, copying)
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_is_closed_after_the_timeout_without_a_byte_in_either_direction() {
        let (mut client, mut server, copying) = tunnel();
        let started = Instant::now();
        let mut byte = [0];
        for _ in 0..3 {
            sleep(TIMEOUT * 9 / 10).await;
            client.write_all(b"c").await.unwrap();
            server.read_exact(&mut byte).await.unwrap();
            sleep(TIMEOUT * 9 / 10).await;
            server.write_all(b"s").await.unwrap();
            client.read_exact(&mut byte).await.unwrap();
        }
        let last_byte = Instant::now();
        assert!(copying.await.unwrap().is_none());
        assert_eq!(last_byte.elapsed(), TIMEOUT);
        assert!(started.elapsed() > 5 * TIMEOUT);
        assert_eq!(client.read(&mut byte).await.unwrap(), 0);
        assert_eq!(server.read(&mut byte).await.unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_half_closed_tunnel_is_closed_after_the_timeout() {
        for client_closes in [true, false] {
            let (mut client, mut server, copying) = tunnel();
            advance(TIMEOUT / 2).await;
            let (closing, open) = if client_closes {
                (&mut client, &mut server)
            } else {
                (&mut server, &mut client)
            };
            closing.write_all(b"x").await.unwrap();
            closing.shutdown().await.unwrap();
            let mut received = Vec::new();
            open.read_to_end(&mut received).await.unwrap();
            assert_eq!(received, b"x");
            let closed = Instant::now();
            assert!(copying.await.unwrap().is_none());
            assert_eq!(closed.elapsed(), TIMEOUT);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_whose_receiver_reads_nothing_is_closed_after_the_timeout() {
        let (mut client, _server, copying) = tunnel();
        let sending =
            tokio::spawn(async move { while client.write_all(&[0; 1024]).await.is_ok() {} });
        let started = Instant::now();
        assert!(copying.await.unwrap().is_none());
        assert_eq!(started.elapsed(), TIMEOUT);
        sending.await.unwrap();
    }

    #[test]
    fn a_client_has_at_most_its_number_of_tunnels_and_its_entry_is_removed_with_the_last() {
        let tunnels = Arc::new(Tunnels::new(TunnelSettings {
            idle: TIMEOUT,
            per_client: 2,
        }));
        let [one, other] = [1, 2].map(|n| ClientId::of([192, 0, 2, n].into(), 64));
        let first = tunnels.reserve(one).unwrap();
        let second = tunnels.reserve(one).unwrap();
        let problem = tunnels.reserve(one).unwrap_err();
        assert_eq!(
            (problem.status.as_u16(), problem.kind),
            (429, "rate-limited")
        );
        let third = tunnels.reserve(other).unwrap();
        assert_eq!((tunnels.open.get(), tunnels.rejected.get()), (3, 1));
        drop(first);
        let again = tunnels.reserve(one).unwrap();
        drop((second, again, third));
        assert_eq!(tunnels.open.get(), 0);
        assert!(tunnels.clients.is_empty());
    }
}
