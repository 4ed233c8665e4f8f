//! Data about a request that several stages use: its client, its connection, and the result of sending it.
//!
//! [`RequestContext`] is a plain struct instead of `http::Extensions`. A stage cannot be called without it, and the
//! compiler checks that it is complete. It contains no configuration, because the pipeline passes each stage its part
//! of the route's rule. [`Arrival`] exists only in the gateway, not in an embedding application.

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::task::TaskTracker;

use crate::access_notes::{AccessLogFields, AccessLogNotes};
use crate::client::Caller;
use crate::metrics::OpenConnection;
use crate::problem::Problem;
use crate::request_id::RequestId;
use crate::respond::Preferences;

/// Data about a request whose client and route are known.
#[derive(Debug)]
pub(crate) struct RequestContext {
    /// The client, and the proxies that its request passed through.
    pub caller: Caller,
    /// Whether the request is a CORS preflight.
    pub is_preflight: bool,
    /// Request headers that select the format of responses that the gateway generates.
    pub preferences: Preferences,
    /// Notes for the access log, if the request is logged.
    pub notes: Option<Arc<AccessLogNotes>>,
}

/// Connection, host and id of a request that the gateway received.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// Connection that received the request.
    pub connection: Arc<ClientConnection>,
    /// Host that the request names.
    pub host: HeaderValue,
    /// Id of the request, from the client or generated.
    pub request_id: RequestId,
}

/// Connection from a client or a proxy in front of the gateway.
#[derive(Debug)]
pub(crate) struct ClientConnection {
    /// Address of the other end of the TCP connection.
    pub peer: IpAddr,
    /// `peer` as a header value, formatted once for all requests of the connection.
    peer_text: HeaderValue,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// Tracks tasks that outlive the connection, such as tunnels.
    pub tasks: TaskTracker,
    permit: Arc<ConnectionPermit>,
}

/// Permit of a connection, counted against `max_connections`. It is released when its last owner is dropped: the
/// connection, or a tunnel that continues after the HTTP connection has ended.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    _counted: OpenConnection,
    /// `None` if the connection was in the kernel's accept queue when the drain began.
    _permit: Option<OwnedSemaphorePermit>,
}

/// Whether the gateway may send a request again after a server may have received it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resend {
    /// Only if the method of the request is idempotent.
    ByMethod,
    /// Never. The route holds an idempotency key whose outcome is unknown.
    Never,
    /// Always. The upstream handles the idempotency key.
    Always,
}

/// Whether a server may have received a request that has no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Provably, no server received the request.
    Unsent,
    /// A server may have received and executed the request.
    PossiblySent,
}

/// Request that failed without a response from upstream.
#[derive(Debug)]
pub struct FailedRequest {
    /// Problem that the client receives.
    pub problem: Problem,
    /// Whether a server may have received the request.
    pub delivery: Delivery,
}

impl From<FailedRequest> for Problem {
    fn from(failed: FailedRequest) -> Self {
        failed.problem
    }
}

impl RequestContext {
    /// Creates the context of a request that `caller` sent with these headers.
    pub(crate) fn new(
        caller: Caller,
        is_preflight: bool,
        headers: &HeaderMap,
        notes: Option<Arc<AccessLogNotes>>,
    ) -> Self {
        Self {
            caller,
            is_preflight,
            preferences: Preferences::of(headers),
            notes,
        }
    }

    /// Calls `change` with the fields of the access log line, if the request is logged.
    pub(crate) fn note(&self, change: impl FnOnce(&mut AccessLogFields)) {
        if let Some(notes) = &self.notes {
            change(&mut notes.fields());
        }
    }
}

impl ClientConnection {
    /// Creates the connection data of `peer`. `scheme` is `http` or `https`.
    pub(crate) fn new(
        peer: IpAddr,
        scheme: &'static str,
        tasks: TaskTracker,
        permit: Arc<ConnectionPermit>,
    ) -> Self {
        let peer_text = HeaderValue::try_from(peer.to_canonical().to_string())
            .expect("an address is visible ASCII");
        Self {
            peer,
            peer_text,
            scheme,
            tasks,
            permit,
        }
    }

    /// Returns the permit, for a task that continues after the connection has ended.
    pub(crate) fn permit(&self) -> Arc<ConnectionPermit> {
        Arc::clone(&self.permit)
    }

    /// Returns the value of `X-Forwarded-For` that upstream receives for a request of `caller`.
    pub(crate) fn forwarded_for(&self, caller: &Caller) -> HeaderValue {
        if caller.chain().len() == 1 {
            self.peer_text.clone()
        } else {
            caller.forwarded_for()
        }
    }
}

impl ConnectionPermit {
    /// Creates a permit from the metric of open connections and the permit of the semaphore.
    pub(crate) fn new(counted: OpenConnection, permit: Option<OwnedSemaphorePermit>) -> Self {
        Self {
            _counted: counted,
            _permit: permit,
        }
    }
}
