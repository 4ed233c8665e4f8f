//! Load generators, which send many requests and return the outcome of each.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::timeout;

use super::client::{ClientRequest, PersistentConnection};
use super::{Client, TEST_TIMEOUT};

/// When a request was sent, and the status of its response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestOutcome {
    /// When the request was sent, as the time since the load started.
    pub(crate) at: Duration,
    /// Status of the response, or `None` if no complete response arrived.
    pub(crate) status: Option<u16>,
}

/// Runs `callers` clients for `duration`. Each client sends its next request when the response to the previous request
/// has arrived (closed loop), and reuses its connection.
pub(crate) async fn closed_loop(
    client: &Client,
    callers: usize,
    duration: Duration,
    build: fn(&Client) -> ClientRequest,
) -> Vec<RequestOutcome> {
    let started = Instant::now();
    let mut clients = JoinSet::new();
    for _ in 0..callers {
        let client = client.clone();
        clients.spawn(async move {
            let mut outcomes = Vec::new();
            let mut connection = None;
            while started.elapsed() < duration {
                let at = started.elapsed();
                let sent = send_on(&mut connection, &client, build(&client));
                let status = timeout(TEST_TIMEOUT, sent).await.ok().flatten();
                if status.is_none() {
                    connection = None;
                }
                outcomes.push(RequestOutcome { at, status });
            }
            outcomes
        });
    }
    clients.join_all().await.concat()
}

async fn send_on(
    connection: &mut Option<PersistentConnection>,
    client: &Client,
    request: ClientRequest,
) -> Option<u16> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(client.try_keep_alive().await.ok()?),
    };
    let response = connection.try_send(request).await.ok()?;
    Some(response.status)
}
