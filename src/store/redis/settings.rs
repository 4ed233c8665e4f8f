//! Settings of the Redis store.

use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::url::{RedisUrlError, redis_url};

/// Default of `store.prefix`.
pub(super) const PREFIX: &str = "tidegate";

/// The section `[store]` of the configuration with `backend = "redis"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RedisSettings {
    pub nodes: Nodes,
    /// Gateways with the same prefix are one fleet.
    pub prefix: Arc<str>,
    /// Overrides the user in the URLs.
    pub user: Option<Arc<str>>,
    /// Overrides the password in the URLs.
    pub password: Option<Password>,
    /// PEM file of the CA certificates to trust instead of those of the system.
    pub ca_file: Option<PathBuf>,
    pub limits_timeout: Duration,
    pub records_timeout: Duration,
    /// How long a claim is valid unless its gateway renews it. Longer than any execution that the timeouts of the
    /// upstreams allow.
    pub lease: Duration,
    /// Number of replicas that must have the claim before the request is sent, and the record before the response is.
    pub wait_replicas: Option<NonZeroU32>,
    pub max_keys_per_client: Option<NonZeroU32>,
}

/// Settings of an application, which has no configuration file: the defaults of `[store]`.
impl TryFrom<&str> for RedisSettings {
    type Error = RedisUrlError;

    fn try_from(url: &str) -> Result<Self, RedisUrlError> {
        Ok(Self {
            nodes: Nodes::Single(redis_url(url)?),
            prefix: PREFIX.into(),
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
    /// The timeouts are long, because other tests can load the machine.
    #[cfg(test)]
    pub(crate) fn for_test(port: u16) -> Self {
        Self {
            limits_timeout: Duration::from_secs(5),
            records_timeout: Duration::from_secs(5),
            ..Self::try_from(format!("redis://127.0.0.1:{port}").as_str()).expect("a valid URL")
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Nodes {
    Single(RedisNode),
    /// Some nodes of a cluster, from which the client discovers the others. Never empty. All use TLS, or none.
    Cluster(Vec<RedisNode>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RedisNode {
    /// An IPv6 address has no brackets.
    pub host: Arc<str>,
    pub port: u16,
    pub tls: bool,
    /// 0 on a cluster.
    pub database: u32,
    pub user: Option<Arc<str>>,
    pub password: Option<Password>,
}

/// A password, which `Debug` does not print.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Password(Arc<str>);

impl Password {
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
