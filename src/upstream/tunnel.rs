//! Tunnel between client and server after a 101 response, for example for the WebSocket protocol. It copies bytes in
//! both directions until both sides have closed.

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use super::pool::Lease;
use super::target::AttemptGuard;
use crate::context::ClientConnection;
use crate::http1::upgrade::Upgrade;
use crate::metrics::InFlight;

/// Spawns a task that copies bytes between client and server as soon as hyper has upgraded both connections.
pub(super) fn open(
    connection: &ClientConnection,
    client: Upgrade,
    upstream: OnUpgrade,
    (lease, in_flight, guard): (Lease, InFlight, AttemptGuard),
) {
    let permit = connection.permit();
    // The task is spawned in the connection's task set, so that a drain waits for the end of the tunnel, but no longer
    // than the grace period.
    connection.tasks.spawn(async move {
        let _held = (permit, in_flight, guard);
        let (mut client, upstream) = match tokio::join!(client, upstream) {
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
        // The lease is dropped, because the upgraded connection no longer belongs to the pool.
        drop(lease);
        let mut upstream = TokioIo::new(upstream);
        match copy_bidirectional(&mut client, &mut upstream).await {
            Ok((sent, received)) => tracing::debug!(sent, received, "upgraded connection (101) closed"),
            Err(error) => tracing::debug!(%error, "upgraded connection (101) failed"),
        }
    });
}
