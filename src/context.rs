//! What several stages know of a request: facts of its arrival, and the result of sending it.
//!
//! [`RequestContext`] is what the stages pass on, as a plain struct instead of `http::Extensions`: a stage cannot be called
//! without it, and the compiler checks that it is complete. It contains no configuration: the pipeline passes each stage
//! its part of the route's rule. [`Arrival`] is only known in the gateway, not in an embedding application.

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderValue};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::task::TaskTracker;

use crate::access_log::{Facts, Notes};
use crate::client::Caller;
use crate::metrics::Connected;
use crate::problem::Problem;
use crate::request_id::RequestId;
use crate::respond::Preferences;

/// Facts of a request whose client and route are known.
#[derive(Debug)]
pub(crate) struct RequestContext {
    /// The client, and the proxies that its request passed.
    pub caller: Caller,
    /// Whether the request is a CORS preflight.
    pub is_preflight: bool,
    /// The form of responses that the gateway makes.
    pub preferences: Preferences,
    /// Notes for the access log, if the request is logged.
    pub notes: Option<Arc<Notes>>,
}

/// How a request reached the gateway.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// The connection that received it.
    pub connection: Arc<Connection>,
    /// The host that it is for.
    pub host: HeaderValue,
    /// Its id, from the client or generated.
    pub request_id: RequestId,
}

/// A client connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Address of the peer.
    pub peer: IpAddr,
    /// `peer` as a header value, formatted once for all requests.
    peer_text: HeaderValue,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// Tracks tasks that outlive the connection, such as tunnels.
    pub tasks: TaskTracker,
    permit: Arc<ConnectionPermit>,
}

/// The place of a connection among those that may be open. It is released when the last holder drops it: the
/// connection, or a tunnel that outlives its HTTP.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    _counted: Connected,
    /// `None` for a connection that the kernel had queued when the drain began.
    _permit: Option<OwnedSemaphorePermit>,
}

/// Whether a request may be sent again although a server may have received it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resend {
    /// If its method is idempotent.
    ByMethod,
    /// No, whatever its method: its idempotency key is held if its outcome becomes unknown.
    Never,
    /// Yes: the upstream handles its idempotency key.
    Always,
}

/// Why a request has no response, as far as its execution is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undone {
    /// Provably, no server received the request.
    Unsent,
    /// A server may have received the request.
    Lost,
}

/// A request without a response.
#[derive(Debug)]
pub struct Failed {
    /// What the client receives instead.
    pub problem: Problem,
    /// Whether the request may have been executed.
    pub undone: Undone,
}

impl From<Failed> for Problem {
    fn from(failed: Failed) -> Self {
        failed.problem
    }
}

impl RequestContext {
    /// Creates the context of a request of `caller` with these headers.
    pub(crate) fn new(
        caller: Caller,
        is_preflight: bool,
        headers: &HeaderMap,
        notes: Option<Arc<Notes>>,
    ) -> Self {
        Self {
            caller,
            is_preflight,
            preferences: Preferences::of(headers),
            notes,
        }
    }

    /// Changes the notes for the access log, if the request is logged.
    pub(crate) fn note(&self, change: impl FnOnce(&mut Facts)) {
        if let Some(notes) = &self.notes {
            change(&mut notes.facts());
        }
    }
}

impl Connection {
    /// Creates a connection from `peer`.
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

    /// Returns the permit, for a task that outlives the connection.
    pub(crate) fn permit(&self) -> Arc<ConnectionPermit> {
        Arc::clone(&self.permit)
    }

    /// Returns the `X-Forwarded-For` that upstream receives for a request of `caller`.
    pub(crate) fn forwarded_for(&self, caller: &Caller) -> HeaderValue {
        if caller.chain().len() == 1 {
            self.peer_text.clone()
        } else {
            caller.forwarded_for()
        }
    }
}

impl ConnectionPermit {
    /// Combines the count of a connection with its permit.
    pub(crate) fn new(counted: Connected, permit: Option<OwnedSemaphorePermit>) -> Self {
        Self {
            _counted: counted,
            _permit: permit,
        }
    }
}
