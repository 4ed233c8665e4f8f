//! One attempt to send a request to one server, up to the head of the response.
//!
//! A request counts as unsent in two cases: no connection was established, or hyper returned the complete request. In
//! every other case the server may have received the request, and sending it again can execute it twice.

use std::sync::Arc;

use http::{Response, StatusCode};
use hyper::body::Incoming;

use super::HostHeader;
use super::body::UploadProgress;
use super::connect::ConnectError;
use super::connection_auth;
use super::error::ForwardError;
use super::pool::{ConnectionChoice, Lease};
use super::request::UpstreamRequest;
use super::response;
use super::target::AttemptGuard;
use super::timeouts::{CLIENT_PAUSE, RequestTimeouts};
use crate::request::context::ClientConnection;

#[expect(
    clippy::large_enum_variant,
    reason = "a value exists only between two statements, and most are the large variant"
)]
#[derive(Debug)]
pub(super) enum AttemptOutcome {
    Responded(Response<Incoming>, Lease),
    /// No byte of the request was sent. The request is back in its [`UpstreamRequest`].
    Unsent(ForwardError),
    Lost(ForwardError),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Sending<'a> {
    pub(super) host: &'a HostHeader,
    pub(super) timeouts: &'a RequestTimeouts,
    /// Can own a connection to a server, see [`connection_auth`].
    pub(super) client: Option<&'a Arc<ClientConnection>>,
}

pub(super) async fn attempt(
    guard: &mut AttemptGuard,
    connection: ConnectionChoice<'_>,
    upstream_request: &mut UpstreamRequest,
    sending: &Sending<'_>,
) -> AttemptOutcome {
    let Sending {
        host,
        timeouts,
        client,
    } = *sending;
    let connection = match connection {
        _ if guard.probes_connection() => match guard.probe_bound() {
            Some(bound) => ConnectionChoice::FreshWithin(bound),
            None => ConnectionChoice::Fresh,
        },
        connection => connection,
    };
    let mut lease = match connect(timeouts, guard.server().pool.lease(connection)).await {
        Ok(lease) => lease,
        Err(error) => return AttemptOutcome::Unsent(error),
    };
    guard.connected();
    let server = guard.server();
    let UpstreamRequest { request, upload } = upstream_request;
    loop {
        lease.track_upload(upload.clone());
        let mut sent = request
            .take()
            .expect("the request is present, because an unsent request is put back");
        host.write(sent.headers_mut(), &server.host);
        if connection_auth::is_requested(sent.headers()) {
            lease.bind(client);
        }
        let response = lease.sender().try_send_request(sent);
        let mut failed = match timeouts.await_response(response, upload.as_deref()).await {
            Ok(Ok(response)) => return finish(response, lease, client),
            Ok(Err(failed)) => failed,
            Err(late) => return AttemptOutcome::Lost(late.into()),
        };
        let Some(unsent) = failed.take_message() else {
            let error = classify(failed.into_error(), upload.as_deref(), &lease);
            return AttemptOutcome::Lost(error);
        };
        *request = Some(unsent);
        if !lease.reused {
            return AttemptOutcome::Unsent(ForwardError::Unsent(failed.into_error()));
        }
        lease = match connect(timeouts, server.pool.lease_fresh()).await {
            Ok(lease) => lease,
            Err(error) => return AttemptOutcome::Unsent(error),
        };
    }
}

/// A response with invalid `Content-Length` or `Transfer-Encoding` counts as lost.
fn finish(
    mut response: Response<Incoming>,
    mut lease: Lease,
    client: Option<&Arc<ClientConnection>>,
) -> AttemptOutcome {
    lease.set_idle_time(response.version(), response.headers());
    if response.status() == StatusCode::UNAUTHORIZED
        && connection_auth::is_demanded(response.headers())
    {
        lease.bind(client);
    }
    match response::check_framing(response.headers_mut()) {
        Ok(()) => AttemptOutcome::Responded(response, lease),
        Err(fault) => AttemptOutcome::Lost(ForwardError::InvalidResponse(fault.into())),
    }
}

async fn connect<F>(timeouts: &RequestTimeouts, lease: F) -> Result<Lease, ForwardError>
where
    F: Future<Output = Result<Lease, ConnectError>>,
{
    match timeouts.within_total(lease).await {
        Ok(lease) => Ok(lease?),
        Err(late) => Err(ForwardError::NotReachedInTime(late)),
    }
}

fn classify(error: hyper::Error, upload: Option<&UploadProgress>, lease: &Lease) -> ForwardError {
    if let Some(failure) = upload.and_then(UploadProgress::failure) {
        return ForwardError::RequestBody(failure.clone());
    }
    match upload {
        _ if error.is_parse() => ForwardError::InvalidResponse(error.into()),
        Some(upload) if is_client_paused(upload) => ForwardError::Exchange {
            source: error,
            is_server_fault: false,
        },
        _ if lease.reused && !lease.has_received() => ForwardError::ReusedClosed(error),
        _ => ForwardError::Exchange {
            source: error,
            is_server_fault: true,
        },
    }
}

/// Whether the client has sent no part of its request body for [`CLIENT_PAUSE`]. A server that closes the connection
/// during such a pause has not failed.
fn is_client_paused(upload: &UploadProgress) -> bool {
    upload.waits_for_client() && upload.last_passed().elapsed() >= CLIENT_PAUSE
}
