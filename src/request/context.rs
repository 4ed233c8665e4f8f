//! Data that several stages use about a request.
//!
//! [`RequestContext`] is a plain struct instead of `http::Extensions`, so the compiler checks that each stage receives
//! a complete context. It contains no configuration, because the pipeline passes each stage its part of the route's
//! settings. [`Arrival`] exists only in the gateway, not in an embedding application.

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

static CONNECTIONS: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
pub(crate) struct RequestContext {
    pub caller: Caller,
    /// Applications that embed the stages do not set it.
    pub(crate) arrived: Moment,
    pub is_preflight: bool,
    /// Request headers that select the format of responses that the gateway generates.
    pub preferences: Preferences,
    /// `None` if the request is not logged.
    pub notes: Option<Arc<AccessLogNotes>>,
}

#[derive(Debug)]
pub(crate) struct Arrival {
    pub connection: Arc<ClientConnection>,
    pub request_id: RequestId,
    pub test: Option<TestId>,
}

#[derive(Debug)]
pub(crate) struct ClientConnection {
    /// Unique in this process.
    pub number: u64,
    pub peer: IpAddr,
    /// Formatted once for all requests of the connection.
    peer_text: HeaderValue,
    pub scheme: &'static str,
    /// Tasks that continue after the connection has ended, such as tunnels.
    pub tasks: TaskTracker,
    /// Marks the connection as open, and its requests as in flight.
    pub permit: Arc<ConnectionPermit>,
    /// Connections to servers that close with this connection. Only the upstream stage reads them, and their type is in
    /// its layer.
    pub server_connections: Mutex<Box<dyn Any + Send>>,
}

/// After a server may have received the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resend {
    /// Only if the method is idempotent.
    ByMethod,
    /// The route has `on_unknown = "hold"` for requests with an idempotency key.
    Never,
    /// The upstream detects duplicates by the idempotency key.
    Always,
}

/// Whether a request without a response was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// No server received the request, so a retry is safe.
    Unsent,
    /// A server may have executed the request, so a retry can execute it twice.
    PossiblySent,
}

#[derive(Debug)]
pub struct FailedRequest {
    pub problem: Problem,
    pub delivery: Delivery,
}

impl From<FailedRequest> for Problem {
    fn from(failed: FailedRequest) -> Self {
        failed.problem
    }
}

impl RequestContext {
    /// `notes` is `None` if the request is not logged.
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

    /// Does nothing if the request is not logged.
    pub(crate) fn note(&self, change: impl FnOnce(&mut AccessLogFields)) {
        if let Some(notes) = &self.notes {
            change(&mut notes.fields());
        }
    }
}

impl ClientConnection {
    /// `scheme` is `http` or `https`.
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

    /// The value in the request to the upstream.
    pub(crate) fn forwarded_for(&self, caller: &Caller) -> HeaderValue {
        if caller.chain().len() == 1 {
            self.peer_text.clone()
        } else {
            caller.forwarded_for()
        }
    }
}
