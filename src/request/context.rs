//! Data that several stages use about a request: its client, its connection, and whether it was sent to a server.
//!
//! [`RequestContext`] is a plain struct instead of `http::Extensions`. So the compiler checks that each stage receives
//! a context, and that the context is complete. The context contains no configuration, because the pipeline passes each
//! stage its part of the route's settings. [`Arrival`] exists only in the gateway, not in an embedding application.

mod key_function;

use std::any::Any;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use tokio_util::task::TaskTracker;

use super::client::Caller;
use super::log_fields::{AccessLogFields, AccessLogNotes};
use super::request_id::RequestId;
use super::test_id::TestId;
use crate::clock::Moment;
use crate::http::connections::ConnectionPermit;
use crate::respond::{Preferences, Problem};

pub use key_function::KeyFunction;

/// Number of client connections so far.
static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

/// Data about a request whose client is identified. All stages receive it.
#[derive(Debug)]
pub(crate) struct RequestContext {
    /// Client that sent the request, and the proxies that the request passed through.
    pub caller: Caller,
    /// Time of arrival. Applications that embed the stages do not set it.
    pub(crate) arrived: Moment,
    /// Whether the request is a CORS preflight.
    pub is_preflight: bool,
    /// Copies of the request headers that select the format of responses that the gateway generates.
    pub preferences: Preferences,
    /// Notes for the access log; `None` if the request is not logged.
    pub notes: Option<Arc<AccessLogNotes>>,
}

/// Connection and id of a request that the gateway received.
#[derive(Debug)]
pub(crate) struct Arrival {
    /// Client connection on which the request arrived.
    pub connection: Arc<ClientConnection>,
    /// Id of the request, which the client sent or the gateway generated.
    pub request_id: RequestId,
    /// Test of the lab that the path named.
    pub test: Option<TestId>,
}

/// Connection to the gateway from a client or from a proxy in front of the gateway.
#[derive(Debug)]
pub(crate) struct ClientConnection {
    /// Number of the connection, unique in this process.
    pub number: u64,
    /// IP address of the other end of the TCP connection.
    pub peer: IpAddr,
    /// `peer` as a header value, formatted once for all requests of the connection.
    peer_text: HeaderValue,
    /// Scheme of the connection: `http` or `https`.
    pub scheme: &'static str,
    /// Tracker of tasks that continue after the connection has ended, such as tunnels.
    pub tasks: TaskTracker,
    /// Marks the connection as open, and its requests as in flight.
    pub permit: Arc<ConnectionPermit>,
    /// Connections to servers that belong to this connection and close with it. Only the upstream stage reads them, and
    /// their type is in its layer.
    pub server_connections: Mutex<Box<dyn Any + Send>>,
}

/// Whether the gateway is allowed to send a request again after a server may have received it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resend {
    /// The gateway sends the request again only if its method is idempotent.
    ByMethod,
    /// The gateway never sends the request again, because the route has `on_unknown = "hold"` for requests with an
    /// idempotency key.
    Never,
    /// The gateway can always send the request again, because the upstream detects duplicates by the idempotency key.
    Always,
}

/// Whether a server may have received a request to which no response arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The gateway knows that no server received the request, so a retry is safe.
    Unsent,
    /// A server may have received and executed the request, so a retry can execute it twice.
    PossiblySent,
}

/// Failure of a request to which the upstream sent no response.
#[derive(Debug)]
pub struct FailedRequest {
    /// Problem response that the client receives.
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
    /// Creates the context of a request that `caller` sent with these headers. `notes` is `None` if the request is not
    /// logged.
    pub(crate) fn new(
        caller: Caller,
        arrived: Moment,
        is_preflight: bool,
        headers: &HeaderMap,
        notes: Option<Arc<AccessLogNotes>>,
    ) -> Self {
        Self {
            caller,
            arrived,
            is_preflight,
            preferences: Preferences::of(headers),
            notes,
        }
    }

    /// Calls `change` with the fields of the access log line. Does nothing if the request is not logged.
    pub(crate) fn note(&self, change: impl FnOnce(&mut AccessLogFields)) {
        if let Some(notes) = &self.notes {
            change(&mut notes.fields());
        }
    }
}

impl ClientConnection {
    /// Creates the data of a connection from `peer`. `scheme` is `http` or `https`.
    pub(crate) fn new(
        peer: IpAddr,
        scheme: &'static str,
        tasks: TaskTracker,
        permit: Arc<ConnectionPermit>,
    ) -> Self {
        let peer_text = HeaderValue::try_from(peer.to_canonical().to_string())
            .expect("an address is visible ASCII");
        Self {
            number: CONNECTIONS.fetch_add(1, Ordering::Relaxed),
            peer,
            peer_text,
            scheme,
            tasks,
            permit,
            server_connections: Mutex::new(Box::new(())),
        }
    }

    /// Returns the value of `X-Forwarded-For` that the upstream receives with a request of `caller`.
    pub(crate) fn forwarded_for(&self, caller: &Caller) -> HeaderValue {
        if caller.chain().len() == 1 {
            self.peer_text.clone()
        } else {
            caller.forwarded_for()
        }
    }
}
