//! The close that says: there should have been more.
//!
//! A response without a length ends with its connection, and an orderly end is the only sign that it
//! is complete. One that broke off has to end in disorder.

use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A connection that can be made to end in disorder.
pub trait Cut {
    /// When it is closed, the client is to see a reset.
    fn cut(&self);
}

impl Cut for TcpStream {
    fn cut(&self) {
        if let Err(error) = self.set_zero_linger() {
            tracing::debug!(%error, "a connection to be reset was gone before");
        }
    }
}

impl<IO: Cut> Cut for TlsStream<IO> {
    fn cut(&self) {
        // TLS would notice by its missing end anyway, where the client looks at that.
        self.get_ref().0.cut();
    }
}

#[cfg(test)]
impl Cut for tokio::io::DuplexStream {
    fn cut(&self) {}
}
