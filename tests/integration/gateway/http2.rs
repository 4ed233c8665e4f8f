//! Tests of HTTP/2: incomplete requests, early responses, drains, slow readers, and responses without a body.

mod curl;
mod drain;
mod early_responses;
pub(crate) mod frames;
mod head_and_continue;
mod incomplete_requests;
mod slow_readers;
mod truncation;

use bytes::Bytes;
use h2::client::SendRequest;
use tokio_util::task::AbortOnDropHandle;

use crate::support::{Gateway, GatewayBuilder, Upstream};

/// HTTP/2 connection to the gateway, made with the client of the `h2` crate. It closes when it is dropped.
pub(super) struct Connection {
    requests: SendRequest<Bytes>,
    _driver: AbortOnDropHandle<Result<(), h2::Error>>,
}

impl Connection {
    /// Opens a connection with a receive window of `window` bytes per stream and 8 MiB for the connection.
    pub(super) async fn open(gateway: &Gateway, window: u32) -> Self {
        let socket = gateway
            .client()
            .connect()
            .await
            .expect("the connection is open");
        let (requests, connection) = h2::client::Builder::new()
            .initial_window_size(window)
            .initial_connection_window_size(8 << 20)
            .handshake::<_, Bytes>(socket)
            .await
            .expect("the handshake succeeds");
        Self {
            requests,
            _driver: AbortOnDropHandle::new(tokio::spawn(connection)),
        }
    }

    pub(super) async fn ready(&self) -> SendRequest<Bytes> {
        self.requests
            .clone()
            .ready()
            .await
            .expect("the connection is open")
    }
}

/// Creates a builder for a request for `path`. The caller adds header fields.
fn request(method: &str, path: &str) -> http::request::Builder {
    http::Request::builder()
        .method(method)
        .uri(format!("http://a{path}"))
}

/// Prepares a gateway with a rate limit that admits only the first request for `/limited`. All requests for other paths
/// are forwarded.
fn rejecting(upstream: &Upstream) -> GatewayBuilder {
    Gateway::with(
        "[upstream.api]\nservers = [\"{upstream}\"]\n\
         [limit.closed]\nkey = \"global\"\nrate = \"1/364d\"\nburst = 0\n\
         [[route]]\nname = \"limited\"\npath = \"/limited\"\nlimits = [\"closed\"]\n\
         [[route]]\nname = \"all\"\npath = \"/\"\n",
    )
    .upstream(upstream)
}
