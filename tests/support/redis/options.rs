//! Options of a Redis server that a test starts.

use std::path::Path;
use std::sync::Arc;

use super::{FakeTime, RedisServer};

/// Options of a Redis server, in addition to those that all servers of the tests have.
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
    /// Adds an argument of `redis-server`. `name` includes the dashes, for example `--maxmemory`.
    pub(crate) fn arg(self, name: &str, value: impl AsRef<str>) -> Self {
        self.args(name, &[value.as_ref()])
    }

    fn args(mut self, name: &str, values: &[&str]) -> Self {
        self.arguments.push(name.to_owned());
        self.arguments
            .extend(values.iter().map(|&value| value.to_owned()));
        self
    }

    /// Returns the value of the last argument with this name, or `None` if there is none.
    pub(super) fn value_of(&self, name: &str) -> Option<&str> {
        let at = self
            .arguments
            .iter()
            .rposition(|argument| argument == name)?;
        self.arguments.get(at + 1).map(String::as_str)
    }

    /// Sets the password of the default user. [`RedisServer::command`] authenticates with it. [`RedisServer::url`] does
    /// not contain it.
    pub(crate) fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.arg("--requirepass", password)
    }

    /// Adds a user. `rules` has the syntax of `ACL SETUSER`, for example `on >secret ~* &* +@all`.
    pub(crate) fn user(self, name: &str, rules: &str) -> Self {
        let values: Vec<_> = std::iter::once(name)
            .chain(rules.split_whitespace())
            .collect();
        self.args("--user", &values)
    }

    /// Makes Redis write every command to disk before it replies, so that the data survives a restart.
    pub(crate) fn append_only(self) -> Self {
        self.arg("--appendonly", "yes")
            .arg("--appendfsync", "always")
    }

    /// Makes the server accept only TLS, with this certificate and private key. Clients need no certificate.
    pub(crate) fn tls(mut self, certificate: &Path, key: &Path, ca: &Path) -> Self {
        let path = |path: &Path| path.to_str().expect("the path is UTF-8").to_owned();
        self.tls = true;
        self.arg("--tls-cert-file", path(certificate))
            .arg("--tls-key-file", path(key))
            .arg("--tls-ca-cert-file", path(ca))
            .arg("--tls-auth-clients", "no")
    }

    /// Makes the server a replica of `other`, which must not use TLS. [`start`](Self::start) returns when the replica
    /// is in sync.
    pub(crate) fn replica_of(mut self, other: &RedisServer) -> Self {
        self.replica = true;
        if let Some(password) = &other.options.password {
            self = self.arg("--masterauth", password.clone());
        }
        let port = other.port().to_string();
        self.args("--replicaof", &["127.0.0.1", &port])
    }

    /// Gives the server a fake wall clock, which [`RedisServer::advance`] moves.
    pub(crate) fn fake_time(self) -> Self {
        self.in_time(Arc::new(FakeTime::new()))
    }

    /// Gives the server the fake wall clock `time`, which several servers can share.
    pub(crate) fn in_time(mut self, time: Arc<FakeTime>) -> Self {
        self.time = Some(time);
        self
    }

    /// Starts the server and returns when it replies to commands.
    pub(crate) fn start(self) -> RedisServer {
        RedisServer::launch(self)
    }
}
