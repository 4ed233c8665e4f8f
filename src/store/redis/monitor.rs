//! Looks at Redis once a second, and at once when somebody met trouble.
//!
//! It is the only one to say that Redis may be asked again, and before it does it makes sure that this is
//! the Redis we knew: that it takes writes, that it will not drop keys, which run it is in, what secret
//! the fleet makes names with, and in which format its records are.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::time::sleep;

use super::connection::Connection;
use super::core::Core;
use super::link::{Failure, is_gone};
use super::portrait::{FORMAT, Portrait, Unfit};
use super::sight::Sight;
use crate::store::Part;

/// Between two looks at a Redis that is well.
const CALM: Duration = Duration::from_secs(1);

/// Between two looks at one that is not: so long at first, and twice as long every time.
const SOONEST: Duration = Duration::from_millis(50);

/// And never longer.
const LATEST: Duration = Duration::from_millis(500);

/// Between two looks however many call for one.
const BREATH: Duration = Duration::from_millis(20);

/// Looks at Redis.
pub(super) struct Monitor {
    core: Arc<Core>,
    /// Whether it is to keep idempotency keys.
    keyed: bool,
    connection: Option<Connection>,
    /// The runs its servers were in when they were last seen; none if they never were.
    runs: Vec<Arc<str>>,
}

impl Monitor {
    pub(super) fn new(core: Arc<Core>, keyed: bool) -> Self {
        Self {
            core,
            keyed,
            connection: None,
            runs: Vec::new(),
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

    /// Checks Redis once. Returns whether all parts of the store work, or an error if the gateway cannot start with it.
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
                // A failover may be in progress.
                Unfit::Replica => Ok(false),
                _ => Err(unfit),
            };
        }
        self.recognise(&sight);
        let mut well = true;
        match &sight.written {
            Ok(took) if *took <= self.core.patience(Part::Limits) => well &= limits.close(),
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
            _ if self.keyed && &*sight.format != FORMAT => {
                // The gateway starts without its records: the limits do not depend on them.
                records.open_for(&Unfit::Format(Arc::clone(&sight.format)));
                well = false;
            }
            _ => match &sight.written {
                // A full Redis still serves replays. One that accepts no writes cannot store claims.
                Ok(_) | Err(Failure::Full(_)) => well &= records.close(),
                Err(failure) => {
                    records.open(failure);
                    well = false;
                }
            },
        }
        Ok(well)
    }

    /// Takes note of who this is, and says so if it is not who it was.
    fn recognise(&mut self, sight: &Sight) {
        let mut runs: Vec<_> = sight
            .servers
            .iter()
            .map(|it| Arc::clone(&it.run_id))
            .collect();
        runs.sort();
        let others = runs.iter().filter(|run| !self.runs.contains(run));
        let others: Vec<_> = others.collect();
        if self.runs.is_empty() {
            self.greet(sight);
        } else if !others.is_empty() {
            tracing::warn!(
                runs = ?others,
                "Redis was restarted, or another one took its place: what it had not kept of limits and \
                 idempotency keys is gone, and a request whose key is gone is carried out again"
            );
            self.core.begin_epoch();
        }
        self.runs = runs;
        if let Some(secret) = sight.secret
            && secret.as_bytes() != self.core.secret().as_bytes()
        {
            self.core.adopt(secret);
        }
    }

    /// Logs a Redis that is reached for the first time, with warnings about its configuration.
    fn greet(&self, sight: &Sight) {
        let settings = &self.core.settings;
        let nodes = &settings.nodes;
        if let Some(server) = sight.servers.first() {
            tracing::info!(%nodes, servers = sight.servers.len(), "the store is Redis, {server}");
        }
        if !self.keyed && sight.servers.iter().any(Portrait::evicts) {
            tracing::warn!(
                "Redis may drop buckets when it is full, and their clients get a fresh burst then: set its \
                 `maxmemory-policy` to `noeviction`"
            );
        }
        if self.keyed && !sight.servers.iter().all(Portrait::is_durable) {
            tracing::warn!(
                "Redis may lose idempotency keys when it is killed, and their requests be carried out again: \
                 set its `appendonly` to `yes` and its `appendfsync` to `always` where that must not be"
            );
        }
        if self.keyed && sight.denies_publish {
            let (user, prefix) = (settings.login().unwrap_or("default"), &settings.prefix);
            tracing::warn!(
                "Redis user `{user}` may not publish on `{prefix}:*`: duplicates that wait on another gateway poll \
                 every 250 ms; to notify them, run `ACL SETUSER {user} &{prefix}:* +@pubsub`"
            );
        }
    }

    /// What Redis says of itself, and what it does.
    async fn see(&mut self) -> Result<Sight, Failure> {
        let is_new = self.runs.is_empty();
        if let Some(mut connection) = self.connection.take() {
            match Sight::of(&self.core, &mut connection, is_new).await {
                // A server closes a connection when it is restarted, and when it feels like it: that alone says
                // nothing of how it is now.
                Err(error) if is_gone(&error) && !error.is_timeout() => {}
                Err(error) => return Err(Failure::from(&error)),
                Ok(sight) => {
                    self.connection = Some(connection);
                    return Ok(sight);
                }
            }
        }
        let see = async {
            let mut connection = self.core.connect().await?;
            let sight = Sight::of(&self.core, &mut connection, is_new).await?;
            Ok((connection, sight))
        };
        let (connection, sight) = see.await.map_err(|error| Failure::from(&error))?;
        self.connection = Some(connection);
        Ok(sight)
    }
}
