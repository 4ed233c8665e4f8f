//! Settings of `[server]`: listeners, workers, timeouts and limits.
//!
//! `config` creates these settings. They are a separate module, because the HTTP codecs and the stages, which are below
//! `config` and `gateway`, read them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::buffers::BufferBounds;

/// Section `[server]` of the configuration.
#[derive(Clone, Debug)]
pub(crate) struct ServerSettings {
    /// Addresses to listen on, at least one.
    pub listen: Vec<SocketAddr>,
    /// Number of worker threads, at least one.
    pub workers: usize,
    /// Certificate and key, if the listeners use TLS.
    pub tls: Option<TlsFiles>,
    /// Longest time that a drain waits for requests in flight.
    pub shutdown_grace: Duration,
    /// Timeouts of clients.
    pub timeouts: ClientTimeouts,
    /// Limits of connections and requests.
    pub limits: ServerLimits,
    /// Bounds on bodies held in memory.
    pub buffers: BufferBounds,
}

/// PEM files for TLS on the listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// Path of the certificate chain, leaf first.
    pub cert: PathBuf,
    /// Path of the private key.
    pub key: PathBuf,
}

/// Timeouts of a client, by what the gateway waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientTimeouts {
    /// TLS handshake (`handshake_timeout`).
    pub handshake: Duration,
    /// Complete request head (`header_timeout`). Starts with the connection, and later with the first byte of the head.
    pub head: Duration,
    /// Next bytes of a request body (`body_timeout`).
    pub body: Duration,
    /// Next request on an idle connection (`idle_timeout`).
    pub idle: Duration,
    /// The client receives some bytes of the response (`write_timeout`).
    pub write: Duration,
}

impl Default for ClientTimeouts {
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

/// Limits of connections and requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerLimits {
    /// Open connections of all workers together.
    pub connections: usize,
    /// Size of a request head, in bytes.
    pub head_bytes: usize,
    /// Header lines of a request.
    pub header_lines: usize,
    /// Size of a request body, in bytes.
    pub body_bytes: u64,
    /// Concurrent HTTP/2 streams of a connection.
    pub h2_streams: u32,
    /// HTTP/2 streams of a connection that the client has reset and the gateway has not served yet.
    pub h2_resets: usize,
}

impl Default for ServerLimits {
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
