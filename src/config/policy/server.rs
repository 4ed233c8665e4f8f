//! `[server]`: listeners, workers, timeouts and limits.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::UnixTime;

use super::super::file::ServerSection;
use super::bytes;
use crate::http::settings::{ClientTimeouts, ServerLimits};
use crate::request::buffers::BufferBounds;
use crate::upstream::TunnelSettings;

#[derive(Clone, Debug)]
pub(crate) struct ServerSettings {
    /// At least one.
    pub listen: Vec<SocketAddr>,
    /// At least one.
    pub workers: usize,
    pub tls: Option<ListenerTls>,
    /// Meanwhile the gateway still accepts connections and serves them.
    pub drain_delay: Duration,
    /// For requests in flight during a drain.
    pub shutdown_grace: Duration,
    pub timeouts: ClientTimeouts,
    pub limits: ServerLimits,
    pub buffers: BufferBounds,
    pub tunnels: TunnelSettings,
}

#[derive(Clone, Debug)]
pub(crate) struct ListenerTls {
    pub config: Arc<ServerConfig>,
    /// As in the configuration.
    pub certificate: PathBuf,
    pub expiry: Option<UnixTime>,
}

pub(in crate::config) fn server(
    section: &ServerSection,
    buffers: BufferBounds,
    tls: Option<ListenerTls>,
) -> ServerSettings {
    ServerSettings {
        listen: section.listen.0.iter().map(|l| l.value.0).collect(),
        workers: match section.workers {
            0 => available_parallelism().map_or(1, usize::from),
            workers => workers,
        },
        tls,
        drain_delay: section.drain_delay.0,
        shutdown_grace: section.shutdown_grace.0,
        timeouts: ClientTimeouts {
            handshake: section.handshake_timeout.0,
            head: section.header_timeout.0,
            body: section.body_timeout.0,
            min_rate: section.min_rate.0,
            idle: section.idle_timeout.0,
            write: section.write_timeout.0,
            tunnel: section.tunnel_timeout.0,
            drain: ClientTimeouts::drain_wait(section.shutdown_grace.0),
        },
        limits: ServerLimits {
            connections: section.max_connections,
            connections_per_client: match section.max_connections_per_client {
                0 => (section.max_connections / 4).max(1),
                max => max,
            },
            head_bytes: bytes(&section.max_header_bytes),
            header_lines: section.max_headers,
            body_bytes: section.max_body.0,
            h2_streams: section.h2_max_streams,
            h2_resets: section.h2_max_resets,
        },
        buffers,
        tunnels: TunnelSettings {
            idle: section.tunnel_timeout.0,
            per_client: section.max_tunnels_per_client,
        },
    }
}
