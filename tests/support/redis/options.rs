//! How a server is to be started.

use std::path::Path;
use std::sync::Arc;

use super::{FakeTime, RedisServer};

/// What a server is started with beyond what all are.
#[derive(Clone, Default)]
pub(crate) struct Options {
    pub(super) arguments: Vec<String>,
    pub(super) password: Option<String>,
    pub(super) tls: bool,
    pub(super) clustered: bool,
    pub(super) replica: bool,
    pub(super) time: Option<Arc<FakeTime>>,
}

impl Options {
    /// One more argument as in `redis-server --NAME VALUE`.
    pub(crate) fn arg(self, name: &str, value: impl AsRef<str>) -> Self {
        self.args(name, &[value.as_ref()])
    }

    fn args(mut self, name: &str, values: &[&str]) -> Self {
        self.arguments.push(name.to_owned());
        self.arguments
            .extend(values.iter().map(|&value| value.to_owned()));
        self
    }

    /// What was asked for under this name.
    pub(super) fn given(&self, name: &str) -> Option<&str> {
        let at = self.arguments.iter().rposition(|given| given == name)?;
        self.arguments.get(at + 1).map(String::as_str)
    }

    /// The default user has this password. The URL does not show it, the test's own commands do.
    pub(crate) fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.arg("--requirepass", password)
    }

    /// One more user, with rules as in `ACL SETUSER`: `on >secret ~* &* +@all`.
    pub(crate) fn user(self, name: &str, rules: &str) -> Self {
        let values: Vec<_> = std::iter::once(name)
            .chain(rules.split_whitespace())
            .collect();
        self.args("--user", &values)
    }

    /// Everything is on disk before it is acknowledged, so a restart keeps it.
    pub(crate) fn append_only(self) -> Self {
        self.arg("--appendonly", "yes")
            .arg("--appendfsync", "always")
    }

    /// TLS and nothing else on its port, with this certificate; clients need none.
    pub(crate) fn tls(mut self, certificate: &Path, key: &Path, ca: &Path) -> Self {
        let path = |path: &Path| path.to_str().expect("a path in UTF-8").to_owned();
        self.tls = true;
        self.arg("--tls-cert-file", path(certificate))
            .arg("--tls-key-file", path(key))
            .arg("--tls-ca-cert-file", path(ca))
            .arg("--tls-auth-clients", "no")
    }

    /// A replica of a server without TLS. It is not up before it has all the other has.
    pub(crate) fn replica_of(mut self, other: &RedisServer) -> Self {
        self.replica = true;
        if let Some(password) = &other.options.password {
            self = self.arg("--masterauth", password.clone());
        }
        let port = other.port().to_string();
        self.args("--replicaof", &["127.0.0.1", &port])
    }

    /// Its clock is moved by [`RedisServer::advance`].
    pub(crate) fn fake_time(self) -> Self {
        self.in_time(Arc::new(FakeTime::new()))
    }

    /// Its clock is one that others have too.
    pub(crate) fn in_time(mut self, time: Arc<FakeTime>) -> Self {
        self.time = Some(time);
        self
    }

    /// Starts it, and returns when it answers.
    pub(crate) fn start(self) -> RedisServer {
        RedisServer::launch(self)
    }
}
