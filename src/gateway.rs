//! Binding, accepting, workers, draining.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// `[server]` of the configuration.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// Where to listen; never empty.
    pub listen: Vec<SocketAddr>,
    /// Workers, each a thread; never zero.
    pub workers: usize,
    /// Certificate and key, where the listeners speak TLS.
    pub tls: Option<TlsFiles>,
    /// How long a drain waits for what is in flight.
    pub shutdown_grace: Duration,
    /// How long a client may take over each part of a request.
    pub deadlines: Deadlines,
    /// What one client or all of them together may take up.
    pub caps: Caps,
}

/// PEM files of the gateway's own certificate chain and private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain, leaf first.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// How long a client may take over each part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// For the TLS handshake.
    pub handshake: Duration,
    /// For a request's head, from its first byte (from the connection's start for the first).
    pub head: Duration,
    /// Between two parts of a request's body.
    pub body: Duration,
    /// Between two requests of one connection.
    pub idle: Duration,
    /// For the client to take some of what is being sent to it.
    pub write: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(10),
            body: Duration::from_secs(30),
            idle: Duration::from_secs(75),
            write: Duration::from_secs(30),
        }
    }
}

/// What one client or all of them together may take up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
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
    /// HTTP/2 streams a client may reset before they were taken up.
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
