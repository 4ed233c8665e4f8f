//! A connection to one server or to a cluster, which are spoken to alike.

use std::fmt;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, Pipeline,
    ProtocolVersion, RedisConnectionInfo, RedisError, RedisFuture, TlsCertificates, Value,
};
use thiserror::Error;

use super::settings::{Node, Nodes, RedisSettings};

/// How often a cluster is asked again when it says that a key is elsewhere by now.
const REDIRECTIONS: u32 = 3;

/// Before it is asked again, in milliseconds: it is moving keys, which is soon over.
const REDIRECTION_PAUSE: (u64, u64) = (2, 16);

/// Who is connected to.
#[derive(Clone)]
pub(super) enum Client {
    Single(redis::Client),
    Cluster(ClusterClient),
}

/// A connection; its clones are the same one.
#[derive(Clone)]
pub(super) enum Connection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// Why there is nobody to connect to.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The certificates cannot be read.
    #[error("cannot read the certificates in {path}")]
    Certificates {
        /// The file.
        path: String,
        /// Why.
        #[source]
        error: std::io::Error,
    },
    /// The client takes none of it.
    #[error("cannot set up a client for Redis")]
    Refused(#[source] RedisError),
}

impl Client {
    pub(super) fn new(settings: &RedisSettings) -> Result<Self, ClientError> {
        // TLS takes whichever provider the process has named; another may be linked in.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let root_cert = match &settings.ca_file {
            None => None,
            Some(path) => Some(
                std::fs::read(path).map_err(|error| ClientError::Certificates {
                    path: path.display().to_string(),
                    error,
                })?,
            ),
        };
        let certificates = TlsCertificates {
            client_tls: None,
            root_cert,
        };
        Self::with(settings, certificates).map_err(ClientError::Refused)
    }

    fn with(settings: &RedisSettings, certificates: TlsCertificates) -> Result<Self, RedisError> {
        match &settings.nodes {
            Nodes::Single(node) => {
                let info = info(node, settings)?;
                let client = if node.tls {
                    redis::Client::build_with_tls(info, certificates)
                } else {
                    redis::Client::open(info)
                };
                client.map(Self::Single)
            }
            Nodes::Cluster(nodes) => {
                let infos: Result<Vec<_>, _> =
                    nodes.iter().map(|node| info(node, settings)).collect();
                let (soonest, latest) = REDIRECTION_PAUSE;
                let mut builder = ClusterClient::builder(infos?)
                    .use_protocol(ProtocolVersion::RESP3)
                    .retries(REDIRECTIONS)
                    .min_retry_wait(soonest)
                    .max_retry_wait(latest)
                    .connection_timeout(settings.records_timeout)
                    .response_timeout(settings.records_timeout);
                if nodes.iter().any(|node| node.tls) {
                    builder = builder.certs(certificates);
                }
                builder.build().map(Self::Cluster)
            }
        }
    }

    /// Connects, within so long.
    pub(super) async fn connect(&self, within: Duration) -> Result<Connection, RedisError> {
        match self {
            Self::Single(client) => {
                // Each request has a deadline of its own.
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(within))
                    .set_response_timeout(None);
                let connection = client.get_multiplexed_async_connection_with_config(&config);
                connection.await.map(Connection::Single)
            }
            Self::Cluster(client) => {
                let connecting = tokio::time::timeout(within, client.get_async_connection());
                let connection = connecting.await.unwrap_or_else(|_| {
                    let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
                    Err(late.into())
                });
                connection.map(Connection::Cluster)
            }
        }
    }
}

/// How `node` is connected to.
fn info(node: &Node, settings: &RedisSettings) -> Result<ConnectionInfo, RedisError> {
    let host = node.host.to_string();
    let address = if node.tls {
        ConnectionAddr::TcpTls {
            host,
            port: node.port,
            insecure: false,
            tls_params: None,
        }
    } else {
        ConnectionAddr::Tcp(host, node.port)
    };
    let mut login = RedisConnectionInfo::default()
        .set_protocol(ProtocolVersion::RESP3)
        .set_db(node.database.into())
        .set_lib_name("tidegate", env!("CARGO_PKG_VERSION"));
    if let Some(user) = settings.user.as_ref().or(node.user.as_ref()) {
        login = login.set_username(user);
    }
    if let Some(password) = settings.password.as_ref().or(node.password.as_ref()) {
        login = login.set_password(password.reveal());
    }
    Ok(address.into_connection_info()?.set_redis_settings(login))
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::Single(connection) => connection.req_packed_command(cmd),
            Self::Cluster(connection) => connection.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::Single(connection) => connection.req_packed_commands(pipeline, offset, count),
            Self::Cluster(connection) => connection.req_packed_commands(pipeline, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::Single(connection) => connection.get_db(),
            Self::Cluster(connection) => connection.get_db(),
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Client(..)")
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection(..)")
    }
}
