//! Settings of the Redis store: addresses, credentials, timeouts and bounds.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Default timeout of the decision on the limits of a request.
pub(crate) const LIMITS_TIMEOUT: Duration = Duration::from_millis(50);

/// Default timeout of one operation on a record.
pub(crate) const RECORDS_TIMEOUT: Duration = Duration::from_millis(500);

/// Default prefix of all names in Redis.
pub(crate) const PREFIX: &str = "tidegate";

/// `[store]` of the configuration, with `backend = "redis"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RedisSettings {
    /// The server, or nodes of the cluster.
    pub nodes: Nodes,
    /// Prefix of all names in Redis. Gateways with the same prefix are one fleet.
    pub prefix: Arc<str>,
    /// The Redis user; overrides the user in the URLs.
    pub user: Option<Arc<str>>,
    /// The password of the user; overrides the password in the URLs.
    pub password: Option<Password>,
    /// Certificates to trust instead of the system's, PEM; only with TLS.
    pub ca_file: Option<PathBuf>,
    /// Timeout of the decision on the limits of a request.
    pub limits_timeout: Duration,
    /// Timeout of one operation on a record.
    pub records_timeout: Duration,
    /// Duration of a claim that is not renewed, as after a crash of its gateway. The outcome of its key is unknown
    /// after that. Longer than any execution that the deadlines of the upstreams allow.
    pub lease: Duration,
    /// Replicas that must have a claim before the request is sent, and a record before its response is.
    pub wait_replicas: Option<NonZeroU32>,
    /// Keys that one client may have; `None` for no bound.
    pub max_keys_per_client: Option<NonZeroU32>,
}

impl RedisSettings {
    /// Returns the name of the Redis user, if one is configured.
    pub(super) fn login(&self) -> Option<&str> {
        let node = self
            .nodes
            .all()
            .first()
            .and_then(|node| node.user.as_deref());
        self.user.as_deref().or(node)
    }

    /// Returns settings for a local server, with long timeouts because the machine may be busy with other tests.
    #[cfg(test)]
    pub(super) fn for_test(port: u16) -> Self {
        Self {
            nodes: Nodes::Single(Node {
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
            limits_timeout: LIMITS_TIMEOUT * 100,
            records_timeout: RECORDS_TIMEOUT * 10,
            lease: Duration::from_mins(1),
            wait_replicas: None,
            max_keys_per_client: None,
        }
    }
}

/// Addresses of Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Nodes {
    /// One server without a cluster.
    Single(Node),
    /// Some nodes of a cluster, which return the others. Never empty, and all with TLS or all without.
    Cluster(Vec<Node>),
}

/// Address of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Host name or IP address, without brackets.
    pub host: Arc<str>,
    /// TCP port.
    pub port: u16,
    /// Whether connections use TLS.
    pub tls: bool,
    /// Number of the database; 0 on a cluster.
    pub database: u32,
    /// The user in its URL.
    pub user: Option<Arc<str>>,
    /// The password in its URL.
    pub password: Option<Password>,
}

/// A password, which `Debug` does not print.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Password(Arc<str>);

impl Password {
    /// Returns the password, for the login to Redis only.
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

impl fmt::Display for Node {
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
    /// Returns all configured nodes.
    pub(crate) fn all(&self) -> &[Node] {
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
