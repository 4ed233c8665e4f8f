//! A probe of Redis. It reads INFO and the secret of the fleet, and runs a script that writes, as requests do.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{FromRedisValue, InfoDict, RedisError};
use thiserror::Error;
use tokio::time::Instant;

use crate::idempotency::Secret;
use crate::store::Part;
use crate::store::redis::client_state::ClientState;
use crate::store::redis::connection::{RedisConnection, ServerRoute, with_timeout};
use crate::store::redis::error::{CallError, is_lost};
use crate::store::redis::script::{Call, PROBE};

/// The oldest supported Redis version. The scripts use commands and flags that Redis 7.0 introduced.
const OLDEST: (u32, u32) = (7, 0);

/// The format of the idempotency records that this gateway writes, see `lua/claim.lua`. Format 1 had fingerprints of 16
/// bytes.
pub(super) const FORMAT: &str = "2";

/// The format of a fleet that has stored a secret but no format.
const FORMAT_1: &str = "1";

/// Expiry of the Redis key that a probe writes, in milliseconds.
const TEST_KEY_TTL: u32 = 10_000;

/// The secret of the fleet and the record format, as stored in Redis.
type FleetValues = (Option<Vec<u8>>, Option<Vec<u8>>);

pub(super) struct Probe {
    /// All primaries of the cluster, or the only server.
    pub(super) servers: Vec<ServerInfo>,
    /// `None` if Redis has no secret and rejected the write of one.
    pub(super) secret: Option<Secret>,
    /// Whether Redis had no secret and this probe stored one.
    pub(super) has_stored_secret: bool,
    pub(super) format: Arc<str>,
    /// How long the write took.
    pub(super) write: Result<Duration, CallError>,
}

/// Properties of one server, from INFO.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerInfo {
    /// It changes at each start of the server.
    pub(super) run_id: Arc<str>,
    version: Arc<str>,
    eviction: Arc<str>,
    is_replica: bool,
    append_only: bool,
    /// Whether `appendfsync` is `always`. `None` if no probe has read it, for example because the Redis user lacks the
    /// permission.
    syncs_always: Option<bool>,
    used_memory: u64,
    /// 0 means no limit.
    max_memory: u64,
}

/// Why the gateway cannot use a Redis server. Every message includes a remedy.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum UnusableServer {
    /// The server is older than Redis 7.0.
    #[error(
        "version {0} of Redis is too old for the scripts of the gateway; use Redis 7.0, Valkey 7.2 or later"
    )]
    TooOld(Arc<str>),
    /// The server evicts Redis keys when it is out of memory, so it could evict idempotency records.
    #[error(
        "the `maxmemory-policy` is `{0}`, so Redis would evict idempotency records when it is out of memory, and their \
         requests could be executed again; run `CONFIG SET maxmemory-policy noeviction` and add the setting to the \
         configuration of Redis"
    )]
    Evicts(Arc<str>),
    /// Another version of the gateway wrote the idempotency records in another format.
    #[error(
        "the idempotency records in Redis are in format {0}, but this version of the gateway uses format {FORMAT}; run \
         the version that wrote them until the records have expired, then set another `prefix` or database in [store], \
         or delete all Redis keys of the prefix while no gateway runs. If you do so earlier, retries of earlier \
         requests can be executed again"
    )]
    Format(Arc<str>),
    /// The server is a replica and accepts no writes.
    #[error(
        "the Redis server is a replica and accepts no writes; `store.url` must name the primary"
    )]
    Replica,
}

impl Probe {
    /// Each step has the timeout `store.records_timeout`. The probe of a cluster fails if one of its servers fails,
    /// because any request can need Redis keys of that server.
    pub(super) async fn run(
        state: &ClientState,
        connection: &mut RedisConnection,
        checks_persistence: bool,
    ) -> Result<Self, RedisError> {
        let within = state.timeout(Part::Records);
        let mut servers = Vec::new();
        for server in with_timeout(within, connection.servers()).await? {
            servers.push(ServerInfo::query(connection, &server, checks_persistence, within).await?);
        }
        let (secret, format) = (state.fleet_key("secret"), state.fleet_key("format"));
        let mut get = redis::cmd("MGET");
        let stored = get.arg(&secret).arg(&format).query_async(connection);
        let stored: FleetValues = with_timeout(within, stored).await?;
        let had_secret = stored.0.is_some();

        let write = Call::new(&PROBE, &[secret, state.fleet_key("mark"), format])
            .arg(state.secret().as_bytes())
            .arg(TEST_KEY_TTL)
            .arg(FORMAT);
        let began = Instant::now();
        let ((secret, format), write) = match with_timeout(within, write.run(connection)).await {
            Ok(values) => (FleetValues::from_redis_value(values)?, Ok(began.elapsed())),
            Err(error) if is_lost(&error) => return Err(error),
            // The script failed, for example because Redis is out of memory. The values that MGET returned are used.
            Err(error) => (stored, Err(error.into())),
        };
        let secret = secret.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        Ok(Self {
            servers,
            has_stored_secret: !had_secret && write.is_ok(),
            secret: secret.map(Secret::from_bytes),
            format: format.map_or(FORMAT_1.into(), |format| {
                String::from_utf8_lossy(&format).into()
            }),
            write,
        })
    }
}

