//! Settings of `[server]`: what the codecs, the stages and the gateway need to know about connections.
//!
//! The configuration fills them in. They are a module of their own, because layers below the gateway read them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::buffers::BufferBounds;

/// `[server]` of the configuration.
#[derive(Clone, Debug)]
pub(crate) struct ServerSettings {
    /// Addresses to listen on; never empty.
    pub listen: Vec<SocketAddr>,
    /// Number of workers, each a thread; never zero.
    pub workers: usize,
    /// Certificate and key, if the listeners use TLS.
    pub tls: Option<TlsFiles>,
    /// How long a drain waits for requests in flight.
    pub shutdown_grace: Duration,
    /// Timeouts of each part of a request.
    pub deadlines: Deadlines,
    /// Bounds on connections and requests.
    pub caps: Caps,
    /// Bounds on bodies held in memory.
    pub buffers: BufferBounds,
}

/// PEM files of the gateway's own certificate chain and private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// The certificate chain, leaf first.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// Timeouts of a client for each part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadlines {
    /// For the TLS handshake.
    pub handshake: Duration,
    /// For a request's head, from its first byte; and for the first byte of a connection.
    pub head: Duration,
    /// Between two parts of a request's body.
    pub body: Duration,
    /// Between two requests of one connection.
    pub idle: Duration,
    /// For the client to read a part of the response.
    pub write: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(10),
            body: Duration::from_mins(1),
            idle: Duration::from_secs(75),
            write: Duration::from_secs(30),
        }
    }
}

/// Bounds on connections and requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caps {
    /// Connections open at once, over all workers.
    pub connections: usize,
    /// Bytes of a request's head.
    pub head_bytes: usize,
    /// Header lines of a request.
    pub header_lines: usize,
    /// Bytes of a request's body.
    pub body_bytes: u64,
    /// HTTP/2 streams open at once on a connection.
    pub h2_streams: u32,
    /// HTTP/2 streams that a client may reset before the gateway serves them.
    pub h2_resets: usize,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            connections: 65_536,
            head_bytes: 32 * 1024,
            header_lines: 100,
            body_bytes: 4 << 30,
            h2_streams: 128,
            h2_resets: 64,
        }
    }
}
