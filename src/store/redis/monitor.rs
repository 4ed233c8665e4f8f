//! Looks at Redis once a second, and at once when somebody met trouble.
//!
//! It is the only one to say that Redis may be asked again, and before it does it makes sure that this is
//! the Redis we knew: that it takes writes, that it will not drop keys, which run it is in, and what secret
//! the fleet makes names with.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use parking_lot::Mutex;
use redis::{RedisError, Value};
use tokio::time::{Instant, sleep, timeout};

use super::breaker::Part;
use super::connection::Connection;
use super::core::Core;
use super::link::{Failure, describe, is_gone};
use super::portrait::{Portrait, Unfit};
use crate::idempotency::Secret;

/// Between two looks at a Redis that is well.
const CALM: Duration = Duration::from_secs(1);

/// Between two looks at one that is not: so long at first, and twice as long every time.
const SOONEST: Duration = Duration::from_millis(50);

/// And never longer.
const LATEST: Duration = Duration::from_millis(500);

/// Between two looks however many call for one.
const BREATH: Duration = Duration::from_millis(20);

/// How long the mark of a look stays.
const MARK_MILLIS: u32 = 10_000;

/// Looks at Redis.
pub(super) struct Monitor {
    core: Arc<Core>,
    /// Whether it is to keep idempotency keys.
    keyed: bool,
    connection: Option<Connection>,
    /// The runs its servers were in when they were last seen; none if they never were.
    runs: Mutex<Vec<Arc<str>>>,
}

/// What a look at Redis showed.
struct Sight {
    servers: Vec<Portrait>,
    /// How the fleet's secret was found, if it was.
    secret: Option<Secret>,
    /// Whether it takes writes, and how soon.
    written: Result<Duration, Failure>,
    /// How soon a change is safe on its disk, if it tells.
    fsync: Option<String>,
}

impl Monitor {
    pub(super) fn new(core: Arc<Core>, keyed: bool) -> Self {
        Self {
            core,
            keyed,
            connection: None,
            runs: Mutex::default(),
        }
    }

    /// Keeps looking; the first result is also told to `first`.
    pub(super) async fn watch(mut self, first: SyncSender<Result<(), Unfit>>) {
        let mut first = Some(first);
        let mut pause = SOONEST;
        loop {
            let well = self.look().await;
            if let Some(first) = first.take() {
                // Whoever asked may have given up waiting.
                let _ = first.try_send(well.clone().map(|_| ()));
            }
            let next = if matches!(well, Ok(true)) {
                pause = SOONEST;
                CALM
            } else {
                let next = pause.mul_f64(0.8 + 0.4 * fastrand::f64());
                pause = (pause * 2).min(LATEST);
                next
            };
            tokio::select! {
                () = sleep(next) => {}
                () = self.core.alarm.notified() => sleep(BREATH).await,
            }
        }
    }

    /// One look; whether all is well, or why this Redis will never do.
    async fn look(&mut self) -> Result<bool, Unfit> {
        let core = Arc::clone(&self.core);
        let (limits, records) = (core.breaker(Part::Limits), core.breaker(Part::Records));
        let sight = match self.see().await {
            Ok(sight) => sight,
            Err(failure) => {
                limits.open(&failure);
                records.open(&failure);
                return Ok(false);
            }
        };
        let unfit = sight.servers.iter().find_map(|it| it.unfit().err());
        if let Some(unfit) = unfit {
            limits.open(&unfit);
            records.open(&unfit);
            return match unfit {
                // A failover may be underway.
                Unfit::Replica => Ok(false),
                _ => Err(unfit),
            };
        }
        self.recognise(&sight);
        let mut well = true;
        match &sight.written {
            Ok(took) if *took <= self.core.patience(Part::Limits) => limits.close(),
            Ok(took) => {
                limits.open(&Failure::Late(*took));
                well = false;
            }
            Err(failure) => {
                limits.open(failure);
                well = false;
            }
        }
        let unfit = sight
            .servers
            .iter()
            .find_map(|it| it.unfit_for_records().err());
        match unfit {
            Some(unfit) if self.keyed => {
                records.open(&unfit);
                return Err(unfit);
            }
            _ if sight.secret.is_none() => {
                records.open(&"it keeps no secret of the fleet, and takes none");
                well = false;
            }
            _ => records.close(),
        }
        Ok(well)
    }

    /// Takes note of who this is, and says so if it is not who it was.
    fn recognise(&self, sight: &Sight) {
        let mut runs: Vec<_> = sight
            .servers
            .iter()
            .map(|it| Arc::clone(&it.run_id))
            .collect();
        runs.sort();
        let mut known = self.runs.lock();
        let others: Vec<_> = runs.iter().filter(|run| !known.contains(run)).collect();
        if known.is_empty() {
            self.greet(sight);
        } else if !others.is_empty() {
            tracing::warn!(
                runs = ?others,
                "Redis was restarted, or another one took its place: what it had not kept of limits and \
                 idempotency keys is gone, and a request whose key is gone is carried out again"
            );
            self.core.begin_epoch();
        }
        *known = runs;
        if let Some(secret) = sight.secret
            && secret.as_bytes() != self.core.secret().as_bytes()
        {
            self.core.adopt(secret);
        }
    }

