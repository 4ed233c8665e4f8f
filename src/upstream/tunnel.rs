//! After a 101 the connection is no longer HTTP: bytes pass both ways until either side is done.

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use super::pool::Lease;
use super::target::AttemptGuard;
use crate::context::Connection;
use crate::http1::upgrade::Upgrade;
use crate::metrics::InFlight;

/// Joins the client's connection to upstream's once both have left HTTP.
pub(super) fn open(
    connection: &Connection,
    client: Upgrade,
    upstream: OnUpgrade,
    (lease, in_flight, guard): (Lease, InFlight, AttemptGuard),
) {
    let permit = connection.permit();
    // Tracked: a drain waits for the tunnel's end, within its grace.
    connection.tasks.spawn(async move {
        let _held = (permit, in_flight, guard);
        let (mut client, upstream) = match tokio::join!(client, upstream) {
            (Ok(client), Ok(upstream)) => (client, upstream),
            (Err(error), _) => {
                tracing::debug!(%error, "an upgrade was not completed");
                return;
            }
            (_, Err(error)) => {
                tracing::debug!(%error, "an upgrade was not completed");
                return;
            }
        };
        // It was needed until its connection was handed over.
        drop(lease);
        let mut upstream = TokioIo::new(upstream);
        match copy_bidirectional(&mut client, &mut upstream).await {
            Ok((sent, received)) => tracing::debug!(sent, received, "a tunnel closed"),
            Err(error) => tracing::debug!(%error, "a tunnel broke"),
        }
    });
}
