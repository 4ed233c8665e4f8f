//! Settings of the Redis store: addresses, credentials, timeouts and maximum sizes.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::url::{RedisUrlError, redis_url};

/// Prefix of the Redis keys in tests.
#[cfg(test)]
pub(super) const PREFIX: &str = "tidegate";

/// The section `[store]` of the configuration with `backend = "redis"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RedisSettings {
    /// Address of the server, or addresses of cluster nodes.
    pub nodes: Nodes,
    /// Prefix of all Redis keys. Gateways with the same prefix are one fleet.
    pub prefix: Arc<str>,
    /// The Redis user. It overrides the user in the URLs.
    pub user: Option<Arc<str>>,
    /// The password of the Redis user. It overrides the password in the URLs.
    pub password: Option<Password>,
    /// PEM file of the CA certificates to trust instead of those of the system. Used only with TLS.
    pub ca_file: Option<PathBuf>,
    /// Timeout of the call that charges the rate limits of a request.
    pub limits_timeout: Duration,
    /// Timeout of one operation on an idempotency record.
    pub records_timeout: Duration,
    /// How long a claim is valid unless its gateway renews it. The outcome of an expired claim is unknown. The lease is
    /// longer than any execution that the timeouts of the upstreams allow.
    pub lease: Duration,
    /// Number of replicas that the gateway waits for. They must have the claim before the request is sent upstream.
    /// They must have the record before the response is sent to the client. If this is `None`, the gateway does not
    /// wait for replicas.
    pub wait_replicas: Option<NonZeroU32>,
    /// Maximum number of idempotency keys of one client, or `None` for no maximum.
    pub max_keys_per_client: Option<NonZeroU32>,
}

/// Settings of an application, which has no configuration file. The defaults are those of `[store]`.
impl TryFrom<&str> for RedisSettings {
    type Error = RedisUrlError;

    /// Creates the settings for the server at this URL.
    fn try_from(url: &str) -> Result<Self, RedisUrlError> {
        Ok(Self {
            nodes: Nodes::Single(redis_url(url)?),
            prefix: "tidegate".into(),
            user: None,
            password: None,
            ca_file: None,
            limits_timeout: Duration::from_millis(50),
            records_timeout: Duration::from_millis(500),
            lease: Duration::from_mins(1),
            wait_replicas: None,
            max_keys_per_client: None,
        })
    }
}

impl RedisSettings {
    /// Returns the configured name of the Redis user, or `None` for the default user.
    pub(super) fn user_name(&self) -> Option<&str> {
        let node = self
            .nodes
            .all()
            .first()
            .and_then(|node| node.user.as_deref());
        self.user.as_deref().or(node)
    }

    /// Creates settings for a server on this machine. The timeouts are long, because other tests can load the machine.
    #[cfg(test)]
    pub(super) fn for_test(port: u16) -> Self {
        Self {
            nodes: Nodes::Single(RedisNode {
                host: "127.0.0.1".into(),
                port,
                tls: false,
                database: 0,
                user: None,
                password: None,
            }),
            prefix: PREFIX.into(),
            user: None,
            password: None,
            ca_file: None,
            limits_timeout: Duration::from_secs(5),
            records_timeout: Duration::from_secs(5),
            lease: Duration::from_mins(1),
            wait_replicas: None,
            max_keys_per_client: None,
        }
    }
}

/// Addresses of a Redis server or cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Nodes {
    /// A single server, not in cluster mode.
    Single(RedisNode),
    /// Nodes of a cluster. The client discovers further nodes from them. The list is never empty. Either all nodes use
    /// TLS, or none of them.
    Cluster(Vec<RedisNode>),
}

/// Address and credentials of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RedisNode {
    /// Host name or IP address. An IPv6 address has no brackets.
    pub host: Arc<str>,
    /// TCP port.
    pub port: u16,
    /// Whether connections use TLS.
    pub tls: bool,
    /// Number of the Redis database; 0 on a cluster.
    pub database: u32,
    /// The Redis user in the URL.
    pub user: Option<Arc<str>>,
    /// The password in the URL.
    pub password: Option<Password>,
}

/// A password, which `Debug` does not print.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Password(Arc<str>);

impl Password {
    /// Returns the password in plain text, for authentication to Redis.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Password {
    fn from(password: &str) -> Self {
        Self(password.into())
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

impl fmt::Display for RedisNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "rediss" } else { "redis" };
        if self.host.contains(':') {
            write!(f, "{scheme}://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{scheme}://{}:{}", self.host, self.port)
        }
    }
}

impl Nodes {
    /// Returns the configured nodes. A single server is one node.
    pub(crate) fn all(&self) -> &[RedisNode] {
        match self {
            Self::Single(node) => std::slice::from_ref(node),
            Self::Cluster(nodes) => nodes,
        }
    }
}

impl fmt::Display for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, node) in self.all().iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{node}")?;
        }
        Ok(())
    }
}
