//! Connections to a single Redis server or to a cluster, with one interface for both.

use std::fmt;
use std::future::Future;
use std::io;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection, PubSubStream};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::RoutingInfo;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ConnectionInfo, FromRedisValue, IntoConnectionInfo,
    Pipeline, ProtocolVersion, RedisConnectionInfo, RedisError, RedisFuture, TlsCertificates,
    Value,
};

use super::OpenError;
use super::settings::{Node, Nodes, RedisSettings};

/// A server of a connection; `Random` for the only server of a connection without a cluster.
pub(super) use redis::cluster_routing::SingleNodeRoutingInfo as Server;

/// Number of times that a cluster is queried again after a redirection.
const REDIRECTIONS: u32 = 3;

/// Shortest and longest pause after a redirection, in milliseconds. The cluster is moving keys then.
const REDIRECTION_PAUSE: (u64, u64) = (2, 16);

/// Idle time before the first TCP keepalive probe, and between two of them.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// The configured servers, with credentials and TLS.
#[derive(Clone)]
pub(super) struct Endpoint {
    /// The only server, or the configured nodes of the cluster. Never empty.
    nodes: Vec<redis::Client>,
    cluster: Option<ClusterClient>,
    /// Bound of the time to connect or to subscribe.
    timeout: Duration,
}

/// A multiplexed connection; its clones share the sockets.
#[derive(Clone)]
pub(super) enum Connection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Endpoint {
    pub(super) fn new(settings: &RedisSettings) -> Result<Self, OpenError> {
        // The Redis library uses the default TLS provider of the process, which must be set if several are linked.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let read = |path: &std::path::PathBuf| {
            std::fs::read(path).map_err(|error| OpenError::Certificates {
                path: path.display().to_string(),
                error,
            })
        };
        let certificates = TlsCertificates {
            client_tls: None,
            root_cert: settings.ca_file.as_ref().map(read).transpose()?,
        };
        Self::with(settings, &certificates).map_err(OpenError::Settings)
    }

    fn with(settings: &RedisSettings, certificates: &TlsCertificates) -> Result<Self, RedisError> {
        let nodes = settings.nodes.all().iter();
        Ok(Self {
            nodes: nodes
                .map(|node| single(node, settings, certificates.clone()))
                .collect::<Result<_, _>>()?,
            cluster: match &settings.nodes {
                Nodes::Single(_) => None,
                Nodes::Cluster(nodes) => Some(cluster(nodes, settings, certificates.clone())?),
            },
            timeout: settings.records_timeout,
        })
    }

    /// Opens a connection for messages on `channel`. The stream ends when the connection is lost.
    pub(super) async fn subscribe(&self, channel: &str) -> Result<PubSubStream, RedisError> {
        // Each node of a cluster delivers all messages. A random one, in case one of them is down.
        let node = fastrand::choice(&self.nodes).expect("there is a node");
        let subscribe = async {
            let mut subscription = node.get_async_pubsub().await?;
            subscription.subscribe(channel).await?;
            Ok(subscription.into_on_message())
        };
        in_time(self.timeout, subscribe).await
    }

    pub(super) async fn connect(&self) -> Result<Connection, RedisError> {
        if let Some(cluster) = &self.cluster {
            let connection = in_time(self.timeout, cluster.get_async_connection()).await;
            return connection.map(Connection::Cluster);
        }
        // Each call has its own deadline.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(None);
        let connection = self.nodes[0].get_multiplexed_async_connection_with_config(&config);
        connection.await.map(Connection::Single)
    }
}

impl Connection {
    /// Returns all servers that hold data of their own.
    pub(super) async fn servers(&mut self) -> Result<Vec<Server>, RedisError> {
        let Self::Cluster(connection) = self else {
            return Ok(vec![Server::Random]);
        };
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let ranges: Vec<Value> = command.query_async(connection).await?;
        let mut primaries: Vec<_> = ranges.into_iter().filter_map(primary).collect();
        primaries.sort();
        primaries.dedup();
        if primaries.is_empty() {
            let unfit = "a cluster that does not say where its servers are";
            return Err((redis::ErrorKind::Client, unfit).into());
        }
        let server = |(host, port)| Server::ByAddress { host, port };
        Ok(primaries.into_iter().map(server).collect())
    }

    /// Runs a command on one of the [`servers`](Self::servers).
    pub(super) async fn query_server(
        &mut self,
        server: &Server,
        command: Cmd,
    ) -> Result<Value, RedisError> {
        match self {
            Self::Single(connection) => command.query_async(connection).await,
            Self::Cluster(connection) => {
                let route = RoutingInfo::SingleNode(server.clone());
                let reply = connection.route_command(command, route);
                reply.await?.extract_error()
            }
        }
    }
}

/// Fails with [`io::ErrorKind::TimedOut`] if `step` takes longer than `within`.
pub(super) async fn in_time<T>(
    within: Duration,
    step: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, RedisError> {
    let late = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
    tokio::time::timeout(within, step)
        .await
        .unwrap_or_else(late)
}

/// Returns host and port of the primary of a range of slots: the server after the first and the last slot.
fn primary(range: Value) -> Option<(String, u16)> {
    let Value::Array(range) = range else {
        return None;
    };
    let Value::Array(server) = range.into_iter().nth(2)? else {
        return None;
    };
    let mut server = server.into_iter();
    let host = String::from_redis_value(server.next()?).ok()?;
    let port = u16::from_redis_value(server.next()?).ok()?;
    Some((host, port))
}

/// Returns socket options without Nagle's algorithm, and with detection of a server that is gone without a reset.
fn tcp(settings: &RedisSettings) -> TcpSettings {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE);
    TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive)
        .set_user_timeout(settings.records_timeout * 4)
}

fn single(
    node: &Node,
    settings: &RedisSettings,
    certificates: TlsCertificates,
) -> Result<redis::Client, RedisError> {
    let info = info(node, settings)?;
    if node.tls {
        redis::Client::build_with_tls(info, certificates)
    } else {
        redis::Client::open(info)
    }
}

fn cluster(
    nodes: &[Node],
    settings: &RedisSettings,
    certificates: TlsCertificates,
) -> Result<ClusterClient, RedisError> {
    let infos: Result<Vec<_>, _> = nodes.iter().map(|node| info(node, settings)).collect();
    let (soonest, latest) = REDIRECTION_PAUSE;
    let mut builder = ClusterClient::builder(infos?)
        .use_protocol(ProtocolVersion::RESP3)
        .retries(REDIRECTIONS)
        .min_retry_wait(soonest)
        .max_retry_wait(latest)
        .connection_timeout(settings.records_timeout)
        .response_timeout(settings.records_timeout)
        .tcp_settings(tcp(settings));
    if nodes.iter().any(|node| node.tls) {
        builder = builder.certs(certificates);
    }
    builder.build()
}

/// Returns the address of `node` with its credentials.
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
    let info = address.into_connection_info()?;
    Ok(info
        .set_redis_settings(login)
        .set_tcp_settings(tcp(settings)))
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

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Endpoint(..)")
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connection(..)")
    }
}
