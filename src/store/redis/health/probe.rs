//! A probe of Redis: its INFO, the secret of the fleet, and whether a script can write, as requests require.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue, RedisError, Value};
use thiserror::Error;
use tokio::time::Instant;

use crate::idempotency::Secret;
use crate::store::Part;
use crate::store::redis::client::ClientState;
use crate::store::redis::connection::{Connection, Server, in_time};
use crate::store::redis::error::{CallError, is_lost};
use crate::store::redis::records::Names;
use crate::store::redis::script::PLANT;

/// The oldest version whose scripts can do what ours do.
const OLDEST: (u32, u32) = (7, 0);

/// The format of records in Redis, see `lua/claim.lua`. Format 1 had fingerprints of 16 bytes.
pub(super) const FORMAT: &str = "2";

/// The format of records without a stored format.
const FORMAT_1: &str = "1";

/// How long the key that a probe writes is stored, in milliseconds.
const MARK: u32 = 10_000;

/// The stored secret and the stored format.
type Planted = (Option<Vec<u8>>, Option<Vec<u8>>);

/// The result of a probe.
pub(super) struct Probe {
    /// All servers that hold data of their own.
    pub(super) servers: Vec<ServerInfo>,
    /// The secret of the fleet; `None` if there is none and ours could not be stored.
    pub(super) secret: Option<Secret>,
    /// The format of the fleet's records.
    pub(super) format: Arc<str>,
    /// How long a write took, or why it failed.
    pub(super) write: Result<Duration, CallError>,
    /// Whether the user has no right to publish on the channel of the fleet. Checked only on a new Redis.
    pub(super) denies_publish: bool,
}

/// Properties of one server, from its INFO.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerInfo {
    /// Differs after every start of the server.
    pub(super) run_id: Arc<str>,
    version: Arc<str>,
    eviction: Arc<str>,
    is_replica: bool,
    append_only: bool,
    /// Whether the append-only file is synced before a write is acknowledged.
    syncs_always: bool,
}

/// Why a server cannot be used. Every message ends with a remedy.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Unfit {
    /// Its scripts cannot do what ours do.
    #[error(
        "it is version {0}, and its scripts cannot do what is asked of them; use Redis 7.0, Valkey 7.2, or a \
         later one"
    )]
    TooOld(Arc<str>),
    /// It evicts keys when its memory is full.
    #[error(
        "its `maxmemory-policy` is `{0}`, so it would forget idempotency keys when it is full, and their \
         requests be carried out again; run `CONFIG SET maxmemory-policy noeviction`, and write it in its \
         configuration"
    )]
    Evicts(Arc<str>),
    /// Another version of the gateway has written its records.
    #[error(
        "its records are in format {0}, and this version uses format {FORMAT}; run the version that \
         wrote them until its keys have expired, then set another `prefix` or database in [store], or delete all keys of \
         the prefix while no gateway runs. If you do so earlier, keys that were used before can execute again"
    )]
    Format(Arc<str>),
    /// It accepts no writes.
    #[error("it is a replica and takes no writes; `store.url` must name the primary")]
    Replica,
}

impl Probe {
    /// Probes Redis on `connection`, and its configuration too if Redis `is_new` to this gateway.
    ///
    /// Each step has the timeout of records. A cluster fails the probe if one of its servers does: which keys that
    /// server holds is not known before a call.
    pub(super) async fn run(
        state: &ClientState,
        connection: &mut Connection,
        is_new: bool,
    ) -> Result<Self, RedisError> {
        let within = state.timeout(Part::Records);
        let mut servers = Vec::new();
        for server in in_time(within, connection.servers()).await? {
            servers.push(ServerInfo::query(connection, &server, is_new, within).await?);
        }
        let (secret, format) = (state.fleet_key("secret"), state.fleet_key("format"));
        let mut get = redis::cmd("MGET");
        let stored = get.arg(&secret).arg(&format).query_async(connection);
        let stored: Planted = in_time(within, stored).await?;

        let plant = PLANT
            .on(&[secret, state.fleet_key("mark"), format])
            .arg(state.secret().as_bytes())
            .arg(MARK)
            .arg(FORMAT);
        let began = Instant::now();
        let ((secret, format), write) = match in_time(within, plant.run(connection)).await {
            Ok(planted) => (Planted::from_redis_value(planted)?, Ok(began.elapsed())),
            Err(error) if is_lost(&error) => return Err(error),
            // A full Redis still has its secret.
            Err(error) => (stored, Err(error.into())),
        };
        let secret = secret.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        Ok(Self {
            servers,
            secret: secret.map(Secret::from_bytes),
            format: format.map_or(FORMAT_1.into(), |format| {
                String::from_utf8_lossy(&format).into()
            }),
            write,
            denies_publish: is_new && denies_publish(state, connection).await,
        })
    }
}

