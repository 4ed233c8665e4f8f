//! Timeouts and limits of client connections, from `[server]` of the configuration.

use std::time::Duration;

/// Settings of a client connection, which it keeps after a reload of the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionSettings {
    pub timeouts: ClientTimeouts,
    pub limits: ServerLimits,
}

/// Timeouts for clients. Each timeout applies to one thing that the gateway waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientTimeouts {
    /// How long a TLS handshake can take (`handshake_timeout`).
    pub handshake: Duration,
    /// How long the gateway waits for a complete request head (`header_timeout`). The timeout of the first request
    /// starts with the connection. The timeout of a later request starts with the first byte of its head.
    pub head: Duration,
    /// How long the gateway waits for the next bytes of a request body (`body_timeout`).
    pub body: Duration,
    /// Minimum average rate of a request body while the gateway reads it, in bytes per second (`min_rate`); 0 for none.
    pub min_rate: u64,
    /// How long an idle connection waits for the next request (`idle_timeout`).
    pub idle: Duration,
    /// How long the gateway waits for the client to receive more bytes of the response (`write_timeout`).
    pub write: Duration,
    /// How long an idle HTTP/1 connection waits for one more request during a drain. See
    /// [`drain_wait`](Self::drain_wait).
    pub drain: Duration,
}

impl ClientTimeouts {
    /// Returns how long an idle HTTP/1 connection waits for one more request during a drain: 1 s, but at most half of
    /// `shutdown_grace`. The other half remains for the response to that request.
    pub(crate) fn drain_wait(shutdown_grace: Duration) -> Duration {
        Duration::from_secs(1).min(shutdown_grace / 2)
    }
}

#[cfg(test)]
impl Default for ClientTimeouts {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(10),
            body: Duration::from_mins(1),
            min_rate: 1_024,
            idle: Duration::from_secs(75),
            write: Duration::from_secs(30),
            drain: Duration::from_secs(1),
        }
    }
}

/// Size limits of requests, and maximum numbers of connections and streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerLimits {
    /// Maximum number of open client connections of all workers together (`max_connections`).
    pub connections: usize,
    /// Maximum number of open connections of one TCP peer that is not a trusted proxy (`max_connections_per_client`), at
    /// least one.
    pub connections_per_client: usize,
    /// Maximum size of a request head, in bytes (`max_header_bytes`).
    pub head_bytes: usize,
    /// Maximum number of header lines of a request (`max_headers`).
    pub header_lines: usize,
    /// Maximum size of a request body, in bytes.
    pub body_bytes: u64,
    /// Maximum number of concurrent HTTP/2 streams of a connection (`h2_max_streams`).
    pub h2_streams: u32,
    /// How many HTTP/2 streams of one connection the client can reset before the gateway has served them
    /// (`h2_max_resets`). If the client resets more streams, the gateway closes the connection.
    pub h2_resets: usize,
}

#[cfg(test)]
impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 65_536,
            connections_per_client: 16_384,
            head_bytes: 32 * 1024,
            header_lines: 100,
            body_bytes: 4 << 30,
            h2_streams: 128,
            h2_resets: 64,
        }
    }
}
