//! HTTP/2 in detail: requests that are not ended, early responses, drains, slow readers, and responses without a body.

mod curl;
mod cuts;
mod delivery;
mod drain;
pub(crate) mod frames;
mod heads;
mod linger;
mod readers;

use bytes::Bytes;
use h2::client::SendRequest;
use tokio_util::task::AbortOnDropHandle;

use crate::harness::{Gateway, Plan, Upstream};

/// A connection of the `h2` crate's own client. The gateway sees it close when this is dropped.
struct Connection {
    requests: SendRequest<Bytes>,
    _driver: AbortOnDropHandle<Result<(), h2::Error>>,
}

impl Connection {
    /// Connects with a receive window of this many bytes per stream, and a large one for the connection.
    async fn open(gateway: &Gateway, window: u32) -> Self {
        let socket = gateway.client().connect().await.expect("a connection");
        let (requests, connection) = h2::client::Builder::new()
            .initial_window_size(window)
            .initial_connection_window_size(8 << 20)
            .handshake::<_, Bytes>(socket)
            .await
            .expect("a handshake");
        Self {
            requests,
            _driver: AbortOnDropHandle::new(tokio::spawn(connection)),
        }
    }

    async fn ready(&self) -> SendRequest<Bytes> {
        self.requests.clone().ready().await.expect("a connection")
    }
}

/// A request for `path` without a body.
fn request(method: &str, path: &str) -> http::request::Builder {
    http::Request::builder()
        .method(method)
        .uri(format!("http://a{path}"))
}

/// A gateway that rejects all requests for `/limited` but the first, and forwards the others.
fn rejecting(upstream: &Upstream) -> Plan {
    Gateway::with(
        "[upstream.api]\nservers = [\"{upstream}\"]\n\
         [limit.closed]\nkey = \"global\"\nrate = \"1/364d\"\nburst = 0\n\
         [[route]]\nname = \"limited\"\npath = \"/limited\"\nlimits = [\"closed\"]\n\
         [[route]]\nname = \"all\"\npath = \"/\"\n",
    )
    .upstream(upstream)
}
