//! After a 101 the connection is no longer HTTP: bytes pass both ways until either side is done.

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use super::pool::Lease;
use super::target::Visit;
use crate::admin::InFlight;
use crate::pipeline::Connection;

/// Joins the client's connection to upstream's once both have left HTTP.
pub(super) fn open(
    connection: &Connection,
    client: OnUpgrade,
    upstream: OnUpgrade,
    (lease, in_flight, visit): (Lease, InFlight, Visit),
) {
    let place = connection.seat();
    // Tracked: a drain waits for the tunnel's end, within its grace.
    connection.tasks.spawn(async move {
        let _held = (place, in_flight, visit);
        let (client, upstream) = match tokio::try_join!(client, upstream) {
            Ok(both) => both,
            Err(error) => {
                tracing::debug!(%error, "an upgrade was not completed");
                return;
            }
        };
        // It was needed until its connection was handed over.
        drop(lease);
        let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
        match copy_bidirectional(&mut client, &mut upstream).await {
            Ok((sent, received)) => tracing::debug!(sent, received, "a tunnel closed"),
            Err(error) => tracing::debug!(%error, "a tunnel broke"),
        }
    });
}
