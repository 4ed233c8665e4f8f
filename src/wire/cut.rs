//! The close that says: there should have been more.
//!
//! A response without a length ends with its connection, and an orderly end is the only sign that it
//! is complete. One that breaks off has to end in disorder, whatever it is that breaks it off: so a
//! connection is made to while such a response is on its way, and mended when all of it is out.

use std::io;

use socket2::SockRef;
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A connection that can be made to end in disorder.
pub trait Cut {
    /// When it is closed, the client is to see a reset.
    fn cut(&self);

    /// When it is closed, the client is to see an end.
    fn mend(&self);
}

impl Cut for TcpStream {
    fn cut(&self) {
        told(self.set_zero_linger());
    }

    fn mend(&self) {
        told(SockRef::from(self).set_linger(None));
    }
}

fn told(outcome: io::Result<()>) {
    if let Err(error) = outcome {
        tracing::debug!(%error, "a connection was gone before it could be told how to end");
    }
}

impl<IO: Cut> Cut for TlsStream<IO> {
    // TLS would notice by its missing end anyway, where the client looks at that.
    fn cut(&self) {
        self.get_ref().0.cut();
    }

    fn mend(&self) {
        self.get_ref().0.mend();
    }
}

#[cfg(test)]
impl Cut for tokio::io::DuplexStream {
    fn cut(&self) {}

    fn mend(&self) {}
}
