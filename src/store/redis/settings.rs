//! How Redis is reached, and what is asked of it.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How long the decision on a limit may take.
pub const LIMITS_TIMEOUT: Duration = Duration::from_millis(50);

/// How long a step in the life of an idempotency key may take.
pub const RECORDS_TIMEOUT: Duration = Duration::from_millis(500);

/// What every name in Redis begins with.
pub const PREFIX: &str = "tidegate";

/// `[store]` of the configuration, with `backend = "redis"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisSettings {
    /// Where it is.
    pub nodes: Nodes,
    /// What every name in it begins with. Gateways with one prefix are one fleet.
    pub prefix: Arc<str>,
    /// Who we are to it, if not what its addresses say.
    pub user: Option<Arc<str>>,
    /// And how we prove it.
    pub password: Option<Password>,
    /// Certificates to trust instead of the system's, PEM; only with TLS.
    pub ca_file: Option<PathBuf>,
    /// How long the decision on a limit may take.
    pub limits_timeout: Duration,
    /// How long a step in the life of an idempotency key may take.
    pub records_timeout: Duration,
    /// How long a claim holds unless it is renewed: after that a gateway that died is given up, and its
    /// key is unknown. Longer than any execution the upstreams' deadlines allow.
    pub lease: Duration,
    /// Replicas that must have a claim before anything is sent, and an answer before it is given out.
    pub wait_replicas: Option<NonZeroU32>,
    /// Keys that one client may hold; `None` for no bound.
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
}

/// Where Redis is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// One server.
    Single(Node),
    /// Some nodes of a cluster, from which the others are learnt; never empty, all with TLS or all without.
    Cluster(Vec<Node>),
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name or address, without brackets.
    pub host: Arc<str>,
    /// Its port.
    pub port: u16,
    /// Whether it is spoken to in TLS.
    pub tls: bool,
    /// The database in it; 0 on a cluster.
    pub database: u32,
    /// The user in its URL.
    pub user: Option<Arc<str>>,
    /// The password in its URL.
    pub password: Option<Password>,
}

/// A password, which is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Arc<str>);

impl Password {
    /// What is to be shown to Redis and to nobody else.
    pub fn reveal(&self) -> &str {
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
    /// All that are named.
    pub fn all(&self) -> &[Node] {
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
