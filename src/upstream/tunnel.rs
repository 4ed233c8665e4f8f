//! Tunnel after a 101 response: copies bytes in both directions until both sides have closed.

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use super::pool::Lease;
use super::target::AttemptGuard;
use crate::context::ClientConnection;
use crate::http1::upgrade::Upgrade;
use crate::metrics::InFlight;

/// Connects the client to the server when both connections have been upgraded.
pub(super) fn open(
    connection: &ClientConnection,
    client: Upgrade,
    upstream: OnUpgrade,
    (lease, in_flight, guard): (Lease, InFlight, AttemptGuard),
) {
    let permit = connection.permit();
    // The task is tracked, so that a drain waits for the tunnel within the grace period.
    connection.tasks.spawn(async move {
        let _held = (permit, in_flight, guard);
        let (mut client, upstream) = match tokio::join!(client, upstream) {
            (Ok(client), Ok(upstream)) => (client, upstream),
            (Err(error), _) => {
                tracing::debug!(%error, "upgrade failed");
                return;
            }
            (_, Err(error)) => {
                tracing::debug!(%error, "upgrade failed");
                return;
            }
        };
        // hyper has handed over the connection, so the lease is no longer needed.
        drop(lease);
        let mut upstream = TokioIo::new(upstream);
        match copy_bidirectional(&mut client, &mut upstream).await {
            Ok((sent, received)) => tracing::debug!(sent, received, "tunnel closed"),
            Err(error) => tracing::debug!(%error, "tunnel failed"),
        }
    });
}
