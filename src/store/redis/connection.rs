//! One interface for a single Redis server and a cluster.

use std::fmt;
use std::future::Future;
use std::io;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::RoutingInfo;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ConnectionInfo, FromRedisValue, IntoConnectionInfo,
    Pipeline, ProtocolVersion, RedisConnectionInfo, RedisError, RedisFuture, TlsCertificates,
    Value,
};

use super::RedisOpenError;
use super::settings::{Nodes, RedisNode, RedisSettings};

/// Without a cluster, `Random` addresses the only server.
pub(super) use redis::cluster_routing::SingleNodeRoutingInfo as ServerRoute;

/// Maximum number of redirections that a call to a cluster follows.
const REDIRECTIONS: u32 = 3;

/// Shortest and longest pause after a redirection, in milliseconds. A cluster redirects calls while it moves Redis keys
/// to another server.
const REDIRECTION_PAUSE: (u64, u64) = (2, 16);

/// How long a connection is idle before the first TCP keepalive probe. The same time passes between two probes.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// The configured server or cluster.
#[derive(Clone)]
pub(super) enum Endpoint {
    /// Connecting can take the duration.
    Single(Box<redis::Client>, Duration),
    Cluster(Box<ClusterClient>, Duration),
}

/// Clones share the sockets.
#[derive(Clone)]
pub(super) enum RedisConnection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Endpoint {
    pub(super) fn new(settings: &RedisSettings) -> Result<Self, RedisOpenError> {
        if settings.nodes.all().iter().any(|node| node.tls) {
            // An error is ignored: it means that a default TLS provider is already set. The Redis library needs this
            // default, because several providers are linked.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let read = |path: &std::path::PathBuf| {
            std::fs::read(path).map_err(|error| RedisOpenError::Certificates {
                path: path.display().to_string(),
                error,
            })
        };
        let certificates = TlsCertificates {
            client_tls: None,
            root_cert: settings.ca_file.as_ref().map(read).transpose()?,
        };
        let timeout = settings.records_timeout;
        let endpoint = match &settings.nodes {
            Nodes::Single(node) => {
                let client = single_client(node, settings, certificates);
                client.map(|client| Self::Single(Box::new(client), timeout))
            }
            Nodes::Cluster(nodes) => {
                let client = cluster_client(nodes, settings, certificates);
                client.map(|client| Self::Cluster(Box::new(client), timeout))
            }
        };
        endpoint.map_err(RedisOpenError::Settings)
    }

    pub(super) async fn connect(&self) -> Result<RedisConnection, RedisError> {
        match self {
            Self::Single(server, timeout) => {
                // The connection has no response timeout, because each call has its own deadline.
                let config = AsyncConnectionConfig::new()
                    .set_connection_timeout(Some(*timeout))
                    .set_response_timeout(None);
                let connection = server.get_multiplexed_async_connection_with_config(&config);
                connection.await.map(RedisConnection::Single)
            }
            Self::Cluster(cluster, timeout) => {
                let connection = with_timeout(*timeout, cluster.get_async_connection()).await;
                connection.map(RedisConnection::Cluster)
            }
        }
    }
}

impl RedisConnection {
    /// All primaries of the cluster, or the only server.
    pub(super) async fn servers(&mut self) -> Result<Vec<ServerRoute>, RedisError> {
        let Self::Cluster(connection) = self else {
            return Ok(vec![ServerRoute::Random]);
        };
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let ranges: Vec<Value> = command.query_async(connection).await?;
        let mut primaries: Vec<_> = ranges.into_iter().filter_map(primary).collect();
        primaries.sort();
        primaries.dedup();
        if primaries.is_empty() {
            let reason = "the cluster has no primary: CLUSTER SLOTS returned no servers";
            return Err((redis::ErrorKind::Client, reason).into());
        }
        let server = |(host, port)| ServerRoute::ByAddress { host, port };
        Ok(primaries.into_iter().map(server).collect())
    }

    pub(super) async fn query_server(
        &mut self,
        server: &ServerRoute,
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

/// Fails with [`io::ErrorKind::TimedOut`].
pub(super) async fn with_timeout<T>(
    within: Duration,
    step: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, RedisError> {
    let late = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
    tokio::time::timeout(within, step)
        .await
        .unwrap_or_else(late)
}

/// Parses an entry of the reply to CLUSTER SLOTS: first slot, last slot, primary, replicas.
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

/// The keepalive and the user timeout detect a server that is gone without a TCP reset.
fn tcp_settings(settings: &RedisSettings) -> TcpSettings {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE);
    TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive)
        .set_user_timeout(settings.records_timeout * 4)
}

fn single_client(
    node: &RedisNode,
    settings: &RedisSettings,
    certificates: TlsCertificates,
) -> Result<redis::Client, RedisError> {
    let info = connection_info(node, settings)?;
    if node.tls {
        redis::Client::build_with_tls(info, certificates)
    } else {
        redis::Client::open(info)
    }
}

fn cluster_client(
    nodes: &[RedisNode],
    settings: &RedisSettings,
    certificates: TlsCertificates,
) -> Result<ClusterClient, RedisError> {
    let infos: Result<Vec<_>, _> = nodes
        .iter()
        .map(|node| connection_info(node, settings))
        .collect();
    let (shortest, longest) = REDIRECTION_PAUSE;
    let mut builder = ClusterClient::builder(infos?)
        .use_protocol(ProtocolVersion::RESP3)
        .retries(REDIRECTIONS)
        .min_retry_wait(shortest)
        .max_retry_wait(longest)
        .connection_timeout(settings.records_timeout)
        .response_timeout(settings.records_timeout)
        .tcp_settings(tcp_settings(settings));
    if nodes.iter().any(|node| node.tls) {
        builder = builder.certs(certificates);
    }
    builder.build()
}

/// A user or password in `settings` overrides the one in the URL.
fn connection_info(
    node: &RedisNode,
    settings: &RedisSettings,
) -> Result<ConnectionInfo, RedisError> {
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
        .set_tcp_settings(tcp_settings(settings)))
}

impl ConnectionLike for RedisConnection {
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

impl fmt::Debug for RedisConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RedisConnection(..)")
    }
}

#[cfg(test)]
mod tests {
    use rustls::crypto::CryptoProvider;

    use super::*;

    #[test]
    fn only_tls_installs_a_cryptography_provider() {
        let open = |url| Endpoint::new(&RedisSettings::try_from(url).unwrap()).unwrap();
        open("redis://127.0.0.1");
        // nextest runs each test in its own process. `cargo test` runs other tests in this process, and they can install
        // a provider.
        if std::env::var_os("NEXTEST").is_some() {
            assert!(CryptoProvider::get_default().is_none());
        }
        open("rediss://127.0.0.1");
        assert!(CryptoProvider::get_default().is_some());
    }
}
