//! One attempt: sends a request to one server and waits for the head of the response.
//!
//! The outcome decides what may follow. A request counts as unsent only if that is proven: either no
//! connection was established, or the connection returned the whole request. In every other case the server
//! may have received it.

use http::Response;
use hyper::body::Incoming;

use super::answer;
use super::error::ForwardError;
use super::outgoing::Outgoing;
use super::patience::{CLIENT_PAUSE, Patience};
use super::pool::Lease;
use super::target::Visit;
use super::upload::{Progress, Stage};
use super::{HostHeader, connect::ConnectError};

/// The outcome of an attempt.
#[derive(Debug)]
pub(super) enum Attempt {
    /// The head of a response arrived.
    Answered(Response<Incoming>, Lease),
    /// No byte of the request was sent. The request is back in its [`Outgoing`].
    Unsent(ForwardError),
    /// No valid response arrived, and the server may have received the request.
    Lost(ForwardError),
}

/// Sends a request to the server of `visit` and waits for the head of its response.
pub(super) async fn attempt(
    visit: &mut Visit,
    host: &HostHeader,
    outgoing: &mut Outgoing,
    patience: &Patience,
    max_body: u64,
) -> Attempt {
    let connected = if visit.probes_connection() {
        reached(patience, visit.server().pool.lease_fresh()).await
    } else {
        reached(patience, visit.server().pool.lease()).await
    };
    let mut lease = match connected {
        Ok(lease) => lease,
        Err(error) => return Attempt::Unsent(error),
    };
    visit.connected();
    let server = visit.server();
    let Outgoing { request, upload } = outgoing;
    loop {
        lease.carries(upload.clone());
        let mut sent = request.take().expect("it comes back unless it was sent");
        host.write(sent.headers_mut(), &server.host);
        let answer = lease.sender().try_send_request(sent);
        let mut failed = match patience.for_answer(answer, upload.as_deref()).await {
            Ok(Ok(response)) => return ended(response, lease),
            Ok(Err(failed)) => failed,
            Err(late) => return Attempt::Lost(late.into()),
        };
        let Some(unsent) = failed.take_message() else {
            let error = blame(failed.into_error(), upload.as_deref(), max_body);
            return Attempt::Lost(error);
        };
        // The connection returned the request, so no byte of it was sent.
        *request = Some(unsent);
        if !lease.reused {
            return Attempt::Unsent(ForwardError::Unsent(failed.into_error()));
        }
        lease = match reached(patience, server.pool.lease_fresh()).await {
            Ok(lease) => lease,
            Err(error) => return Attempt::Unsent(error),
        };
    }
}

/// Ends an attempt with its response, or without one if the framing of the response is invalid.
fn ended(mut response: Response<Incoming>, mut lease: Lease) -> Attempt {
    lease.received(response.version(), response.headers());
    match answer::check_framing(response.headers_mut()) {
        Ok(()) => Attempt::Answered(response, lease),
        Err(fault) => Attempt::Lost(ForwardError::InvalidResponse(fault.into())),
    }
}

/// Waits for a connection until the deadline of the request.
async fn reached<F>(patience: &Patience, lease: F) -> Result<Lease, ForwardError>
where
    F: Future<Output = Result<Lease, ConnectError>>,
{
    match patience.within_total(lease).await {
        Ok(lease) => Ok(lease?),
        Err(late) => Err(ForwardError::NotReachedInTime(late)),
    }
}

/// Returns why an exchange failed, and with it whether client or server caused the failure.
fn blame(error: hyper::Error, upload: Option<&Progress>, max_body: u64) -> ForwardError {
    match upload.map(|upload| (upload.stage(), upload)) {
        Some((Stage::TooLarge, _)) => ForwardError::TooLarge(max_body),
        Some((Stage::ClientFailed, upload)) => ForwardError::ClientFailed(upload.violation()),
        _ if error.is_parse() => ForwardError::InvalidResponse(error.into()),
        upload => ForwardError::Exchange {
            source: error,
            is_servers: !upload.is_some_and(|(_, upload)| is_paused(upload)),
        },
    }
}

/// Whether the client pauses its request body, so that a server may have lost patience with it.
fn is_paused(upload: &Progress) -> bool {
    upload.stage() == Stage::Underway
        && upload.waits_for_client()
        && upload.last_passed().elapsed() >= CLIENT_PAUSE
}
