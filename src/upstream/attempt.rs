//! One attempt: a request sent to one server, up to the head of its answer.
//!
//! Its ending says what may be done next. Unsent is proven, not guessed: either no connection stood, or
//! the connection gave the whole request back. Everything else may have reached the server.

use http::Response;
use hyper::body::Incoming;

use super::answer;
use super::error::ForwardError;
use super::outgoing::Outgoing;
use super::patience::Patience;
use super::pool::Lease;
use super::target::ServerTarget;
use super::upload::{Progress, Stage};
use super::{HostHeader, connect::ConnectError};

/// How an attempt ended.
#[derive(Debug)]
pub(super) enum Attempt {
    /// With the head of an answer.
    Answered(Response<Incoming>, Lease),
    /// Provably before a byte of the request was taken; it is back where it came from.
    Unsent(ForwardError),
    /// After something of it was taken, for all anybody knows.
    Lost(ForwardError),
}

/// Sends a request to `server` and waits for the head of its answer.
pub(super) async fn attempt(
    server: &ServerTarget,
    host: &HostHeader,
    outgoing: &mut Outgoing,
    patience: &Patience,
    max_body: u64,
) -> Attempt {
    let mut lease = match reached(patience, server.pool.lease()).await {
        Ok(lease) => lease,
        Err(error) => return Attempt::Unsent(error),
    };
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
        // The connection gave the request back: it never took a byte of it.
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

/// With an answer, unless it is one in doubt.
fn ended(response: Response<Incoming>, mut lease: Lease) -> Attempt {
    lease.received(response.version(), response.headers());
    match answer::framing_fault(response.headers()) {
        None => Attempt::Answered(response, lease),
        Some(fault) => Attempt::Lost(ForwardError::BadAnswer(fault)),
    }
}

/// Waits for a connection, but not past the request's end.
async fn reached<F>(patience: &Patience, lease: F) -> Result<Lease, ForwardError>
where
    F: Future<Output = Result<Lease, ConnectError>>,
{
    match patience.within_total(lease).await {
        Ok(lease) => Ok(lease?),
        Err(late) => Err(ForwardError::NotReachedInTime(late)),
    }
}

/// Whose fault a failed exchange is.
fn blame(error: hyper::Error, upload: Option<&Progress>, max_body: u64) -> ForwardError {
    match upload.map(|upload| (upload.stage(), upload)) {
        Some((Stage::TooLarge, _)) => ForwardError::TooLarge(max_body),
        Some((Stage::ClientFailed, upload)) => ForwardError::ClientFailed(upload.violation()),
        _ => ForwardError::Exchange(error),
    }
}
