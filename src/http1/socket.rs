//! What a connection needs of a client's socket besides reading and writing.
//!
//! A response without a length ends with its connection, and only an orderly end tells the client that it is
//! complete. A truncated one has to end with a reset, whatever truncates it: so the socket is set to reset when
//! it is closed while such a response is being sent, and set back when the response is complete.

use std::io;

use socket2::SockRef;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::net;

/// The socket of a client, with or without TLS.
pub trait ClientSocket {
    /// Makes a close of this socket a reset.
    fn reset_on_close(&self);

    /// Makes a close of this socket orderly again.
    fn end_on_close(&self);

    /// Returns how many sent bytes the client has not acknowledged, if the kernel tells.
    fn unacknowledged(&self) -> Option<u32>;
}

impl ClientSocket for TcpStream {
    fn reset_on_close(&self) {
        log_failure(self.set_zero_linger());
    }

    fn end_on_close(&self) {
        log_failure(SockRef::from(self).set_linger(None));
    }

    fn unacknowledged(&self) -> Option<u32> {
        net::unacknowledged(self)
    }
}

fn log_failure(outcome: io::Result<()>) {
    if let Err(error) = outcome {
        tracing::debug!(%error, "socket option not set, connection already closed");
    }
}

impl<IO: ClientSocket> ClientSocket for TlsStream<IO> {
    // A client that checks for TLS's own end notices a truncated response without a reset.
    fn reset_on_close(&self) {
        self.get_ref().0.reset_on_close();
    }

    fn end_on_close(&self) {
        self.get_ref().0.end_on_close();
    }

    fn unacknowledged(&self) -> Option<u32> {
        self.get_ref().0.unacknowledged()
    }
}

#[cfg(test)]
impl ClientSocket for tokio::io::DuplexStream {
    fn reset_on_close(&self) {}

    fn end_on_close(&self) {}

    fn unacknowledged(&self) -> Option<u32> {
        None
    }
}