    /// Says what somebody should know of a Redis met for the first time.
    fn greet(&self, sight: &Sight) {
        let nodes = &self.core.settings.nodes;
        if let Some(server) = sight.servers.first() {
            tracing::info!(%nodes, servers = sight.servers.len(), "the store is Redis, {server}");
        }
        if !self.keyed && sight.servers.iter().any(Portrait::evicts) {
            tracing::warn!(
                "Redis may drop buckets when it is full, and their clients get a fresh burst then: set its \
                 `maxmemory-policy` to `noeviction`"
            );
        }
        let appends = sight.servers.iter().all(Portrait::is_append_only);
        if self.keyed && !(appends && sight.fsync.as_deref() == Some("always")) {
            tracing::warn!(
                "Redis may lose idempotency keys when it is killed, and their requests be carried out again: \
                 set its `appendonly` to `yes` and its `appendfsync` to `always` where that must not be"
            );
        }
    }

    /// What Redis says of itself, and what it does.
    async fn see(&mut self) -> Result<Sight, Failure> {
        if let Some(mut connection) = self.connection.take() {
            match self.examine(&mut connection).await {
                // A server closes a connection when it is restarted, and when it feels like it: that alone says
                // nothing of how it is now.
                Ok(Err(error)) if is_gone(&error) => {}
                seen => return self.keep(connection, seen),
            }
        }
        let connected = self.core.connect().await;
        let mut connection = connected.map_err(|error| Failure::from(&error))?;
        let seen = self.examine(&mut connection).await;
        self.keep(connection, seen)
    }

    /// What was seen by a connection, which is used again if it was of use.
    fn keep(
        &mut self,
        connection: Connection,
        seen: Result<Result<Sight, RedisError>, Failure>,
    ) -> Result<Sight, Failure> {
        let sight = seen?.map_err(|error| Failure::from(&error))?;
        if sight.servers.is_empty() {
            return Err(Failure::Failed("it does not say what it is".into()));
        }
        self.connection = Some(connection);
        Ok(sight)
    }

    /// Looks at Redis by this connection, for not too long.
    async fn examine(
        &self,
        connection: &mut Connection,
    ) -> Result<Result<Sight, RedisError>, Failure> {
        let within = self.core.patience(Part::Records) * 2;
        let looking = async {
            let info: Value = redis::cmd("INFO").query_async(connection).await?;
            let (secret, written) = self.leave_mark(connection).await?;
            let fsync = self.fsync(connection).await;
            Ok(Sight {
                servers: Portrait::all(info),
                secret,
                written,
                fsync,
            })
        };
        let seen = timeout(within, looking).await;
        seen.map_err(|_| Failure::Late(within))
    }

    /// Finds the fleet's secret, or plants ours, and writes something to see whether that can be done.
    async fn leave_mark(
        &self,
        connection: &mut Connection,
    ) -> Result<(Option<Secret>, Result<Duration, Failure>), RedisError> {
        let prefix = &self.core.settings.prefix;
        let name = format!("{prefix}:secret");
        let mut kept: Option<Vec<u8>> =
            redis::cmd("GET").arg(&name).query_async(connection).await?;
        let began = Instant::now();
        let mut marked: Result<Value, RedisError> = redis::cmd("SET")
            .arg(format!("{prefix}:mark"))
            .arg(1)
            .arg("PX")
            .arg(MARK_MILLIS)
            .query_async(connection)
            .await;
        let took = began.elapsed();
        if marked.is_ok() && kept.is_none() {
            let own = self.core.secret();
            marked = redis::cmd("SET")
                .arg(&name)
                .arg(own.as_bytes())
                .arg("NX")
                .query_async(connection)
                .await;
            kept = redis::cmd("GET").arg(&name).query_async(connection).await?;
        }
        if let Err(error) = &marked
            && is_gone(error)
        {
            return Err(error.clone());
        }
        let secret = kept.and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        let written = marked.map(|_| took);
        Ok((
            secret.map(Secret::from_bytes),
            written.map_err(|error| Failure::Failed(describe(&error).into())),
        ))
    }

    /// How soon a change is safe on disk, if whoever we are may ask.
    async fn fsync(&self, connection: &mut Connection) -> Option<String> {
        if !self.runs.lock().is_empty() {
            return None;
        }
        let mut asked = redis::cmd("CONFIG");
        asked.arg("GET").arg("appendfsync");
        let answer: Value = asked.query_async(connection).await.ok()?;
        last_text(answer)
    }
}

/// The last text in an answer, however it is nested: a cluster answers for each of its servers.
fn last_text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(text) => String::from_utf8(text).ok(),
        Value::SimpleString(text) => Some(text),
        Value::Array(values) => values.into_iter().filter_map(last_text).next_back(),
        Value::Map(pairs) => pairs
            .into_iter()
            .filter_map(|(_, it)| last_text(it))
            .next_back(),
        _ => None,
    }
}
