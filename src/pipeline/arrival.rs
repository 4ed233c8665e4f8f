//! What is known of a request when it arrives, whatever it turns out to be.

use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderValue;
use tokio_util::task::TaskTracker;

use crate::access_log::Notes;
use crate::client::Caller;
use crate::gateway::Seat;
use crate::request_id::RequestId;
use crate::upstream::UpstreamId;

/// The connection a request came by.
#[derive(Debug)]
pub struct Connection {
    /// Who is at its other end.
    pub peer: IpAddr,
    /// The same, written once for all its requests.
    peer_text: HeaderValue,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// Keeps account of what outlives it: a tunnel.
    pub tasks: TaskTracker,
    seat: Arc<Seat>,
}

impl Connection {
    /// A connection from `peer`.
    pub fn new(peer: IpAddr, scheme: &'static str, tasks: TaskTracker, seat: Arc<Seat>) -> Self {
        let peer_text = HeaderValue::try_from(peer.to_canonical().to_string())
            .expect("an address is visible ASCII");
        Self {
            peer,
            peer_text,
            scheme,
            tasks,
            seat,
        }
    }

    /// Its place among the open ones, for what outlives it.
    pub fn seat(&self) -> Arc<Seat> {
        Arc::clone(&self.seat)
    }

    /// The way a request of `caller` came, as far as it is believed.
    pub fn forwarded_for(&self, caller: &Caller) -> HeaderValue {
        if caller.chain().len() == 1 {
            self.peer_text.clone()
        } else {
            caller.forwarded_for()
        }
    }
}

/// What is known of a request when it has arrived.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The connection it came by.
    pub connection: Arc<Connection>,
    /// Where it goes.
    pub upstream: UpstreamId,
    /// The host it is for.
    pub host: HeaderValue,
    /// Its id, ours or the client's.
    pub request_id: RequestId,
    /// The notes for its line of the access log, if it is logged.
    pub notes: Option<Arc<Notes>>,
}