impl ServerInfo {
    async fn query(
        connection: &mut RedisConnection,
        server: &ServerRoute,
        checks_persistence: bool,
        within: Duration,
    ) -> Result<Self, RedisError> {
        let info = connection.query_server(server, redis::cmd("INFO"));
        let info = InfoDict::from_redis_value(with_timeout(within, info).await?)?;
        let mut info = Self::parse(&info);
        if checks_persistence {
            let mut command = redis::cmd("CONFIG");
            command.arg("GET").arg("appendfsync");
            let reply = match with_timeout(within, connection.query_server(server, command)).await {
                // The next probe asks again.
                Err(error) if is_lost(&error) => return Err(error),
                reply => reply.and_then(|reply| Ok(HashMap::<_, _>::from_redis_value(reply)?)),
            };
            let appendfsync =
                |settings: HashMap<String, String>| settings.get("appendfsync").cloned();
            info.syncs_always = reply.ok().and_then(appendfsync).map(|it| it == "always");
        }
        Ok(info)
    }

    /// A field that is absent from `info` is empty.
    fn parse(info: &InfoDict) -> Self {
        let field = |name| info.get::<String>(name).unwrap_or_default();
        Self {
            run_id: field("run_id").into(),
            // In this field, Valkey reports the Redis version with which it is compatible.
            version: field("redis_version").into(),
            eviction: field("maxmemory_policy").into(),
            is_replica: field("role") == "slave",
            append_only: field("aof_enabled") == "1",
            syncs_always: None,
            used_memory: field("used_memory").parse().unwrap_or(0),
            max_memory: field("maxmemory").parse().unwrap_or(0),
        }
    }

    /// `used_memory` and `maxmemory` in bytes.
    pub(super) fn memory_use(&self) -> Option<(u64, u64)> {
        (self.max_memory > 0).then_some((self.used_memory, self.max_memory))
    }

    /// Fails if the gateway can use the server neither for rate limits nor for idempotency records.
    pub(super) fn check(&self) -> Result<(), UnusableServer> {
        if self.version() < OLDEST {
            return Err(UnusableServer::TooOld(Arc::clone(&self.version)));
        }
        if self.is_replica {
            return Err(UnusableServer::Replica);
        }
        Ok(())
    }

    /// Fails if the gateway cannot use the server for idempotency records.
    pub(super) fn check_for_records(&self) -> Result<(), UnusableServer> {
        if self.evicts() {
            return Err(UnusableServer::Evicts(Arc::clone(&self.eviction)));
        }
        Ok(())
    }

    pub(super) fn evicts(&self) -> bool {
        &*self.eviction != "noeviction"
    }

    /// Whether acknowledged writes survive a crash of the server. `None` if this is not known.
    pub(super) fn is_durable(&self) -> Option<bool> {
        if self.append_only {
            self.syncs_always
        } else {
            Some(false)
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# Server\r\nredis_version:7.2.4\r\nrun_id:abc\r\n\r\n# Replication\r\nrole:master\r\n\
                        # Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n";

    fn parsed(info: &str) -> ServerInfo {
        ServerInfo::parse(&InfoDict::new(info))
    }

    #[test]
    fn a_healthy_server_is_usable_for_limits_and_records() {
        let info = parsed(INFO);
        assert_eq!(&*info.run_id, "abc");
        assert_eq!(info.check(), Ok(()));
        assert_eq!(info.check_for_records(), Ok(()));
        assert_eq!(info.is_durable(), None, "`appendfsync` has not been read");
        let volatile = parsed(&INFO.replace("aof_enabled:1", "aof_enabled:0"));
        assert_eq!(volatile.is_durable(), Some(false));
        assert_eq!(info.to_string(), "version 7.2.4");
    }

    #[test]
    fn the_memory_use_of_a_server_is_known_if_its_memory_is_limited() {
        assert_eq!(parsed(INFO).memory_use(), None);
        let limited = INFO.replace("maxmemory:0", "used_memory:70\r\nmaxmemory:100");
        assert_eq!(parsed(&limited).memory_use(), Some((70, 100)));
    }

    #[test]
    fn an_unusable_server_is_reported_with_a_remedy() {
        let old = parsed(&INFO.replace("7.2.4", "6.2.14"));
        let message = old.check().unwrap_err().to_string();
        assert!(message.contains("6.2.14") && message.contains("use Redis 7.0"));

        let replica = parsed(&INFO.replace("role:master", "role:slave"));
        assert_eq!(replica.check(), Err(UnusableServer::Replica));

        let evicting = parsed(&INFO.replace("noeviction", "allkeys-lru"));
        assert_eq!(evicting.check(), Ok(()));
        let message = evicting.check_for_records().unwrap_err().to_string();
        assert!(message.contains("allkeys-lru") && message.contains("noeviction"));
    }
}