/// Publishes an empty message, which gateways ignore, and returns whether the user has no right to.
async fn denies_publish(state: &ClientState, connection: &mut Connection) -> bool {
    let prefix = &state.settings.prefix;
    let mut publish = redis::cmd("PUBLISH");
    publish.arg(Names { prefix }.channel()).arg("");
    let published = publish.query_async::<Value>(connection);
    let denied = |error: RedisError| error.code() == Some("NOPERM");
    let published = in_time(state.timeout(Part::Records), published);
    published.await.is_err_and(denied)
}

impl ServerInfo {
    async fn query(
        connection: &mut Connection,
        server: &Server,
        is_new: bool,
        within: Duration,
    ) -> Result<Self, RedisError> {
        let info = connection.query_server(server, redis::cmd("INFO"));
        let mut info = Self::parse(&text(in_time(within, info).await?));
        if is_new {
            let mut command = redis::cmd("CONFIG");
            command.arg("GET").arg("appendfsync");
            let reply = in_time(within, connection.query_server(server, command)).await;
            // The user may have no right to CONFIG.
            info.syncs_always = reply.is_ok_and(contains_always);
        }
        Ok(info)
    }

    /// Parses the reply to INFO.
    fn parse(info: &str) -> Self {
        let field = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .unwrap_or_default()
                .trim()
        };
        Self {
            run_id: field("run_id").into(),
            // Valkey sets this to the version of Redis that it is compatible with.
            version: field("redis_version").into(),
            eviction: field("maxmemory_policy").into(),
            is_replica: field("role") == "slave",
            append_only: field("aof_enabled") == "1",
            syncs_always: false,
        }
    }

    /// Fails if the server cannot be used at all.
    pub(super) fn check(&self) -> Result<(), Unfit> {
        if self.version() < OLDEST {
            return Err(Unfit::TooOld(Arc::clone(&self.version)));
        }
        if self.is_replica {
            return Err(Unfit::Replica);
        }
        Ok(())
    }

    /// Fails if the server cannot be used for idempotency keys.
    pub(super) fn check_for_records(&self) -> Result<(), Unfit> {
        if self.evicts() {
            return Err(Unfit::Evicts(Arc::clone(&self.eviction)));
        }
        Ok(())
    }

    /// Returns whether the server evicts keys when its memory is full.
    pub(super) fn evicts(&self) -> bool {
        &*self.eviction != "noeviction"
    }

    /// Returns whether acknowledged writes survive a crash of the server.
    pub(super) fn is_durable(&self) -> bool {
        self.append_only && self.syncs_always
    }

    fn version(&self) -> (u32, u32) {
        let parts = self.version.split('.');
        let mut numbers = parts.map(|part| part.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }
}

impl fmt::Display for ServerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version {}", self.version)
    }
}

fn text(value: Value) -> String {
    match value {
        Value::BulkString(text) => String::from_utf8_lossy(&text).into_owned(),
        Value::VerbatimString { text, .. } | Value::SimpleString(text) => text,
        _ => String::new(),
    }
}

/// Returns whether the reply to `CONFIG GET appendfsync` is `always`.
fn contains_always(value: Value) -> bool {
    match value {
        Value::Map(pairs) => pairs.into_iter().any(|(_, value)| text(value) == "always"),
        Value::Array(values) => values.into_iter().any(|value| text(value) == "always"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Server\r\nredis_version:7.2.4\r\nrun_id:abc\r\n\r\n# Replication\r\nrole:master\r\n\
                        # Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n";

    #[test]
    fn a_healthy_server_is_usable_for_limits_and_records() {
        let info = ServerInfo::parse(INFO);
        assert_eq!(&*info.run_id, "abc");
        assert_eq!(info.check(), Ok(()));
        assert_eq!(info.check_for_records(), Ok(()));
        assert!(!info.is_durable(), "appendfsync is not known");
        let syncs_always = true;
        let synced = ServerInfo {
            syncs_always,
            ..info.clone()
        };
        assert!(synced.is_durable());
        assert_eq!(info.to_string(), "version 7.2.4");
    }

    #[test]
    fn an_unusable_server_is_reported_with_a_remedy() {
        let old = ServerInfo::parse(&INFO.replace("7.2.4", "6.2.14"));
        let unfit = old.check().unwrap_err().to_string();
        assert!(unfit.contains("6.2.14") && unfit.contains("use Redis 7.0"));

        let replica = ServerInfo::parse(&INFO.replace("role:master", "role:slave"));
        assert_eq!(replica.check(), Err(Unfit::Replica));

        let evicting = ServerInfo::parse(&INFO.replace("noeviction", "allkeys-lru"));
        assert_eq!(evicting.check(), Ok(()));
        let unfit = evicting.check_for_records().unwrap_err().to_string();
        assert!(unfit.contains("allkeys-lru") && unfit.contains("noeviction"));
    }
}
