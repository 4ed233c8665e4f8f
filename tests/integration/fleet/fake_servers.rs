//! Servers that tests configure as Redis servers, but that do not speak the Redis protocol.

use std::net::{Shutdown, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::support::raw_http::{RawUpstream, UpstreamConnection};

/// Server that is not Redis. Dropping it closes its connections.
pub(crate) struct FakeServer {
    server: RawUpstream,
    connections: Arc<Mutex<Vec<TcpStream>>>,
}

impl FakeServer {
    /// Starts a server that replies with bytes that are not the Redis protocol. Every second connection gets an HTTP 400
    /// response, the others get random bytes.
    pub(crate) fn garbage() -> Self {
        Self::scripted(|connection| {
            let mut random_bytes = [0; 512];
            fastrand::fill(&mut random_bytes);
            // The first byte is 0xff, because no Redis reply begins with it.
            random_bytes[0] = 0xff;
            let reply: &[u8] = if connection.number % 2 == 0 {
                b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"
            } else {
                &random_bytes
            };
            while connection.receive().is_some() {
                connection.send(reply);
            }
        })
    }

    /// Starts a server that accepts connections, reads everything that it receives, and never replies.
    pub(crate) fn silent() -> Self {
        Self::scripted(UpstreamConnection::read_to_close)
    }

    fn scripted(script: fn(&mut UpstreamConnection)) -> Self {
        let connections = Arc::<Mutex<Vec<TcpStream>>>::default();
        let open = Arc::clone(&connections);
        let server = RawUpstream::scripted(move |connection| {
            open.lock().push(connection.stream.try_clone().unwrap());
            script(connection);
        });
        Self {
            server,
            connections,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.server.address)
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        for connection in self.connections.lock().drain(..) {
            // An error is ignored: it means that the client has already closed the connection.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}
