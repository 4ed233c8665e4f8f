//! Timeouts and limits of client connections, from `[server]` of the configuration.

use std::time::Duration;

/// A connection keeps them after a reload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionSettings {
    pub timeouts: ClientTimeouts,
    pub limits: ServerLimits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientTimeouts {
    /// `handshake_timeout`
    pub handshake: Duration,
    /// `header_timeout`. That of the first request starts with the connection, that of a later one with the first byte
    /// of its head.
    pub head: Duration,
    /// `body_timeout`
    pub body: Duration,
    /// `min_rate`: bytes per second of a request body while the gateway reads it; 0 for none.
    pub min_rate: u64,
    /// `idle_timeout`
    pub idle: Duration,
    /// `write_timeout`
    pub write: Duration,
    /// `tunnel_timeout`, which replaces `write_timeout` on an upgraded connection.
    pub tunnel: Duration,
    /// How long an idle HTTP/1 connection waits for one more request during a drain.
    pub drain: Duration,
}

impl ClientTimeouts {
    /// 1 s, but at most half of `shutdown_grace`. The other half remains for the response to that request.
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
            tunnel: Duration::from_mins(10),
            drain: Duration::from_secs(1),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerLimits {
    /// `max_connections`, over all workers.
    pub connections: usize,
    /// `max_connections_per_client`, at least one.
    pub connections_per_client: usize,
    /// `max_header_bytes`
    pub head_bytes: usize,
    /// `max_headers`
    pub header_lines: usize,
    /// `max_body`
    pub body_bytes: u64,
    /// `h2_max_streams`
    pub h2_streams: u32,
    /// `h2_max_resets`: streams that the client can reset before the gateway has served them.
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
