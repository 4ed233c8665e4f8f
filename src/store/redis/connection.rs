//! A connection to one server or to a cluster, which are spoken to alike.

use std::fmt;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection, PubSubStream};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ConnectionInfo, FromRedisValue, IntoConnectionInfo,
    Pipeline, ProtocolVersion, RedisConnectionInfo, RedisError, RedisFuture, TlsCertificates,
    Value,
};
use thiserror::Error;

use super::settings::{Node, Nodes, RedisSettings};

/// How often a cluster is asked again when it says that a key is elsewhere by now.
const REDIRECTIONS: u32 = 3;

/// Before it is asked again, in milliseconds: it is moving keys, which is soon over.
const REDIRECTION_PAUSE: (u64, u64) = (2, 16);

/// How long a connection is silent before it is looked after.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Who is connected to.
#[derive(Clone)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one of them in a process"
)]
pub(super) enum Client {
    Single(redis::Client),
    Cluster {
        whole: ClusterClient,
        /// Those that were named, one by one.
        nodes: Vec<redis::Client>,
    },
}

/// A connection; its clones are the same one.
#[derive(Clone)]
pub(super) enum Connection {
    Single(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// A server among those a connection leads to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// The only one.
    Only,
    /// One of a cluster.
    Node { host: String, port: u16 },
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
        Self::with(settings, &certificates).map_err(ClientError::Refused)
    }

    fn with(settings: &RedisSettings, certificates: &TlsCertificates) -> Result<Self, RedisError> {
        let single = |node| single(node, settings, certificates.clone());
        match &settings.nodes {
            Nodes::Single(node) => single(node).map(Self::Single),
            Nodes::Cluster(nodes) => Ok(Self::Cluster {
                whole: cluster(nodes, settings, certificates.clone())?,
                nodes: nodes.iter().map(single).collect::<Result<_, _>>()?,
            }),
        }
    }

    /// What is told on `channel`, for as long as the connection for it stands.
    pub(super) async fn subscribe(&self, channel: &str) -> Result<PubSubStream, RedisError> {
        let client = match self {
            Self::Single(client) => client,
            // Every node of a cluster tells all that is told; another one is tried every time.
            Self::Cluster { nodes, .. } => fastrand::choice(nodes).expect("there is one at least"),
        };
        let mut listening = client.get_async_pubsub().await?;
        listening.subscribe(channel).await?;
        Ok(listening.into_on_message())
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
            Self::Cluster { whole, .. } => {
                let connecting = tokio::time::timeout(within, whole.get_async_connection());
                let connection = connecting.await.unwrap_or_else(|_| {
                    let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
                    Err(late.into())
                });
                connection.map(Connection::Cluster)
            }
        }
    }
}

impl Connection {
    /// All servers that hold something of their own.
    pub(super) async fn places(&mut self) -> Result<Vec<Place>, RedisError> {
        let Self::Cluster(connection) = self else {
            return Ok(vec![Place::Only]);
        };
        let mut asked = redis::cmd("CLUSTER");
        asked.arg("SLOTS");
        let told: Vec<Value> = asked.query_async(connection).await?;
        let mut places: Vec<_> = told.into_iter().filter_map(primary).collect();
        places.sort();
        places.dedup();
        if places.is_empty() {
            let unfit = "a cluster that does not say where its servers are";
            return Err((redis::ErrorKind::Client, unfit).into());
        }
        Ok(places)
    }

    /// Has one of them do something.
    pub(super) async fn ask_at(
        &mut self,
        place: &Place,
        command: Cmd,
    ) -> Result<Value, RedisError> {
        match (self, place) {
            (Self::Cluster(connection), Place::Node { host, port }) => {
                let there = SingleNodeRoutingInfo::ByAddress {
                    host: host.clone(),
                    port: *port,
                };
                let answer = connection.route_command(command, RoutingInfo::SingleNode(there));
                answer.await?.extract_error()
            }
            (connection, _) => command.query_async(connection).await,
        }
    }
}

/// The primary of a range of slots: the first server named behind the first and the last of them.
fn primary(range: Value) -> Option<Place> {
    let Value::Array(range) = range else {
        return None;
    };
    let Value::Array(server) = range.into_iter().nth(2)? else {
        return None;
    };
    let mut server = server.into_iter();
    Some(Place::Node {
        host: String::from_redis_value(server.next()?).ok()?,
        port: u16::from_redis_value(server.next()?).ok()?,
    })
}

/// Nothing waits to be sent along with something else, and a peer that is gone without a word is found out.
fn tcp(settings: &RedisSettings) -> TcpSettings {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE);
    TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive)
        .set_user_timeout(settings.records_timeout * 4)
}

/// A client for one server.
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

/// A client for a whole cluster.
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
